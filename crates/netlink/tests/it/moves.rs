//! Interfaces that move between namespaces.

use drakkar_netlink::{HardwareAddress, LinkChange, LinkKind, NewAddress};

use crate::support::{TestNamespace, eventually, two_namespaces};

#[test]
fn a_move_renames_and_configures_in_one_request_and_back() {
    let Some((mut host, mut pod)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    let mac: HardwareAddress = "02:00:5e:10:00:01".parse().unwrap();
    let former = left.address.clone().unwrap();
    let there = LinkChange {
        namespace: Some(&pod.namespace),
        name: Some("net1"),
        mtu: Some(1400),
        address: Some(&mac),
        alias: Some("claim 1"),
        ..LinkChange::default()
    };
    host.connection.change_link(&left, &there).unwrap();
    assert_eq!(host.names(), ["lo", "right"]);
    let net1 = pod.link("net1");
    assert_eq!((net1.mtu, net1.address.as_ref(), net1.is_up), (1400, Some(&mac), false));
    assert_eq!(net1.alias.as_deref(), Some("claim 1"));

    let back = LinkChange {
        namespace: Some(&host.namespace),
        index: Some(left.index),
        name: Some("left"),
        mtu: Some(1500),
        address: Some(&former),
        alias: Some(""),
        up: Some(true),
        ..LinkChange::default()
    };
    pod.connection.change_link(&net1, &back).unwrap();
    assert_eq!(pod.names(), ["lo"]);
    let mut again = host.link("left");
    again.parent = left.parent;
    assert_eq!(
        (again.index, again.mtu, again.address, again.alias, again.is_up),
        (left.index, 1500, Some(former), None, true)
    );
}

#[test]
fn a_move_to_where_index_and_name_are_taken_gets_others() {
    let Some((mut host, mut pod)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    pod.veth("left", "other");
    let taken = pod.connection.link(left.index).unwrap();
    assert!(taken.is_some(), "both namespaces count alike");
    let change = |name| LinkChange { namespace: Some(&pod.namespace), name, ..LinkChange::default() };
    let error = host.connection.change_link(&left, &change(None)).unwrap_err();
    assert!(error.already_exists(), "{error}");
    assert!(host.connection.link(left.index).unwrap().is_some(), "it has not moved");

    host.connection.change_link(&left, &change(Some("net1"))).unwrap();
    assert_ne!(pod.link("net1").index, left.index);
    assert_eq!(pod.connection.link(left.index).unwrap(), taken);
}

#[test]
fn a_move_loses_the_addresses() {
    let Some((mut host, mut pod)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    host.connection.add_address(&left, &NewAddress::new("192.0.2.1/24".parse().unwrap())).unwrap();
    host.connection
        .change_link(&left, &LinkChange { namespace: Some(&pod.namespace), ..LinkChange::default() })
        .unwrap();
    let link = pod.link("left");
    assert_eq!(pod.connection.addresses_of(link.index).unwrap(), []);
    assert_eq!(host.connection.addresses_of(left.index).unwrap(), []);
}

#[test]
fn a_virtual_interface_dies_with_its_namespace() {
    let Some((mut host, pod)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    assert!(LinkKind::Veth.dies_with_its_namespace() && !LinkKind::Device.dies_with_its_namespace());
    host.connection
        .change_link(&left, &LinkChange { namespace: Some(&pod.namespace), ..LinkChange::default() })
        .unwrap();
    let TestNamespace { namespace, connection } = pod;
    drop(namespace);
    assert_eq!(host.names(), ["lo", "right"], "a connection keeps the namespace alive");
    drop(connection);
    eventually("both ends are gone", || (host.names() == ["lo"]).then_some(()));
}
