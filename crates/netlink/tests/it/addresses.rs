//! Addresses, with duplicate address detection.

use std::time::{Duration, Instant};

use drakkar_netlink::{Address, AddressScope, DadState, LinkChange, NewAddress};

use crate::support::{PATIENCE, TestNamespace, two_namespaces};

const UP: LinkChange<'static> = LinkChange {
    namespace: None,
    index: None,
    name: None,
    mtu: None,
    address: None,
    alias: None,
    master: None,
    up: Some(true),
};

fn of(host: &mut TestNamespace, name: &str) -> Vec<Address> {
    let index = host.link(name).index;
    let mut addresses = host.connection.addresses_of(index).unwrap();
    addresses.retain(|address| address.scope == AddressScope::Global);
    addresses
}

fn new(text: &str) -> NewAddress {
    NewAddress::new(text.parse().unwrap())
}

#[test]
fn addresses_are_added_read_and_deleted() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let broadcast = NewAddress { broadcast: Some("192.0.2.255".parse().unwrap()), ..new("192.0.2.10/24") };
    let labelled = NewAddress { label: Some("left:1".to_owned()), no_prefix_route: true, ..new("192.0.2.11/24") };
    let pointed = NewAddress { peer: Some("198.51.100.2".parse().unwrap()), ..new("198.51.100.1/32") };
    let six = new("2001:db8::10/64").without_dad();
    for address in [&broadcast, &labelled, &pointed, &six] {
        host.connection.add_address(&left, address).unwrap();
    }
    let mut found: Vec<NewAddress> = of(&mut host, "left").iter().map(NewAddress::from).collect();
    for address in &mut found {
        // The kernel's own label is the interface's name.
        address.label = address.label.take().filter(|label| label != "left");
    }
    for address in [&broadcast, &labelled, &pointed, &six] {
        assert!(found.contains(address), "{address:?} in {found:?}");
    }
    assert_eq!(found.len(), 4);
    assert!(of(&mut host, "left").iter().all(|address| address.is_permanent && address.dad == DadState::Done));
    assert_eq!(of(&mut host, "right"), []);

    let error = host.connection.add_address(&left, &broadcast).unwrap_err();
    assert!(error.already_exists() && error.to_string().contains("add address 192.0.2.10/24"), "{error}");
    host.connection.delete_address(&left, pointed.address, pointed.peer).unwrap();
    host.connection.delete_address(&left, six.address, None).unwrap();
    assert_eq!(of(&mut host, "left").len(), 2);
    assert!(host.connection.delete_address(&left, six.address, None).unwrap_err().is_not_found());
}

#[test]
fn an_address_that_another_host_has_fails_duplicate_address_detection() {
    let Some((mut one, mut two)) = two_namespaces() else { return };
    let left = one.veth("left", "right");
    let right = one.link("right");
    one.connection.change_link(&right, &LinkChange { namespace: Some(&two.namespace), ..UP }).unwrap();
    let right = two.link("right");
    two.connection.change_link(&right, &UP).unwrap();
    two.connection.add_address(&right, &new("2001:db8::1/64").without_dad()).unwrap();

    one.connection.add_address(&left, &new("2001:db8::1/64")).unwrap();
    one.connection.add_address(&left, &new("2001:db8::2/64")).unwrap();
    let addresses = one.connection.wait_for_dad(left.index, Instant::now() + PATIENCE).unwrap();
    let state = |text: &str| {
        let address = addresses.iter().find(|address| address.address == text.parse().unwrap());
        address.map(|address| address.dad)
    };
    assert_eq!(state("2001:db8::1/64"), Some(DadState::Failed));
    assert_eq!(state("2001:db8::2/64"), Some(DadState::Done));
}

#[test]
fn waiting_for_duplicate_address_detection_ends_at_the_deadline() {
    let Some(mut host) = TestNamespace::new() else { return };
    let left = host.veth("left", "right");
    let right = host.link("right");
    host.connection.change_link(&right, &UP).unwrap();
    host.connection.add_address(&left, &new("2001:db8::1/64")).unwrap();
    let start = Instant::now();
    let addresses = host.connection.wait_for_dad(left.index, start + Duration::from_millis(20)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
    let address = addresses.iter().find(|address| address.scope == AddressScope::Global).unwrap();
    assert_eq!(address.dad, DadState::Tentative);
}
