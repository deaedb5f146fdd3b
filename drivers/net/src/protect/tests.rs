//! Tests of refusals.

use drakkar_netlink::{LinkKind, MacvlanMode};
use rstest::rstest;

use super::*;
use crate::config::Config;
use crate::inventory::tests::{add_virtual_function, host, loopback, on_pci, virtual_interface};

fn rule(rest: &str) -> Rule {
    let yaml = format!(
        "{{apiVersion: net.drakkar.dev/v1alpha1, kind: DriverConfig, devices: [{{match: {{names: ['*']}}{rest}}}]}}"
    );
    Config::from_yaml(&yaml).unwrap().devices.remove(0)
}

/// Returns why an interface is refused by a rule.
fn refusal(inventory: &Inventory, index: u32, rest: &str) -> Option<Refusal> {
    let needs = HostNeeds::new(inventory, &["192.0.2.5".parse().unwrap()]);
    refuse(inventory, &needs, &inventory.interfaces[&index], &rule(rest))
}

fn reason(inventory: &Inventory, index: u32, rest: &str) -> &'static str {
    refusal(inventory, index, rest).map_or("", |refusal| refusal.reason())
}

const SHARE: &str = ", share: {kind: macvlan}";

#[rstest]
#[case::v4("0.0.0.0/0", 254)]
#[case::v6("::/0", 254)]
#[case::another_table("0.0.0.0/0", 100)]
#[case::half("128.0.0.0/1", 254)]
#[case::all_of_ipv6("2000::/3", 254)]
fn the_way_out_is_refused_unless_named(#[case] destination: &str, #[case] table: u32) {
    let inventory =
        host([on_pci(2, "eth0", "0000:01:00.0").with_route(destination, table), on_pci(3, "eth1", "0000:02:00.0")]);
    let text = refusal(&inventory, 2, "").unwrap().to_string();
    assert!(text.contains(&format!("default route ({destination} in table {table})")), "{text}");
    assert!(text.ends_with("add eth0 to the rule's allow"), "{text}");
    assert_eq!(reason(&inventory, 2, ", allow: [eth1]"), "default_route");
    assert_eq!(reason(&inventory, 2, ", allow: [eth0]"), "");
    assert_eq!(reason(&inventory, 2, SHARE), "default_route", "its network would be given away, too");
    assert_eq!(reason(&inventory, 3, ""), "");
}

#[test]
fn the_address_of_the_node_is_refused_unless_named() {
    let mut preferred = on_pci(4, "eth2", "0000:03:00.0").with_route("0.0.0.0/0", 254);
    preferred.routes[0].source = Some("198.51.100.1".parse().unwrap());
    let inventory = host([
        on_pci(2, "eth0", "0000:01:00.0").with_address("192.0.2.5/24"),
        virtual_interface(3, "dummy0", LinkKind::Dummy).with_address("198.51.100.1/32"),
        preferred,
        on_pci(5, "eth3", "0000:04:00.0").with_address("192.0.2.6/24"),
    ]);
    assert!(refusal(&inventory, 2, "").unwrap().to_string().starts_with("it has the node's address 192.0.2.5;"));
    assert_eq!(reason(&inventory, 3, ""), "node_address", "packets to everywhere are sent from it");
    assert_eq!(reason(&inventory, 2, ", allow: [eth0]"), "");
    assert_eq!(reason(&inventory, 5, ""), "");
}

#[test]
fn what_the_way_out_is_made_of_and_what_is_on_top_of_it_is_refused() {
    let bond = virtual_interface(4, "bond0", LinkKind::Bond);
    let inventory = host([
        on_pci(2, "eth0", "0000:01:00.0").part_of(4),
        on_pci(3, "eth1", "0000:01:00.1").part_of(4),
        bond,
        virtual_interface(5, "bond0.10", LinkKind::Vlan { id: 10 }).on(4).part_of(6),
        virtual_interface(6, "br0", LinkKind::Bridge).with_route("0.0.0.0/0", 254),
        virtual_interface(7, "bond0.20", LinkKind::Vlan { id: 20 }).on(4),
        virtual_interface(8, "br0.30", LinkKind::Vlan { id: 30 }).on(6),
    ]);
    for (index, expected) in [(2, "part of br0"), (5, "part of br0"), (8, "on top of br0")] {
        let text = refusal(&inventory, index, "").unwrap().to_string();
        assert!(text.contains(expected) && text.contains("which the host needs: the host's default route"), "{text}");
    }
    assert_eq!(reason(&inventory, 7, ""), "", "a sibling that the host does not need");
    assert_eq!(reason(&inventory, 4, SHARE), "", "a shared bond stays where it is");
    assert_eq!(reason(&inventory, 4, ""), "fixed");
    assert_eq!(reason(&inventory, 4, ", allow: [bond0]"), "fixed");
}

