//! The table of `drakkar-net devices`: every interface of a host, and what becomes of it, within 80 columns.

use std::fmt::Write as _;

use drakkar_driver_kit::table::{WIDTH, fit, wrap};

use crate::config::Config;
use crate::interfaces::Subject;
use crate::plan::Decision;
use crate::protect::Refusal;
use crate::select::Choice;

/// The columns before the second line of an interface.
const INDENT: usize = 17;

/// Returns the table. The loopback interface and the cables of pods are left out unless `all` is set.
pub fn render(interfaces: &[(Subject, Decision)], config: Option<&Config>, all: bool) -> String {
    let mut table = String::from("INTERFACE        TYPE      STATE   SPEED  DRIVER           PCI ADDRESS\n");
    for (subject, decision) in interfaces.iter().filter(|(subject, _)| all || !is_of_course(subject)) {
        let row = Row::of(subject);
        let Row { name, kind, state, speed, driver, address } = &row;
        let line = format!(
            "{:<15}  {:<8}  {:<6} {speed:>6}  {:<15}  {address}",
            fit(name, 15),
            fit(kind, 8),
            fit(state, 6),
            fit(driver, 15)
        );
        let _ = writeln!(table, "{}", line.trim_end());
        for line in wrap(&fate(decision, config), WIDTH - INDENT) {
            let _ = writeln!(table, "{:INDENT$}{line}", "");
        }
    }
    table
}

/// Returns whether an interface is never published, and there may be hundreds of them.
fn is_of_course(subject: &Subject) -> bool {
    matches!(subject, Subject::Interface(interface, _) if interface.link.is_loopback || interface.is_of_pod())
}

struct Row {
    name: String,
    kind: String,
    state: String,
    speed: String,
    driver: String,
    address: String,
}

impl Row {
    fn of(subject: &Subject) -> Self {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        match subject {
            Subject::Interface(interface, kind) => Self {
                name: interface.link.name.clone(),
                kind: kind.to_string(),
                state: interface.link.state.to_string(),
                speed: text(interface.device.speed.map(|speed| speed.to_string())),
                driver: text(interface.device.driver.clone()),
                address: text(interface.pci().map(|address| address.to_string())),
            },
            Subject::Function(device) => Self {
                name: "-".to_owned(),
                kind: if device.is_virtual_function() { "vf" } else { "physical" }.to_owned(),
                state: "-".to_owned(),
                speed: "-".to_owned(),
                driver: text(device.driver.clone()),
                address: device.address.to_string(),
            },
        }
    }
}

/// Returns what becomes of an interface, in words.
fn fate(decision: &Decision, config: Option<&Config>) -> String {
    let rule = |index: usize| {
        let name = config.and_then(|config| config.devices.get(index)).and_then(|rule| rule.name.clone());
        name.map_or_else(|| format!("rule {}", index + 1), |name| format!("rule {name}"))
    };
    let shared = |index: usize| {
        let share = config.and_then(|config| config.devices.get(index)).and_then(|rule| rule.mode.share());
        share.map_or_else(String::new, |share| {
            format!(", shared by up to {} claims ({})", share.max, share.kind.as_str())
        })
    };
    match (&decision.choice, &decision.refusal, &decision.device) {
        (Choice::Unmatched, ..) => "not selected".to_owned(),
        (Choice::Excluded(index), ..) => format!("excluded by exclude[{index}]"),
        (Choice::Failed(message), ..) => format!("not published: {message}"),
        (Choice::Rule(index), Some(refusal), _) => format!("refused: {} ({})", one_line(refusal), rule(*index)),
        (Choice::Rule(index), None, Some(device)) => {
            format!("published as {device}{} ({})", shared(*index), rule(*index))
        }
        (Choice::Rule(index), None, None) => format!("not published ({})", rule(*index)),
    }
}

fn one_line(refusal: &Refusal) -> String {
    refusal.to_string()
}

#[cfg(test)]
mod tests {
    use drakkar_netlink::LinkKind;
    use drakkar_sysfs::PciDevice;

    use super::*;
    use crate::inventory::Kind;
    use crate::inventory::tests::{loopback, on_pci, virtual_interface};

    fn decision(choice: Choice, refusal: Option<Refusal>, device: Option<&str>) -> Decision {
        Decision { choice, refusal, device: device.map(str::to_owned) }
    }

    #[test]
    fn every_interface_is_listed_with_its_fate_within_80_columns() {
        let config = Config::from_yaml(
            "{apiVersion: net.drakkar.dev/v1alpha1, kind: DriverConfig, devices: [\
             {name: data, match: {names: ['ens*']}}, {match: {names: [bond1]}, share: {kind: macvlan, max: 8}}]}",
        )
        .unwrap();
        let interface = |interface, kind: Kind| Subject::Interface(Box::new(interface), kind);
        let bond = Kind::Virtual("bond".into());
        let refusal = Refusal::DefaultRoute { name: "ens2".into(), destination: "0.0.0.0/0".into(), table: 254 };
        let function = PciDevice {
            class: 0x02_0000,
            driver: Some("vfio-pci".into()),
            ..PciDevice::new("0000:3b:02.1".parse().unwrap(), "")
        };
        let rows = [
            (interface(loopback(), Kind::Loopback), decision(Choice::Unmatched, None, None)),
            (
                interface(on_pci(2, "ens1f0", "0000:3b:00.0"), Kind::Physical),
                decision(Choice::Rule(0), None, Some("nic-0000-3b-00-0")),
            ),
            (
                interface(on_pci(3, "ens2", "0000:5e:00.0"), Kind::Physical),
                decision(Choice::Rule(0), Some(refusal), None),
            ),
            (
                interface(virtual_interface(4, "bond1", LinkKind::Bond), bond.clone()),
                decision(Choice::Rule(1), None, Some("if-bond1")),
            ),
            (
                interface(virtual_interface(5, "veth0", LinkKind::Veth).into_pod(), bond),
                decision(Choice::Unmatched, None, None),
            ),
            (Subject::Function(Box::new(function)), decision(Choice::Unmatched, None, None)),
        ];
        let table = render(&rows, Some(&config), false);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert_eq!(
            table,
            "\
INTERFACE        TYPE      STATE   SPEED  DRIVER           PCI ADDRESS
ens1f0           physical  up      25000  ice              0000:3b:00.0
                 published as nic-0000-3b-00-0 (rule data)
ens2             physical  up      25000  ice              0000:5e:00.0
                 refused: the host's default route (0.0.0.0/0 in table 254) goes
                 over it; to publish it all the same, add ens2 to the rule's
                 allow (rule data)
bond1            bond      up          -  -                -
                 published as if-bond1, shared by up to 8 claims (macvlan) (rule
                 2)
-                physical  -           -  vfio-pci         0000:3b:02.1
                 not selected
"
        );
        let all = render(&rows, Some(&config), true);
        assert!(all.contains("\nlo ") && all.contains("\nveth0 "), "{all}");
    }
}
