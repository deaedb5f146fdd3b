//! Reading, making, changing and deleting interfaces.

use drakkar_netlink::{
    Child, Errno, Error, HardwareAddress, IpvlanFlag, IpvlanMode, LinkChange, LinkKind, MacvlanMode, NewLink,
    NewLinkKind, OperationalState, VlanProtocol,
};
use rstest::rstest;

use crate::support::{TestNamespace, eventually};

const MAC: &str = "02:00:5e:10:00:01";

fn mac(text: &str) -> HardwareAddress {
    text.parse().unwrap()
}

#[test]
fn a_link_is_read_with_all_that_the_kernel_tells() {
    let Some(mut host) = TestNamespace::new() else { return };
    let kind = NewLinkKind::Veth { peer: "right", peer_namespace: None };
    let address = mac(MAC);
    let new = NewLink { mtu: Some(1400), address: Some(&address), ..NewLink::new("left", kind) };
    host.connection.create_link(&new).unwrap();
    let left = host.link("left");
    let right = host.link("right");
    assert_eq!((left.mtu, left.address.as_ref(), &left.kind), (1400, Some(&address), &LinkKind::Veth));
    assert_eq!((left.permanent_address.as_ref(), left.device.as_ref(), left.alias.as_ref()), (None, None, None));
    assert_eq!(left.parent.unwrap().index, right.index);
    assert_eq!(left.parent.unwrap().namespace, None);
    assert!(!left.is_up && !left.is_running && !left.is_loopback && !left.has_xdp);
    assert_eq!(
        (left.state, left.layer, left.min_mtu, left.max_mtu),
        (OperationalState::Down, 1, Some(68), Some(65535))
    );
    assert_eq!(host.connection.link(left.index).unwrap().unwrap(), left);
    assert!(host.connection.links().unwrap().contains(&left));

    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    host.connection.change_link(&left, &up).unwrap();
    host.connection.change_link(&right, &up).unwrap();
    let left = eventually("left is up", || Some(host.link("left")).filter(|left| left.state == OperationalState::Up));
    assert!(left.is_up && left.is_running && left.carrier == Some(true));
}

#[test]
fn several_changes_are_one_request() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let address = mac(MAC);
    let change = LinkChange {
        name: Some("net1"),
        mtu: Some(1300),
        address: Some(&address),
        alias: Some("claim default/train"),
        up: Some(false),
        ..LinkChange::default()
    };
    host.connection.change_link(&left, &LinkChange { up: Some(false), ..LinkChange::default() }).unwrap();
    host.connection.change_link(&left, &change).unwrap();
    let link = host.link("net1");
    assert_eq!((link.index, link.mtu, link.address, link.is_up), (left.index, 1300, Some(address), false));
    assert_eq!(link.alias.as_deref(), Some("claim default/train"));
    assert_eq!(host.connection.link_by_name("left").unwrap(), None);

    host.connection.change_link(&left, &LinkChange { alias: Some(""), ..LinkChange::default() }).unwrap();
    assert_eq!(host.link("net1").alias, None);
}

#[test]
fn alternative_names_are_added_found_and_deleted() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let names = ["storage-network-uplink", "second"].map(str::to_owned);
    host.connection.add_alt_names(&left, &names).unwrap();
    assert_eq!(host.link("left").alt_names, names);
    assert_eq!(host.connection.link_by_name("storage-network-uplink").unwrap().unwrap().index, left.index);
    let taken = host.connection.add_alt_names(&left, &["right".to_owned()]).unwrap_err();
    assert!(taken.already_exists() && taken.to_string().contains("add the alternative names right"), "{taken}");
    host.connection.delete_alt_names(&left, &names[..1]).unwrap();
    assert_eq!(host.link("left").alt_names, names[1..]);
}

#[test]
fn a_bridge_has_its_interfaces_and_loses_them() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    host.connection.create_link(&NewLink::new("br0", NewLinkKind::Bridge)).unwrap();
    let bridge = host.link("br0");
    assert_eq!(bridge.kind, LinkKind::Bridge);
    let master = |index| LinkChange { master: Some(index), ..LinkChange::default() };
    host.connection.change_link(&left, &master(bridge.index)).unwrap();
    assert_eq!(host.link("left").master, Some(bridge.index));
    assert_eq!(host.link("left").kind, LinkKind::Veth);
    host.connection.change_link(&left, &master(0)).unwrap();
    assert_eq!(host.link("left").master, None);
}

