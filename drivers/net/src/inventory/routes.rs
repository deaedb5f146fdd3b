//! The routes over interfaces that somebody has configured.
//!
//! A node can have a hundred thousand routes. Of an interface a few are kept: whether there are any, and whether one leads to
//! everywhere, is all that matters. Routes that the kernel makes with each address do not count, and those over the interfaces of
//! pods and tunnels are not looked at: they are never published.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use drakkar_netlink::{Route, RouteType, TABLE_LOCAL};
use ipnet::IpNet;

use super::{Changed, Host, HostInterface, Inventory, InventoryError};

/// The most routes of an interface that are kept. All routes that lead to everywhere are.
const MAX: usize = 8;

/// A route over an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteUse {
    /// The destination.
    pub destination: IpNet,
    /// The table.
    pub table: u32,
    /// The preferred source address.
    pub source: Option<IpAddr>,
}

impl RouteUse {
    /// Returns whether it leads to everywhere, or to the half of it: `0.0.0.0/0`, `128.0.0.0/1`, `2000::/3`.
    pub fn is_default(&self) -> bool {
        leads_everywhere(&self.destination)
    }
}

fn leads_everywhere(destination: &IpNet) -> bool {
    let is_unicast = |network: &ipnet::Ipv6Net| network.prefix_len() == 3 && network.addr().segments()[0] == 0x2000;
    destination.prefix_len() <= 1 || matches!(destination, IpNet::V6(network) if is_unicast(network))
}

/// Returns whether a route is one that somebody has configured.
fn is_configured(route: &Route) -> bool {
    let is_default = leads_everywhere(&route.destination);
    route.kind == RouteType::Unicast && route.table != TABLE_LOCAL && (is_default || !route.is_automatic())
}

/// Returns the interfaces that a route goes over.
fn interfaces_of(route: &Route) -> impl Iterator<Item = u32> {
    route.interface.into_iter().chain(route.next_hops.iter().map(|hop| hop.interface))
}

/// The interfaces whose routes have to be read again.
#[derive(Debug, Default)]
pub(super) struct StaleRoutes {
    interfaces: BTreeSet<u32>,
    is_all: bool,
}

impl StaleRoutes {
    /// Returns the routes of one interface.
    pub(super) fn of(index: u32) -> Self {
        Self { interfaces: BTreeSet::from([index]), is_all: false }
    }

    /// Notes what a new or deleted route may change. A new one can take the place of another, over another interface, which is not
    /// reported.
    pub(super) fn add(&mut self, inventory: &Inventory, route: &Route) {
        if !is_configured(route) {
            return;
        }
        self.is_all |= leads_everywhere(&route.destination);
        self.interfaces.extend(interfaces_of(route));
        let is_replaced = |known: &RouteUse| known.destination == route.destination && known.table == route.table;
        let replaced = inventory.interfaces.iter().filter(|(_, interface)| interface.routes.iter().any(is_replaced));
        self.interfaces.extend(replaced.map(|(index, _)| *index));
    }

    /// Reads the routes of the noted interfaces again.
    pub(super) fn read(
        self,
        inventory: &mut Inventory,
        host: &mut Host,
        changed: &mut Changed,
    ) -> Result<(), InventoryError> {
        if self.is_all {
            let routes = host.connection.routes()?;
            set_all(inventory, &routes, changed);
            return Ok(());
        }
        for index in self.interfaces {
            let Some(interface) = inventory.interfaces.get_mut(&index).filter(|interface| has_routes(interface)) else {
                continue;
            };
            let routes = host.connection.routes_of(index)?;
            changed.interfaces.extend(set(interface, routes.iter()).then_some(index));
        }
        Ok(())
    }
}

/// Sets the routes of all interfaces.
pub(super) fn set_all(inventory: &mut Inventory, routes: &[Route], changed: &mut Changed) {
    let mut by_interface: BTreeMap<u32, Vec<&Route>> = BTreeMap::new();
    for route in routes.iter().filter(|route| is_configured(route)) {
        for index in interfaces_of(route) {
            by_interface.entry(index).or_default().push(route);
        }
    }
    for (index, interface) in &mut inventory.interfaces {
        if has_routes(interface) {
            let is_changed = set(interface, by_interface.remove(index).unwrap_or_default().into_iter());
            changed.interfaces.extend(is_changed.then_some(*index));
        }
    }
}

/// Returns whether the routes of an interface matter.
fn has_routes(interface: &HostInterface) -> bool {
    !interface.is_of_pod() && !interface.link.is_loopback
}

/// Sets the routes of an interface. Returns whether that has changed anything.
fn set<'a>(interface: &mut HostInterface, routes: impl Iterator<Item = &'a Route>) -> bool {
    let mut uses: Vec<RouteUse> = Vec::new();
    for route in routes.filter(|route| is_configured(route)) {
        let new = RouteUse { destination: route.destination, table: route.table, source: route.source };
        if (uses.len() < MAX || new.is_default()) && !uses.contains(&new) {
            uses.push(new);
        }
    }
    // The order of the kernel differs from one question to the next.
    uses.sort_unstable();
    let is_changed = interface.routes != uses;
    interface.routes = uses;
    is_changed
}
