//! The inventory of a host, read and kept up to date by the kernel's events.

use std::time::{Duration, Instant};

use drakkar_net::inventory::{Changed, Host, HostInterface, Inventory};
use drakkar_netlink::{Child, Event, LinkChange, MacvlanMode, Namespace, NewLink, NewLinkKind};
use drakkar_sysfs::bind_to;
use drakkar_sysfs::simulation::{Description, Simulation};

use crate::support::{PATIENCE, TestHost};

fn by_name<'a>(inventory: &'a Inventory, name: &str) -> Option<&'a HostInterface> {
    inventory.interfaces.values().find(|interface| interface.link.name == name)
}

fn kind(inventory: &Inventory, name: &str) -> String {
    by_name(inventory, name).map(|interface| inventory.kind(interface).to_string()).unwrap_or_default()
}

#[test]
fn interfaces_are_read_with_their_kinds_addresses_and_routes() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    let bridge = host.bridge("br0");
    let right = host.link("right");
    let member = LinkChange { master: Some(bridge.index), ..LinkChange::default() };
    host.connection.change_link(&right, &member).unwrap();
    let child = Child::Macvlan { mode: MacvlanMode::Bridge };
    let kind_of_child = NewLinkKind::Child { parent: left.index, child };
    host.connection.create_link(&NewLink::new("mac0", kind_of_child)).unwrap();
    host.add_address(&left, "198.51.100.1/24");
    host.add_address(&left, "2001:db8::1/64");
    let route = host.route("203.0.113.0/24", &left, 77);
    host.connection.add_route(&route).unwrap();

    let inventory = host.open().scan().unwrap();
    let kinds: Vec<String> = ["lo", "left", "right", "br0", "mac0"].iter().map(|name| kind(&inventory, name)).collect();
    assert_eq!(kinds, ["loopback", "veth", "veth", "bridge", "macvlan"]);
    let left = by_name(&inventory, "left").unwrap();
    let mut addresses: Vec<String> = left.reachable_addresses().map(|address| address.to_string()).collect();
    addresses.sort();
    assert_eq!(addresses, ["198.51.100.1", "2001:db8::1"]);
    let routes: Vec<_> = left.routes.iter().map(|route| (route.destination.to_string(), route.table)).collect();
    assert_eq!(routes, [("203.0.113.0/24".to_owned(), 77)], "routes that the kernel makes do not count");
    assert_eq!(by_name(&inventory, "right").unwrap().link.master, Some(bridge.index));
    assert!(!left.is_of_pod());
}

#[test]
fn an_inventory_that_follows_events_is_as_one_that_is_read_anew() {
    let Some(mut host) = TestHost::new() else { return };
    let pod = Namespace::unshared().unwrap();
    let mut open = host.open();
    let mut inventory = open.scan().unwrap();
    let left = host.veth("left", "right");
    host.follow(&mut inventory, &mut open, "left comes", |now| by_name(now, "left").is_some());
    host.add_address(&left, "198.51.100.1/24");
    host.follow(&mut inventory, &mut open, "its address comes", |now| {
        by_name(now, "left").is_some_and(|left| left.reachable_addresses().count() == 1)
    });
    host.connection
        .change_link(&left, &LinkChange { name: Some("data0"), mtu: Some(1400), ..LinkChange::default() })
        .unwrap();
    host.follow(&mut inventory, &mut open, "it is renamed", |now| {
        by_name(now, "data0").is_some_and(|link| link.link.mtu == 1400)
    });
    let (first, second) = (host.route("0.0.0.0/0", &left, 254), host.route("203.0.113.0/24", &left, 100));
    host.connection.add_route(&first).unwrap();
    host.connection.add_route(&second).unwrap();
    host.follow(&mut inventory, &mut open, "its routes come", |now| {
        by_name(now, "data0").is_some_and(|link| link.routes.len() == 2)
    });
    // Addresses that the kernel makes itself are reported when nobody else has them.
    let mut other = host.open();
    let is_up_to_date = |now: &Inventory| now.interfaces == other.scan().unwrap().interfaces;
    host.follow(&mut inventory, &mut open, "it is as read anew", is_up_to_date);

    host.connection.delete_route(&first).unwrap();
    host.follow(&mut inventory, &mut open, "the default route goes", |now| {
        by_name(now, "data0").is_some_and(|link| link.routes.len() == 1)
    });
    let right = host.link("right");
    host.move_to(&right, &pod);
    host.follow(&mut inventory, &mut open, "right is in a pod", |now| by_name(now, "right").is_none());
    host.follow(&mut inventory, &mut open, "left is a pod's", |now| {
        by_name(now, "data0").is_some_and(HostInterface::is_of_pod)
    });
    host.connection.delete_link(&left).unwrap();
    host.follow(&mut inventory, &mut open, "left is gone", |now| now.interfaces.len() == 1);
}

