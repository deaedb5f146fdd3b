//! Events.

use drakkar_netlink::{Event, LinkChange, Monitor, NewAddress, NewLink, NewLinkKind};

use crate::support::{PATIENCE, two_namespaces};

/// Reads events until one is as expected.
fn until(monitor: &mut Monitor, what: &str, is_it: impl Fn(&Event) -> bool) {
    loop {
        let events = monitor.wait(PATIENCE).unwrap();
        assert!(!events.is_empty(), "{what}");
        if events.iter().any(&is_it) {
            return;
        }
    }
}

#[test]
fn changes_of_links_addresses_and_routes_are_reported() {
    let Some((mut host, pod)) = two_namespaces() else { return };
    let mut monitor = Monitor::open(&host.namespace).unwrap();
    assert_eq!(monitor.receive().unwrap(), []);
    let left = host.veth("left", "right");
    until(&mut monitor, "left comes", |event| matches!(event, Event::Link(link) if link.name == "left"));

    let address = NewAddress::new("192.0.2.10/24".parse().unwrap());
    host.connection.add_address(&left, &address).unwrap();
    until(
        &mut monitor,
        "its address comes",
        |event| matches!(event, Event::Address(new) if new.address == address.address),
    );
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    let right = host.link("right");
    host.connection.change_link(&right, &up).unwrap();
    until(&mut monitor, "its route comes", |event| {
        matches!(event, Event::Route(route) if route.destination == "192.0.2.0/24".parse().unwrap())
            || matches!(event, Event::Link(link) if link.name == "left" && link.is_running)
    });
    host.connection.delete_address(&left, address.address, None).unwrap();
    until(
        &mut monitor,
        "its address goes",
        |event| matches!(event, Event::AddressRemoved(old) if old.address == address.address),
    );

    host.connection
        .change_link(&left, &LinkChange { namespace: Some(&pod.namespace), ..LinkChange::default() })
        .unwrap();
    until(&mut monitor, "left goes", |event| matches!(event, Event::LinkRemoved(link) if link.name == "left"));
}

#[test]
fn an_interface_that_leaves_a_bridge_is_not_reported_as_gone() {
    let Some((mut host, _)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    host.connection.create_link(&NewLink::new("br0", NewLinkKind::Bridge)).unwrap();
    let bridge = host.link("br0");
    let master = |index| LinkChange { master: Some(index), ..LinkChange::default() };
    host.connection.change_link(&left, &master(bridge.index)).unwrap();
    let mut monitor = Monitor::open(&host.namespace).unwrap();
    host.connection.change_link(&left, &master(0)).unwrap();
    host.connection.change_link(&left, &LinkChange { alias: Some("last"), ..LinkChange::default() }).unwrap();
    loop {
        let events = monitor.wait(PATIENCE).unwrap();
        assert!(!events.is_empty());
        assert!(!events.iter().any(|event| matches!(event, Event::LinkRemoved(_))), "{events:?}");
        if events.iter().any(|event| matches!(event, Event::Link(link) if link.alias.as_deref() == Some("last"))) {
            return;
        }
    }
}

#[test]
fn events_that_were_dropped_are_reported_as_an_overrun() {
    let Some((mut host, _)) = two_namespaces() else { return };
    let left = host.veth("left", "right");
    let mut monitor = Monitor::open(&host.namespace).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 1).unwrap();
    for number in 0..200 {
        let alias = number.to_string();
        host.connection.change_link(&left, &LinkChange { alias: Some(&alias), ..LinkChange::default() }).unwrap();
    }
    until(&mut monitor, "an overrun", |event| *event == Event::Overrun);
    host.connection.change_link(&left, &LinkChange { alias: Some("last"), ..LinkChange::default() }).unwrap();
    until(
        &mut monitor,
        "it goes on",
        |event| matches!(event, Event::Link(link) if link.alias.as_deref() == Some("last")),
    );
}