#[rstest]
#[case(MacvlanMode::Private)]
#[case(MacvlanMode::Vepa)]
#[case(MacvlanMode::Bridge)]
#[case(MacvlanMode::Passthru)]
#[case(MacvlanMode::Source)]
fn a_macvlan_is_made_directly_in_another_namespace(#[case] mode: MacvlanMode) {
    let Some((mut host, mut pod)) = crate::support::two_namespaces() else { return };
    let parent = host.veth("left", "right");
    let child = NewLinkKind::Child { parent: parent.index, child: Child::Macvlan { mode } };
    let new = NewLink { namespace: Some(&pod.namespace), mtu: Some(1400), up: true, ..NewLink::new("net1", child) };
    host.connection.create_link(&new).unwrap();
    assert_eq!(host.names(), ["lo", "right", "left"]);
    let net1 = pod.link("net1");
    assert_eq!((&net1.kind, net1.mtu, net1.is_up), (&LinkKind::Macvlan { mode }, 1400, true));
    assert_eq!(net1.parent.unwrap().index, parent.index);
    assert!(net1.parent.unwrap().namespace.is_some());
}

#[rstest]
#[case::dummy(None)]
#[case::vlan(Some(Child::Vlan { id: 42, protocol: VlanProtocol::Dot1Ad }))]
#[case::ipvlan(Some(Child::Ipvlan { mode: IpvlanMode::L3s, flag: IpvlanFlag::Private }))]
fn a_kind_that_the_kernel_may_lack_is_made_or_refused_clearly(#[case] child: Option<Child>) {
    let Some(mut host) = TestNamespace::new() else { return };
    let parent = host.veth("left", "right").index;
    let kind = child.map_or(NewLinkKind::Dummy, |child| NewLinkKind::Child { parent, child });
    match host.connection.create_link(&NewLink::new("new0", kind)) {
        Ok(()) => {
            let expected = match child {
                Some(Child::Vlan { id, .. }) => LinkKind::Vlan { id },
                Some(Child::Ipvlan { mode, .. }) => LinkKind::Ipvlan { mode },
                _ => LinkKind::Dummy,
            };
            let link = host.link("new0");
            assert_eq!((link.kind, link.parent.map(|parent| parent.index)), (expected, child.map(|_| parent)));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(error.is_unsupported() && text.contains("create interface new0"), "{text}");
            assert!(text.contains("Unknown device type"), "the kernel's explanation: {text}");
        }
    }
}

#[test]
fn an_error_names_the_request_the_interface_and_the_kernels_explanation() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let change = LinkChange { mtu: Some(70_000), ..LinkChange::default() };
    let error = host.connection.change_link(&left, &change).unwrap_err();
    let expected = format!(
        "interface left (index {}): set MTU 70000: Invalid argument (os error 22): mtu greater than device maximum",
        left.index
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.errno(), Some(Errno::INVAL));

    let error = host.connection.create_link(&NewLink::new("left", NewLinkKind::Bridge)).unwrap_err();
    assert!(error.already_exists(), "{error}");
    let error = host.connection.delete_link(4711).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("index 4711"), "{error}");
}

#[rstest]
#[case("")]
#[case("sixteen-letters-")]
#[case("a/b")]
#[case("a b")]
#[case("eth%d")]
fn a_name_that_no_interface_can_have_is_refused_before_the_kernel_sees_it(#[case] name: &str) {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let error = host.connection.change_link(&left, &LinkChange { name: Some(name), ..LinkChange::default() });
    assert!(matches!(error, Err(Error::Invalid { .. })));
    assert!(host.connection.link_by_name("left").unwrap().is_some());
}

#[test]
fn a_missing_interface_is_none_and_not_an_error() {
    let Some(mut host) = TestNamespace::new() else { return };
    assert_eq!(host.connection.link(4711).unwrap(), None);
    assert_eq!(host.connection.link_by_name("nothing").unwrap(), None);
    assert_eq!(host.connection.link_by_name("a-name-that-only-an-alternative-can-have").unwrap(), None);
    assert_eq!(host.connection.addresses_of(4711).unwrap(), []);
    assert_eq!(host.connection.routes_of(4711).unwrap(), []);
}

#[test]
fn a_deleted_cable_is_gone_at_both_ends() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    host.connection.delete_link(&left).unwrap();
    assert_eq!(host.names(), ["lo"]);
}

#[test]
fn a_table_that_changes_while_it_is_read_is_still_one_state() {
    let Some(mut host) = TestNamespace::new() else { return };
    // Enough interfaces for several datagrams.
    for number in 0..100 {
        host.veth(&format!("fixed{number}a"), &format!("fixed{number}b"));
    }
    let mut other = drakkar_netlink::Connection::open(&host.namespace).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let kind = NewLinkKind::Veth { peer: "comes-b", peer_namespace: None };
                other.create_link(&NewLink::new("comes-a", kind)).unwrap();
                let link = other.link_by_name("comes-a").unwrap().unwrap();
                other.delete_link(&link).unwrap();
            }
        });
        for _ in 0..20 {
            match host.connection.links() {
                Ok(links) => {
                    let fixed = links.iter().filter(|link| link.name.starts_with("fixed")).count();
                    let comes = links.iter().filter(|link| link.name.starts_with("comes")).count();
                    // Both ends of a pair come in one change, and go in one or two.
                    assert!(fixed == 200 && comes <= 2, "{fixed} {comes}");
                }
                // Permitted, as long as it is not half a table.
                Err(Error::Interrupted { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
