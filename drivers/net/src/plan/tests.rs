//! Tests of plans.

use std::sync::Arc;

use drakkar_netlink::LinkKind;
use drakkar_plugin::attributes::{NUMA_NODE, NumaForm, PCI_BUS_ID, PCIE_ROOT};

use super::*;
use crate::attributes::Numa;
use crate::config::Config;
use crate::inventory::tests::{add_virtual_function, host, loopback, on_pci, virtual_interface};
use crate::inventory::{Changed, HostInterface};

fn config(devices: &str) -> Arc<Config> {
    let yaml = format!("apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{devices}\n");
    Arc::new(Config::from_yaml(&yaml).unwrap())
}

fn plan_with(inventory: &Inventory, config: &Arc<Config>, held: &[HeldInterface], previous: Option<&Plan>) -> Plan {
    let mut selection = Selection::new(config.clone(), Numa::new("/none", NumaForm::Number));
    selection.update(inventory, held, &Changed::all());
    Plan::new(Inputs { inventory, selection: &selection, node_addresses: &[], held, previous })
}

fn plan(inventory: &Inventory, devices: &str) -> Plan {
    plan_with(inventory, &config(devices), &[], None)
}

/// What the journal has of a device.
fn held(plan: &Plan, device: &str, holding: Holding) -> HeldInterface {
    let entry = &plan.entries[device];
    HeldInterface {
        device: device.to_owned(),
        identity: entry.identity.clone(),
        holding,
        facts: Some(Attributes::clone(&entry.facts)),
        is_gone: false,
    }
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.entries.keys().map(String::as_str).collect()
}

const ALL: &str = "- {name: all, match: {names: ['*']}}";

fn two_cards() -> [HostInterface; 2] {
    [on_pci(2, "eth0", "0000:01:00.0"), on_pci(3, "eth1", "0000:02:00.0")]
}

#[test]
fn everything_that_is_known_of_an_interface_is_published() {
    let mut card = on_pci(2, "ens1v0", "0000:3b:02.0").with_address("192.0.2.7/24");
    card.link.alias = Some("rail 3".into());
    card.rdma = Some("mlx5_4".into());
    card.device.duplex = Some("full".into());
    let mut inventory = host([card, virtual_interface(3, "ens1v0.7", LinkKind::Vlan { id: 7 }).on(2)]);
    add_virtual_function(&mut inventory, "0000:3b:02.0", Some("iavf"), 7);
    let plan = plan(&inventory, "- {name: data, match: {names: ['*']}, attributes: {fabric: a}}");
    assert_eq!(names(&plan).len(), 2);
    let attributes = &plan.entries["nic-0000-3b-02-0"].attributes;
    for (name, value) in [
        (PCI_BUS_ID, "0000:3b:02.0".into()),
        (PCIE_ROOT, "pci0000:3a".into()),
        (NUMA_NODE, 1.into()),
        ("interfaceName", "ens1v0".into()),
        ("alias", "rail 3".into()),
        ("type", "vf".into()),
        ("mac", "02:00:00:00:00:02".into()),
        ("mtu", 1500.into()),
        ("speed", 25_000.into()),
        ("duplex", "full".into()),
        ("state", "up".into()),
        ("driver", "ice".into()),
        ("rdma", true.into()),
        ("rdmaDevice", "mlx5_4".into()),
        ("ipv4", true.into()),
        ("ipv6", false.into()),
        ("vendorID", "8086".into()),
        ("deviceID", "1889".into()),
        ("vendor", "Intel Corporation".into()),
        ("physicalFunction", "0000:3b:00.0".into()),
        ("iommuGroup", 7.into()),
        ("mode", "move".into()),
        ("rule", "data".into()),
        ("fabric", "a".into()),
    ] {
        assert_eq!(attributes.get(name), Some(&value), "{name}");
    }
    let vlan = plan.entries.iter().find(|(name, _)| name.starts_with("if-")).unwrap().1;
    assert_eq!((&vlan.attributes["parent"], &vlan.attributes["vlanID"]), (&"ens1v0".into(), &7.into()));
    assert_eq!(vlan.attributes["rdma"], false.into());
    plan.resources("node-1").validate().unwrap();
}

#[test]
fn the_first_rule_decides_and_exclude_comes_before() {
    let inventory = host([loopback(), on_pci(2, "eth0", "0000:01:00.0"), on_pci(3, "eth1", "0000:02:00.0")]);
    let yaml = "apiVersion: net.drakkar.dev/v1alpha1\nkind: DriverConfig\nexclude: [{macs: ['*:03']}]\ndevices:\n\
                - {name: one, match: {names: [eth0]}}\n- {name: two, match: {names: ['*']}}\n";
    let config = Arc::new(Config::from_yaml(yaml).unwrap());
    let plan = plan_with(&inventory, &config, &[], None);
    assert_eq!(names(&plan), ["nic-0000-01-00-0"]);
    assert_eq!(plan.entries["nic-0000-01-00-0"].rule, Some(0));
    assert_eq!(plan.decisions[&Key::Interface(3)].choice, Choice::Excluded(0));
    assert_eq!(plan.decisions[&Key::Interface(1)].refusal, Some(Refusal::Loopback));
}