#[test]
fn the_network_of_pods_is_refused() {
    let inventory = host([
        loopback(),
        virtual_interface(2, "veth1", LinkKind::Veth).into_pod().part_of(3),
        virtual_interface(3, "lab", LinkKind::Bridge),
        virtual_interface(4, "docker0", LinkKind::Bridge),
        virtual_interface(5, "br-0123456789ab", LinkKind::Bridge),
        virtual_interface(6, "br-lan", LinkKind::Bridge),
        virtual_interface(7, "cable0", LinkKind::Veth).on(8),
        virtual_interface(8, "cable1", LinkKind::Veth).on(7),
        virtual_interface(9, "flannel.1", LinkKind::Vxlan),
        virtual_interface(10, "wg0", LinkKind::Other("wireguard".into())),
        virtual_interface(11, "tap0", LinkKind::Tun),
        virtual_interface(12, "cali1234", LinkKind::Dummy),
    ]);
    let reasons: Vec<_> = inventory.interfaces.keys().map(|index| reason(&inventory, *index, SHARE)).collect();
    let expected = [
        "not_shareable",
        "member",
        "pod_network",
        "pod_network",
        "pod_network",
        "",
        "",
        "",
        "pod_network",
        "tunnel",
        "tunnel",
        "pod_network",
    ];
    let expected = ["loopback"].into_iter().chain(expected.into_iter().skip(1));
    assert_eq!(reasons, expected.collect::<Vec<_>>());
    assert_eq!(reason(&inventory, 2, ""), "pod");
    assert_eq!((reason(&inventory, 7, ""), reason(&inventory, 8, "")), ("", ""), "a cable with both ends on the host");
    assert_eq!(reason(&inventory, 1, ""), "loopback");
}

#[test]
fn what_the_host_would_lose_is_refused_when_it_is_moved_and_not_when_it_is_shared() {
    let mut representor = on_pci(4, "eth4", "0000:03:00.0");
    representor.device.port_name = Some("pf0vf1".into());
    let inventory = host([
        on_pci(2, "eth0", "0000:01:00.0").with_route("203.0.113.0/24", 254),
        on_pci(3, "eth1", "0000:02:00.0").part_of(9),
        representor,
        virtual_interface(9, "br0", LinkKind::Bridge),
    ]);
    let text = refusal(&inventory, 2, "").unwrap().to_string();
    assert!(text.starts_with("the host's route to 203.0.113.0/24 goes over it"), "{text}");
    assert_eq!((reason(&inventory, 2, SHARE), reason(&inventory, 2, ", allow: [eth0]")), ("", ""));
    assert_eq!((reason(&inventory, 3, ""), reason(&inventory, 3, ", allow: [eth1]")), ("member", ""));
    assert!(
        refusal(&inventory, 3, ", share: {kind: macvlan}, allow: [eth1]").unwrap().to_string().contains("share br0")
    );
    assert_eq!(reason(&inventory, 4, ""), "representor");
}

#[test]
fn an_interface_on_which_nothing_can_be_made_is_not_shared() {
    let mut infiniband = on_pci(2, "ib0", "0000:01:00.0");
    infiniband.link.layer = 32;
    let macvlan = LinkKind::Macvlan { mode: MacvlanMode::Bridge };
    let inventory = host([infiniband, on_pci(3, "eth1", "0000:02:00.0"), virtual_interface(4, "mac0", macvlan).on(3)]);
    assert_eq!(reason(&inventory, 2, SHARE), "not_shareable");
    assert_eq!(reason(&inventory, 2, ""), "");
    assert_eq!(reason(&inventory, 3, SHARE), "");
    let text = refusal(&inventory, 3, ", share: {kind: ipvlan}").unwrap().to_string();
    assert!(text.contains("mac0 is on top of it") && text.contains("set share.kind: macvlan"), "{text}");
}

#[test]
fn a_function_for_user_space_needs_an_iommu_group_of_its_own() {
    let mut inventory = host([on_pci(2, "v0", "0000:3b:02.0"), virtual_interface(3, "dummy0", LinkKind::Dummy)]);
    add_virtual_function(&mut inventory, "0000:3b:02.0", Some("iavf"), 7);
    const DPDK: &str = ", mode: dpdk";
    assert_eq!(reason(&inventory, 2, DPDK), "");
    assert_eq!(reason(&inventory, 3, DPDK), "no_device");
    add_virtual_function(&mut inventory, "0000:3b:02.1", Some("iavf"), 7);
    assert!(refusal(&inventory, 2, DPDK).unwrap().to_string().contains("IOMMU group 7 also has 0000:3b:02.1"));
    inventory.pci.devices.get_mut(&"0000:3b:02.0".parse().unwrap()).unwrap().iommu_group = None;
    assert_eq!(reason(&inventory, 2, DPDK), "no_iommu");
}

#[rstest]
#[case(Some("vfio-pci"), "", "no_device")]
#[case(Some("vfio-pci"), ", mode: dpdk", "")]
#[case(None, ", mode: dpdk", "")]
#[case(Some("iavf"), ", mode: dpdk", "elsewhere")]
#[case(Some("iavf"), "", "elsewhere")]
fn a_function_without_an_interface_is_for_user_space(
    #[case] driver: Option<&str>,
    #[case] rest: &str,
    #[case] expected: &str,
) {
    let mut inventory = host([]);
    add_virtual_function(&mut inventory, "0000:3b:02.0", driver, 7);
    let device = inventory.functions_without_interface().next().unwrap();
    let refusal = refuse_function(&inventory, device, rule(rest).mode);
    assert_eq!(refusal.map_or("", |refusal| refusal.reason()), expected);
}
