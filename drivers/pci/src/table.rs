//! The table of `drakkar-pci devices`: every PCI device of a host, and what becomes of it, within 80 columns.

use std::fmt::Write as _;

use drakkar_driver_kit::table::{WIDTH, fit, wrap};
use drakkar_sysfs::PciDevice;

use crate::attributes::{model_name, vendor_name};
use crate::config::{Config, subclass};
use crate::plan::{Decision, Note};
use crate::select::Choice;

/// The columns before the last, which is as wide as what is left.
const INDENT: usize = 14;
/// The most names of a device that are listed.
const NAMES: usize = 3;

/// Returns the table. Bridges are left out unless `all` is set.
pub fn render(devices: &[(PciDevice, Decision)], config: Option<&Config>, all: bool) -> String {
    let mut table = String::from("ADDRESS       DRIVER          GROUP  DEVICE\n");
    let shown = devices.iter().filter(|(device, _)| all || device.base_class() != 0x06);
    for (device, decision) in shown {
        let driver = device.driver.as_deref().unwrap_or("-");
        let group = device.iommu_group.map_or_else(|| "-".to_owned(), |group| group.to_string());
        let name = fit(&name(device), WIDTH - 37);
        let _ = writeln!(table, "{:<12}  {:<14}  {group:>5}  {name}", device.address, fit(driver, 14));
        for line in wrap(&fate(decision, config), WIDTH - INDENT) {
            let _ = writeln!(table, "{:INDENT$}{line}", "");
        }
    }
    table
}

/// Returns what becomes of a device, in words.
fn fate(decision: &Decision, config: Option<&Config>) -> String {
    let rule = |index: usize| {
        let name = config.and_then(|config| config.devices.get(index)).and_then(|rule| rule.name.clone());
        name.map_or_else(|| format!("rule {}", index + 1), |name| format!("rule {name}"))
    };
    match &decision.choice {
        Choice::Unmatched => format!("not selected{}", note(decision)),
        Choice::Excluded(index) => format!("excluded by exclude[{index}]{}", note(decision)),
        Choice::Failed(message) => format!("not published: {message}"),
        Choice::Rule(index) => {
            let mut parts = Vec::new();
            if !decision.names.is_empty() {
                let more = decision.names.len().saturating_sub(NAMES);
                let names = decision.names.iter().rev().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                parts.push(format!("published as {names}{more}"));
            }
            parts.extend(decision.refusal.as_ref().map(|refusal| format!("refused: {refusal}")));
            if parts.is_empty() {
                parts.push("not published".to_owned());
            }
            format!("{} ({})", parts.join("; "), rule(*index))
        }
    }
}

fn note(decision: &Decision) -> String {
    match &decision.note {
        Some(Note::CompanionOf(name)) => format!("; goes along with {name}"),
        Some(Note::HostUses(uses)) => format!("; the host uses it: {uses}"),
        None => String::new(),
    }
}

fn name(device: &PciDevice) -> String {
    let ids = format!("{:04x}:{:04x}", device.vendor, device.device);
    match (vendor_name(device.vendor), model_name(device.vendor, device.device)) {
        (Some(_), Some(model)) => format!("{ids} {model}"),
        (Some(vendor), None) => format!("{ids} {vendor} {}", subclass(device.class).unwrap_or_default()),
        _ => ids,
    }
}

#[cfg(test)]
mod tests {
    use drakkar_sysfs::simulation::{Description, Simulation};

    use super::*;
    use crate::survey;

    #[test]
    fn every_device_is_listed_with_its_fate_within_80_columns() {
        let directory = tempfile::tempdir().unwrap();
        let description: Description = serde_saphyr::from_str(
            "
drivers: [{name: nouveau, ids: ['10de:2236']}]
devices:
- {address: '0000:00:1f.0', vendor: '8086', device: a30d, class: '060100'}
- {address: '0000:65:00.0', vendor: 10de, device: '2236', class: '030200', iommuGroup: 5}
- {address: '0000:65:00.1', vendor: 10de, device: 1aef, class: '040300', iommuGroup: 5}
- {address: '0000:66:00.0', vendor: 144d, device: a808, class: '010802'}",
        )
        .unwrap();
        let simulation = Simulation::create(directory.path(), &description).unwrap();
        let config = Config::from_yaml(
            "{apiVersion: pci.drakkar.dev/v1alpha1, kind: DriverConfig, devices: [\
             {name: gpus, match: {classes: [display]}}, {match: {classes: [audio]}, mode: kernel}]}",
        )
        .unwrap();
        let config = std::sync::Arc::new(config);
        let devices = survey(simulation.sysfs(), config.clone()).unwrap();
        let table = render(&devices, Some(&config), false);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert_eq!(
            table,
            "\
ADDRESS       DRIVER          GROUP  DEVICE
0000:65:00.0  nouveau             5  10de:2236 GA102GL [A10]
              published as pci-0000-65-00-0 (rule gpus)
0000:65:00.1  -                   5  10de:1aef GA102 High Definition Audio Cont…
              published as pci-0000-65-00-1 (rule 2)
0000:66:00.0  -                   -  144d:a808 NVMe SSD Controller SM981/PM981/…
              not selected
"
        );
        assert!(render(&devices, Some(&config), true).contains("0000:00:1f.0"));
    }
}
