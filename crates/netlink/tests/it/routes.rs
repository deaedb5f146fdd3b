//! Routes and rules.

use drakkar_netlink::{NewAddress, NewRoute, NewRule, Route, RouteScope, RouteType, TABLE_LOCAL, TABLE_MAIN};

use crate::support::TestNamespace;

/// A namespace with an interface that has an address of each family.
fn host() -> Option<(TestNamespace, u32)> {
    let mut host = TestNamespace::new()?;
    let left = host.veth("left", "right");
    let right = host.link("right");
    let up = drakkar_netlink::LinkChange { up: Some(true), ..Default::default() };
    host.connection.change_link(&right, &up).unwrap();
    for address in ["192.0.2.10/24", "2001:db8::10/64"] {
        host.connection.add_address(&left, &NewAddress::new(address.parse().unwrap()).without_dad()).unwrap();
    }
    Some((host, left.index))
}

fn find<'a>(routes: &'a [Route], destination: &str, table: u32) -> Option<&'a Route> {
    routes.iter().find(|route| route.destination == destination.parse().unwrap() && route.table == table)
}

#[test]
fn the_kernels_own_routes_are_read() {
    let Some((mut host, index)) = host() else { return };
    let routes = host.connection.routes().unwrap();
    let network = find(&routes, "192.0.2.0/24", TABLE_MAIN).unwrap();
    assert_eq!((network.interface, network.scope, network.kind), (Some(index), RouteScope::Link, RouteType::Unicast));
    assert_eq!((network.source, network.gateway), (Some("192.0.2.10".parse().unwrap()), None));
    assert!(network.is_automatic() && !network.is_default());
    assert_eq!(find(&routes, "192.0.2.10/32", TABLE_LOCAL).unwrap().kind, RouteType::Local);
    assert!(find(&routes, "2001:db8::/64", TABLE_MAIN).is_some());
    let of_interface = host.connection.routes_of(index).unwrap();
    assert!(!of_interface.is_empty() && of_interface.iter().all(|route| route.uses(index)));
}

#[test]
fn routes_are_added_to_any_table_read_and_deleted() {
    let Some((mut host, index)) = host() else { return };
    let new = |destination: &str| NewRoute::new(destination.parse().unwrap(), index);
    let gateway = |text: &str| Some(text.parse().unwrap());
    let added = [
        NewRoute { gateway: gateway("192.0.2.1"), metric: Some(100), ..new("0.0.0.0/0") },
        NewRoute {
            gateway: gateway("192.0.2.1"),
            table: 100_000,
            source: gateway("192.0.2.10"),
            ..new("198.51.100.0/24")
        },
        NewRoute { mtu: Some(1400), ..new("203.0.113.0/24") },
        NewRoute { gateway: gateway("203.0.113.77"), on_link: true, table: 77, ..new("0.0.0.0/0") },
        NewRoute { gateway: gateway("2001:db8::1"), metric: Some(1024), ..new("::/0") },
        NewRoute { table: 77, metric: Some(1024), ..new("2001:db8:1::/48") },
        NewRoute { gateway: gateway("2001:db8::1"), table: 78, ..new("10.0.0.0/8") },
    ];
    for route in &added {
        host.connection.add_route(route).unwrap();
        assert!(host.connection.add_route(route).unwrap_err().already_exists());
    }
    let routes = host.connection.routes_of(index).unwrap();
    for route in &added {
        let found = find(&routes, &route.destination.to_string(), route.table).unwrap_or_else(|| panic!("{route:?}"));
        assert_eq!(NewRoute { scope: route.scope, ..NewRoute::from(found) }, *route);
        assert_eq!(found.is_default(), route.destination.prefix_len() == 0);
    }
    for route in &added {
        host.connection.delete_route(route).unwrap();
        assert!(host.connection.delete_route(route).unwrap_err().is_not_found());
    }
    let error =
        host.connection.add_route(&NewRoute { gateway: gateway("198.18.0.1"), ..new("198.51.100.0/24") }).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("add route to 198.51.100.0/24 in table 254 via 198.18.0.1"), "{text}");
    assert!(text.contains("Nexthop has invalid gateway"), "{text}");
}

#[test]
fn rules_are_added_read_and_deleted() {
    let Some((mut host, _)) = host() else { return };
    let all = NewRule {
        is_ipv6: false,
        priority: Some(100),
        from: None,
        to: None,
        input: None,
        output: None,
        mark: None,
        table: 77,
    };
    let added = [
        NewRule { from: Some("192.0.2.10/32".parse().unwrap()), ..all.clone() },
        NewRule {
            to: Some("198.51.100.0/24".parse().unwrap()),
            mark: Some((0x10, 0xff)),
            table: 100_000,
            ..all.clone()
        },
        NewRule { input: Some("left".to_owned()), output: Some("right".to_owned()), ..all.clone() },
        NewRule { is_ipv6: true, from: Some("2001:db8::/64".parse().unwrap()), ..all.clone() },
    ];
    let before = host.connection.rules().unwrap();
    for rule in &added {
        host.connection.add_rule(rule).unwrap();
        let error = host.connection.add_rule(rule).unwrap_err();
        assert!(error.already_exists() && error.to_string().contains("add rule 100: from"), "{error}");
    }
    let rules = host.connection.rules().unwrap();
    assert_eq!(rules.len(), before.len() + added.len());
    for rule in &added {
        let is_found = rules.iter().any(|found| {
            found.is_ipv6 == rule.is_ipv6
                && Some(found.priority) == rule.priority
                && (found.from, found.to, found.mark) == (rule.from, rule.to, rule.mark)
                && (&found.input, &found.output) == (&rule.input, &rule.output)
                && found.table == Some(rule.table)
        });
        assert!(is_found, "{rule:?} in {rules:?}");
    }
    for rule in &added {
        host.connection.delete_rule(rule).unwrap();
    }
    assert_eq!(host.connection.rules().unwrap(), before);
}