#[test]
fn an_expression_that_fails_publishes_nothing() {
    let inventory = host([virtual_interface(2, "dummy0", LinkKind::Dummy)]);
    let plan = plan(&inventory, "- match:\n    cel: device.attributes['net.drakkar.dev'].speed > 1000");
    assert_eq!(names(&plan), Vec::<&str>::new());
    assert!(
        matches!(&plan.decisions[&Key::Interface(2)].choice, Choice::Failed(message) if message.contains("devices[0].match.cel"))
    );
}

#[test]
fn a_shared_interface_has_a_capacity_of_which_each_claim_takes_one() {
    let inventory = host(two_cards());
    let plan = plan(&inventory, "- match: {names: [eth0]}\n  share: {kind: macvlan, max: 8}\n- match: {names: [eth1]}");
    let resources = plan.resources("node-1");
    resources.validate().unwrap();
    let devices: Vec<_> = resources.pools["node-1"].devices.iter().collect();
    assert!(devices[0].allow_multiple_allocations && !devices[1].allow_multiple_allocations);
    let shares = &devices[0].capacity[SHARES];
    let policy = shares.request_policy.as_ref().unwrap();
    assert_eq!((shares.value.0.as_str(), policy.default.as_ref().unwrap().0.as_str()), ("8", "1"));
}

#[test]
fn an_interface_in_a_pod_stays_published_as_it_was() {
    let before = plan(&host(two_cards()), ALL);
    let held = [held(&before, "nic-0000-02-00-0", Holding::Moved)];
    // Also by a new process, which has no plan before.
    for previous in [Some(&before), None] {
        let after = plan_with(&host([on_pci(2, "eth0", "0000:01:00.0")]), &config(ALL), &held, previous);
        assert!(before.publishes_the_same(&after));
        let entry = &after.entries["nic-0000-02-00-0"];
        assert!(!entry.is_on_host && entry.pci == "0000:02:00.0".parse().ok());
        assert_eq!(entry.identity, before.entries["nic-0000-02-00-0"].identity);
    }
    let gone = plan(&host([on_pci(2, "eth0", "0000:01:00.0")]), ALL);
    assert_eq!(names(&gone), ["nic-0000-01-00-0"], "one that no claim has is not published any more");
}

#[test]
fn what_happens_to_an_interface_while_a_claim_has_it_is_not_published() {
    let before = plan(&host(two_cards()), ALL);
    let held = [held(&before, "nic-0000-02-00-0", Holding::Moved)];
    let mut renamed = on_pci(9, "data0", "0000:02:00.0").with_address("192.0.2.1/24");
    renamed.link.permanent_address = "02:00:00:00:00:03".parse().ok();
    renamed.link.mtu = 9000;
    let after = plan_with(&host([on_pci(2, "eth0", "0000:01:00.0"), renamed]), &config(ALL), &held, None);
    assert!(before.publishes_the_same(&after));
    assert!(after.entries["nic-0000-02-00-0"].is_on_host);
}

#[test]
fn a_function_whose_interface_is_in_a_pod_is_not_one_without_an_interface() {
    let mut inventory = host([on_pci(2, "ens1v0", "0000:3b:02.0")]);
    add_virtual_function(&mut inventory, "0000:3b:02.0", Some("iavf"), 7);
    let rules = "- match: {types: [vf]}";
    let before = plan(&inventory, rules);
    let held = [held(&before, "nic-0000-3b-02-0", Holding::Moved)];
    inventory.interfaces.clear();
    let after = plan_with(&inventory, &config(rules), &held, Some(&before));
    assert!(before.publishes_the_same(&after));
    assert!(after.decisions.is_empty(), "{:?}", after.decisions);
    let without_claim = plan(&inventory, rules);
    assert_eq!(names(&without_claim), Vec::<&str>::new());
}

#[test]
fn a_function_for_user_space_is_published_whatever_its_driver_is() {
    let rules = "- {match: {types: [vf]}, mode: dpdk}";
    let mut inventory = host([on_pci(2, "ens1v0", "0000:3b:02.0")]);
    add_virtual_function(&mut inventory, "0000:3b:02.0", Some("iavf"), 7);
    let before = plan(&inventory, rules);
    let entry = &before.entries["nic-0000-3b-02-0"];
    assert_eq!((entry.mode, &entry.attributes["iommuGroup"]), (Mode::Dpdk, &7.into()));
    let held = [held(&before, "nic-0000-3b-02-0", Holding::Dpdk)];
    inventory.interfaces.clear();
    inventory.pci.devices.values_mut().for_each(|device| device.driver = Some("vfio-pci".into()));
    let after = plan_with(&inventory, &config(rules), &held, Some(&before));
    assert!(before.publishes_the_same(&after), "{:?}", after.entries);
    // And one that is bound to vfio-pci from the start.
    assert_eq!(names(&plan(&inventory, rules)), ["nic-0000-3b-02-0"]);
}

