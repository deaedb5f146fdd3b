//! Addresses with duplicate address detection, routes with tables, and rules, on real cards and as iproute2 reads them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use drakkar_netlink::{AddressScope, DadState, NewAddress, NewRoute, NewRule, RouteType};

use super::Network;
use super::iproute::Iproute;
use crate::ensure_eq;
use crate::guest::Guest;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn test(guest: &mut Guest) -> Result<()> {
    let iproute = Iproute::new()?;
    let mut host = Network::host()?;
    let (mut one, mut two) = (Network::new()?, Network::new()?);
    let card = host.device(guest.address("nic0")?)?;
    let left = host.give(&card, &mut one, "net1")?;
    let card = host.device(guest.address("nic1")?)?;
    let right = host.give(&card, &mut two, "net1")?;
    one.set_up(&left)?;
    two.set_up(&right)?;

    two.add(&right, "2001:db8::1/64")?;
    let new = |text: &str| Ok::<_, anyhow::Error>(NewAddress::new(text.parse()?));
    let broadcast = NewAddress { broadcast: Some("192.0.2.255".parse()?), ..new("192.0.2.10/24")? };
    let secondary = NewAddress { label: Some("net1:x".to_owned()), no_prefix_route: true, ..new("192.0.2.11/24")? };
    let pointed = NewAddress { peer: Some("198.51.100.2".parse()?), ..new("198.51.100.1/32")? };
    let local = NewAddress { scope: AddressScope::Link, ..new("169.254.1.1/16")? };
    let taken = new("2001:db8::1/64")?;
    let free = new("2001:db8::2/64")?;
    for address in [&broadcast, &secondary, &pointed, &local, &taken, &free] {
        one.connection.add_address(&left, address)?;
    }
    let state = |network: &mut Network, address: &NewAddress| {
        let found = network.connection.addresses_of(left.index)?;
        let found = found.iter().find(|found| found.address == address.address).context("the address")?;
        Ok::<_, anyhow::Error>(found.dad)
    };
    ensure_eq!(state(&mut one, &free)?, DadState::Tentative);
    one.connection.wait_for_dad(left.index, Instant::now() + PATIENCE)?;
    ensure_eq!(state(&mut one, &free)?, DadState::Done);
    ensure_eq!(state(&mut one, &taken)?, DadState::Failed, "the other card has it");
    iproute.compare(&mut one)?;
    iproute.compare(&mut two)?;

    routes(&mut one, left.index)?;
    iproute.compare(&mut one)?;
    iproute.compare(&mut host)?;
    // With the interface its addresses and routes are gone; the rules are the namespace's.
    let rules = one.connection.rules()?;
    one.give(&left, &mut host, &card.name)?;
    ensure_eq!(one.connection.rules()?, rules);
    iproute.compare(&mut one)?;
    iproute.compare(&mut host)
}

fn routes(network: &mut Network, index: u32) -> Result<()> {
    let to = |text: &str| Ok::<_, anyhow::Error>(NewRoute::new(text.parse()?, index));
    let routes = [
        NewRoute { gateway: Some("192.0.2.1".parse()?), metric: Some(100), ..to("0.0.0.0/0")? },
        NewRoute { gateway: Some("192.0.2.1".parse()?), table: 1000, ..to("203.0.113.0/24")? },
        NewRoute { gateway: Some("10.9.9.9".parse()?), on_link: true, ..to("10.1.0.0/16")? },
        NewRoute { source: Some("192.0.2.10".parse()?), mtu: Some(1300), ..to("10.2.0.0/16")? },
        NewRoute { kind: RouteType::BlackHole, interface: None, ..to("10.3.0.0/16")? },
        NewRoute { gateway: Some("2001:db8::ff".parse()?), ..to("::/0")? },
        NewRoute { table: 4_000_000, ..to("2001:db8:1::/48")? },
    ];
    for route in &routes {
        network.connection.add_route(route)?;
    }
    let rule = |is_ipv6, priority, table| NewRule {
        is_ipv6,
        priority: Some(priority),
        from: None,
        to: None,
        input: None,
        output: None,
        mark: None,
        table,
    };
    let rules = [
        NewRule { from: Some("192.0.2.10/32".parse()?), ..rule(false, 100, 1000) },
        NewRule { to: Some("10.0.0.0/8".parse()?), input: Some("net1".to_owned()), ..rule(false, 101, 254) },
        NewRule { mark: Some((0x10, 0xff)), ..rule(false, 102, 1000) },
        NewRule { from: Some("2001:db8::/64".parse()?), output: Some("net1".to_owned()), ..rule(true, 100, 4_000_000) },
    ];
    for rule in &rules {
        network.connection.add_rule(rule)?;
    }
    let found = network.connection.routes_of(index)?;
    for route in routes.iter().filter(|route| route.interface.is_some()) {
        let is_it =
            |found: &&drakkar_netlink::Route| found.destination == route.destination && found.table == route.table;
        let found = found.iter().find(is_it).with_context(|| format!("no {route:?}"))?;
        ensure_eq!((found.gateway, found.source, found.mtu), (route.gateway, route.source, route.mtu));
    }
    ensure_eq!(network.connection.rules()?.iter().filter(|rule| (100..=102).contains(&rule.priority)).count(), 4);
    Ok(())
}
