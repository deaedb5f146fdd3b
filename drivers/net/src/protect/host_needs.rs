//! The interfaces that the host needs itself: its way out, its addresses, and what those depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Refusal, parent_of};
use crate::inventory::{HostInterface, Inventory};

/// Which interfaces the host needs, and why.
#[derive(Debug, Default)]
pub(crate) struct HostNeeds {
    direct: BTreeMap<u32, Refusal>,
    related: BTreeMap<u32, Refusal>,
}

impl HostNeeds {
    /// Finds out what the host needs. Besides the known addresses of the node, those count that its default routes prefer: they can be
    /// on another interface than the route.
    pub(crate) fn new(inventory: &Inventory, node_addresses: &[IpAddr]) -> Self {
        let routes = || inventory.interfaces.values().flat_map(|interface| &interface.routes);
        let preferred = routes().filter(|route| route.is_default()).filter_map(|route| route.source);
        let addresses: BTreeSet<IpAddr> = node_addresses.iter().copied().chain(preferred).collect();
        let mut needs = Self::default();
        for (index, interface) in &inventory.interfaces {
            if let Some(reason) = need(interface, &addresses) {
                needs.direct.insert(*index, reason);
            }
        }
        needs.relate(inventory);
        needs
    }

    /// Returns why the host needs an interface itself.
    pub(crate) fn direct(&self, interface: &HostInterface) -> Option<Refusal> {
        self.direct.get(&interface.link.index).cloned()
    }

    /// Returns which interface that the host needs depends on this one, or is below it.
    pub(crate) fn related(&self, interface: &HostInterface) -> Option<Refusal> {
        self.related.get(&interface.link.index).cloned()
    }

    /// Adds what the needed interfaces are made of, all the way down, and what is directly on top of them.
    fn relate(&mut self, inventory: &Inventory) {
        if self.direct.is_empty() {
            return;
        }
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (index, interface) in &inventory.interfaces {
            if let Some(master) = interface.link.master {
                members.entry(master).or_default().push(*index);
            }
            if let Some(parent) = parent_of(inventory, interface) {
                children.entry(parent.link.index).or_default().push(*index);
            }
        }
        let of = |map: &BTreeMap<u32, Vec<u32>>, index: u32| map.get(&index).cloned().unwrap_or_default();
        for (needed, reason) in self.direct.clone() {
            let Some(interface) = inventory.interfaces.get(&needed) else { continue };
            let name = interface.link.name.as_str();
            let reason = cause(&reason);
            let mut below = vec![needed];
            let mut seen = BTreeSet::from([needed]);
            while let Some(index) = below.pop() {
                let parent = inventory.interfaces.get(&index).and_then(|interface| parent_of(inventory, interface));
                let parts = of(&members, index).into_iter().map(|member| (member, "part of"));
                let parents = parent.map(|parent| (parent.link.index, "below")).into_iter();
                for (part, relation) in parts.chain(parents) {
                    if seen.insert(part) {
                        self.add(inventory, part, relation, name, &reason);
                        below.push(part);
                    }
                }
            }
            for child in of(&children, needed) {
                self.add(inventory, child, "on top of", name, &reason);
            }
            if let Some(master) = interface.link.master {
                self.add(inventory, master, "made of", name, &reason);
            }
        }
    }

    fn add(&mut self, inventory: &Inventory, index: u32, relation: &'static str, other: &str, reason: &str) {
        let Some(interface) = inventory.interfaces.get(&index) else { return };
        let name = interface.link.name.clone();
        let refusal = Refusal::Related { name, relation, other: other.to_owned(), reason: reason.to_owned() };
        self.related.entry(index).or_insert(refusal);
    }
}

/// Returns why the host needs an interface itself.
fn need(interface: &HostInterface, node_addresses: &BTreeSet<IpAddr>) -> Option<Refusal> {
    let name = || interface.link.name.clone();
    if interface.link.is_loopback {
        return None;
    }
    if let Some(route) = interface.routes.iter().find(|route| route.is_default()) {
        let destination = route.destination.to_string();
        return Some(Refusal::DefaultRoute { name: name(), destination, table: route.table });
    }
    let addresses = interface.addresses.iter().map(|address| address.address.addr());
    let address = addresses.into_iter().find(|address| node_addresses.contains(address))?;
    Some(Refusal::NodeAddress { name: name(), address })
}

/// Returns a reason without its remedy, which would be for another interface.
fn cause(refusal: &Refusal) -> String {
    let text = refusal.to_string();
    text.split_once("; ").map_or(text.as_str(), |(cause, _)| cause).to_owned()
}