#[test]
fn a_device_that_no_rule_selects_any_more_is_tainted_until_its_claim_ends() {
    let inventory = host(two_cards());
    let before = plan(&inventory, ALL);
    let held = [held(&before, "nic-0000-02-00-0", Holding::Moved)];
    let other = config("- match: {names: [eth0]}");
    let in_pod = host([on_pci(2, "eth0", "0000:01:00.0")]);
    for inventory in [&inventory, &in_pod] {
        let after = plan_with(inventory, &other, &held, Some(&before));
        assert_eq!(names(&after), ["nic-0000-01-00-0", "nic-0000-02-00-0"]);
        assert_eq!(after.entries["nic-0000-02-00-0"].taint, Some(Taint::Unselected));
        after.resources("node-1").validate().unwrap();
    }
    assert_eq!(names(&plan_with(&inventory, &other, &[], Some(&before))), ["nic-0000-01-00-0"]);
    let again = plan_with(&in_pod, &config(ALL), &held, Some(&before));
    assert_eq!(again.entries["nic-0000-02-00-0"].taint, None);
}

#[test]
fn a_device_that_is_gone_with_its_pod_is_tainted() {
    let before = plan(&host(two_cards()), ALL);
    let held = [HeldInterface { is_gone: true, ..held(&before, "nic-0000-02-00-0", Holding::Moved) }];
    let after = plan_with(&host([on_pci(2, "eth0", "0000:01:00.0")]), &config(ALL), &held, Some(&before));
    assert_eq!(after.entries["nic-0000-02-00-0"].taint.map(Taint::key), Some(GONE));
}

#[test]
fn another_interface_of_the_same_name_waits_until_the_claim_ends() {
    let before = plan(&host([virtual_interface(2, "dummy0", LinkKind::Dummy)]), ALL);
    let held = [held(&before, "if-dummy0", Holding::Moved)];
    let another = host([virtual_interface(9, "dummy0", LinkKind::Dummy)]);
    let after = plan_with(&another, &config(ALL), &held, Some(&before));
    assert_eq!(after.entries["if-dummy0"].identity.index, 2);
    assert!(matches!(after.decisions[&Key::Interface(9)].refusal, Some(Refusal::Held { .. })));
    assert_eq!(plan(&another, ALL).entries["if-dummy0"].identity.index, 9);
}

#[test]
fn claims_keep_the_way_in_which_they_have_a_device() {
    let inventory = host(two_cards());
    let shared = plan(&inventory, "- match: {names: [eth0]}\n  share: {kind: ipvlan, max: 8}");
    let held = [held(&shared, "nic-0000-01-00-0", Holding::Shared), held(&shared, "nic-0000-01-00-0", Holding::Shared)];
    let after = plan_with(&inventory, &config(ALL), &held, Some(&shared));
    let share = after.entries["nic-0000-01-00-0"].mode.share().unwrap();
    assert_eq!((share.max, share.kind.as_str()), (2, "ipvlan"), "no further claim gets it");
    let moved = [self::held(&after, "nic-0000-02-00-0", Holding::Moved)];
    let after =
        plan_with(&inventory, &config("- match: {names: ['*']}\n  share: {kind: macvlan}"), &moved, Some(&after));
    assert_eq!(after.entries["nic-0000-02-00-0"].mode, Mode::Move);
}

#[test]
fn a_shared_interface_is_published_as_it_is_now() {
    let rules = "- match: {names: [eth0]}\n  share: {kind: macvlan}";
    let before = plan(&host(two_cards()), rules);
    let held = [held(&before, "nic-0000-01-00-0", Holding::Shared)];
    let mut cards = two_cards();
    cards[0].link.mtu = 9000;
    let after = plan_with(&host(cards), &config(rules), &held, Some(&before));
    assert_eq!(after.entries["nic-0000-01-00-0"].attributes["mtu"], 9000.into());
    assert_eq!(after.entries["nic-0000-01-00-0"].taint, None);
}

#[test]
fn two_interfaces_of_one_function_do_not_replace_each_other() {
    let inventory = host([on_pci(2, "eth0", "0000:01:00.0"), on_pci(3, "eth1", "0000:01:00.0")]);
    let plan = plan(&inventory, ALL);
    assert_eq!(plan.entries["nic-0000-01-00-0"].identity.name, "eth0");
    let refusal = plan.decisions[&Key::Interface(3)].refusal.as_ref().unwrap().to_string();
    assert!(refusal.starts_with("eth0 (pci 0000:01:00.0) is published as nic-0000-01-00-0 already"), "{refusal}");
}