#[test]
fn an_event_changes_the_interface_that_it_names_and_no_other() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    host.veth("other", "another");
    let mut open = host.open();
    let mut inventory = open.scan().unwrap();
    host.connection.change_link(&left, &LinkChange { mtu: Some(1400), ..LinkChange::default() }).unwrap();
    let link = host.link("left");
    let event = Event::Link(link.clone());
    let changed = inventory.apply(&mut open, std::slice::from_ref(&event)).unwrap();
    assert_eq!(changed, Changed { interfaces: [left.index].into(), ..Changed::default() });
    assert!(inventory.apply(&mut open, &[event]).unwrap().is_empty(), "the same again is no change");

    let removed = inventory.apply(&mut open, &[Event::LinkRemoved(link)]).unwrap();
    assert_eq!(removed.interfaces, [left.index].into());
    let changed = inventory.apply(&mut open, &[Event::Overrun]).unwrap();
    assert!(changed.all && by_name(&inventory, "left").is_some(), "lost events are made up for");
    // The kernel goes on by itself meanwhile: it gives the other interfaces IPv6 addresses, and checks that nobody else has them.
    let deadline = Instant::now() + PATIENCE;
    while !inventory.apply(&mut open, &[Event::Overrun]).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "a host at rest is read as changed");
        host.monitor.wait(Duration::from_millis(100)).unwrap();
    }
}

#[test]
fn a_route_that_takes_the_place_of_another_is_not_kept_beside_it() {
    let Some(mut host) = TestHost::new() else { return };
    let left = host.veth("left", "right");
    let other = host.veth("other", "another");
    let over_left = host.route("203.0.113.0/24", &left, 254);
    host.connection.add_route(&over_left).unwrap();
    let mut open = host.open();
    let mut inventory = open.scan().unwrap();
    assert_eq!(by_name(&inventory, "left").unwrap().routes.len(), 1);
    // As if it were replaced: the kernel then reports the new one alone.
    host.connection.delete_route(&over_left).unwrap();
    let over_other = host.route("203.0.113.0/24", &other, 254);
    host.connection.add_route(&over_other).unwrap();
    let new = host.connection.routes_of(other.index).unwrap().into_iter().find(|route| !route.is_automatic()).unwrap();
    inventory.apply(&mut open, &[Event::Route(new)]).unwrap();
    assert_eq!(by_name(&inventory, "left").unwrap().routes, []);
    assert_eq!(by_name(&inventory, "other").unwrap().routes.len(), 1);
}

#[test]
fn a_function_that_is_bound_for_user_space_is_followed_by_uevents() {
    let Some(host) = TestHost::new() else { return };
    let description: Description = serde_json::from_value(serde_json::json!({
        "drivers": [{"name": "iavf", "ids": ["8086:1889"]}],
        "devices": [
            {"address": "0000:3b:02.0", "vendor": "8086", "device": "1889", "class": "020000", "iommuGroup": 7},
            {"address": "0000:00:1f.0", "vendor": "8086", "device": "a30d", "class": "060100"},
        ],
    }))
    .unwrap();
    let machine = Simulation::create(host.directory.path(), &description).unwrap();
    let uevents = machine.uevents();
    let mut open = Host::open(&host.namespace, machine.sysfs()).unwrap();
    let mut inventory = open.scan().unwrap();
    let driver = |inventory: &Inventory| {
        let functions: Vec<_> = inventory.functions_without_interface().collect();
        assert_eq!(functions.len(), 1, "no other device is for networks");
        functions[0].driver.clone()
    };
    assert_eq!(driver(&inventory).as_deref(), Some("iavf"));
    bind_to(&machine.sysfs(), "0000:3b:02.0".parse().unwrap(), "vfio-pci").unwrap();
    let events: Vec<_> = uevents.try_iter().collect();
    let changed = inventory.apply_devices(&mut open, &events).unwrap();
    assert!(changed.functions && !changed.all);
    assert_eq!(driver(&inventory).as_deref(), Some("vfio-pci"));
    assert!(inventory.apply_devices(&mut open, &[]).unwrap().is_empty());
}
