//! Interfaces that go into pods, work there, and come back.

use drakkar_netlink::{Child, LinkKind, MacvlanMode, NewAddress};

use super::machine::{Machine, talk};
use crate::attach::{Attachment, InterfacePlan};
use crate::restore::Outcome;

#[test]
fn two_pods_talk_over_moved_interfaces_and_everything_is_back_afterwards() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let pods_before = machine.pods.each_ref().map(super::machine::Place::state);
    let (first, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let (second, other) = machine.attach(machine.full_plan("fast1", 2), 1);
    assert_eq!((attached.name.as_str(), attached.mtu), ("net0", 1400));
    assert_eq!(attached.hardware_address.as_ref().unwrap().to_string(), "02:00:5e:10:00:01");
    assert!(!machine.host.names().iter().any(|name| name.starts_with("fast")));

    talk(&machine.pods[0], "10.1.0.1", &machine.pods[1], "10.1.0.2");
    talk(&machine.pods[1], "fd00::2", &machine.pods[0], "fd00::1");

    // What is reported is what the kernel has.
    for (attached, pod) in [(&attached, &machine.pods[0]), (&other, &machine.pods[1])] {
        let (address, mtu, mut addresses) = pod.ip_command(&attached.name);
        let mut ips: Vec<String> = attached.ips().iter().map(ToString::to_string).collect();
        addresses.sort_unstable();
        ips.sort_unstable();
        assert_eq!(ips, addresses);
        assert_eq!(ips.len(), 3);
        assert_eq!((attached.hardware_address.as_ref().unwrap().to_string(), u64::from(attached.mtu)), (address, mtu));
    }
    let pod = &machine.pods[0];
    assert_eq!(pod.namespace.setting("net/ipv4/conf/net0/arp_ignore").unwrap(), "2");
    let routes = pod.connection().routes_of(attached.index).unwrap();
    let has = |destination: &str, table| {
        routes.iter().any(|route| route.destination == destination.parse().unwrap() && route.table == table)
    };
    assert!(has("198.51.100.0/24", 77) && has("10.9.0.0/24", 254) && has("fd01::/64", 254), "{routes:?}");
    assert!(pod.connection().rules().unwrap().iter().any(|rule| rule.table == Some(77)));

    assert_eq!(machine.restore(&first), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.restore(&second), Outcome::OnHost("fast1".to_owned()));
    assert_eq!(machine.host.state(), before);
    assert_eq!(machine.pods.each_ref().map(super::machine::Place::state), pods_before);
    // Once more, as after a crash before the journal was updated.
    assert_eq!(machine.restore(&first), Outcome::OnHost("fast0".to_owned()));
    assert_eq!(machine.host.state(), before);
}

#[test]
fn pods_share_a_parent_by_macvlan_interfaces_which_are_deleted_afterwards() {
    let Some(machine) = Machine::new() else { return };
    let before = machine.host.state();
    let child = Some(Child::Macvlan { mode: MacvlanMode::Bridge });
    let plan = |number| InterfacePlan {
        child,
        mark: format!("drakkar/c{number}/fast0"),
        ..machine.full_plan("fast0", number)
    };
    let (first, attached) = machine.attach(plan(1), 0);
    let (second, _) = machine.attach(plan(2), 1);
    assert_eq!(machine.host.state(), before, "the parent is as it was");
    let link = machine.pods[0].link(&attached.name);
    assert_eq!(link.kind, LinkKind::Macvlan { mode: MacvlanMode::Bridge });
    assert_eq!((link.mtu, link.is_up, link.alias.as_deref()), (1400, true, Some("drakkar/c1/fast0")));
    talk(&machine.pods[0], "10.1.0.1", &machine.pods[1], "10.1.0.2");

    assert_eq!(machine.restore(&first), Outcome::Deleted);
    assert_eq!(machine.pods[0].find("net0"), None);
    assert!(machine.pods[1].find("net0").is_some(), "the other one is still there");
    assert_eq!(machine.restore(&second), Outcome::Deleted);
    assert_eq!(machine.restore(&second), Outcome::Deleted);
    assert_eq!(machine.host.state(), before);
}

#[test]
fn two_networks_in_one_pod_get_the_lowest_free_names() {
    let Some(machine) = Machine::new() else { return };
    let (_, first) = machine.attach(machine.full_plan("fast0", 1), 0);
    let (_, second) =
        machine.attach(InterfacePlan { rules: Vec::new(), routes: Vec::new(), ..machine.full_plan("fast1", 2) }, 0);
    assert_eq!((first.name, second.name), ("net0".to_owned(), "net1".to_owned()));
}

#[test]
fn an_attach_that_is_done_already_changes_nothing() {
    let Some(machine) = Machine::new() else { return };
    let (attachment, attached) = machine.attach(machine.full_plan("fast0", 1), 0);
    let state = machine.pods[0].state();
    let again = crate::attach::attach(&machine.kernel(), &attachment, &crate::attach::Limits::default()).unwrap();
    assert_eq!((again, machine.pods[0].state()), (attached, state));
}

#[test]
fn an_attachment_is_written_and_read_without_loss() {
    let Some(machine) = Machine::new() else { return };
    let attachment = machine.attachment(machine.full_plan("fast0", 1), 0);
    assert_eq!(attachment.former.as_ref().unwrap().addresses.len(), 2);
    assert_eq!(attachment.former.as_ref().unwrap().routes.len(), 1);
    let text = serde_json::to_string(&attachment).unwrap();
    assert_eq!(serde_json::from_str::<Attachment>(&text).unwrap(), attachment, "{text}");
}

#[test]
fn duplicate_address_detection_is_over_when_the_pod_starts() {
    let Some(machine) = Machine::new() else { return };
    let addresses = vec![NewAddress::new("fd00::7/64".parse().unwrap())];
    let plan = InterfacePlan { addresses, ..machine.plan("fast0", "net1") };
    let attachment = machine.attachment(plan, 0);
    let limits = crate::attach::Limits { dad: super::machine::PATIENCE, ..Default::default() };
    let attached = crate::attach::attach(&machine.kernel(), &attachment, &limits).unwrap();
    let address = attached.addresses.iter().find(|address| address.scope == drakkar_netlink::AddressScope::Global);
    assert_eq!(address.unwrap().dad, drakkar_netlink::DadState::Done);
    // The settings that made it quick are the kernel's own again.
    let other = machine.pods[0].namespace.setting("net/ipv6/neigh/eth0/retrans_time_ms").unwrap();
    assert_eq!(machine.pods[0].namespace.setting("net/ipv6/neigh/net1/retrans_time_ms").unwrap(), other);
}
