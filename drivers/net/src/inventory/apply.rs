//! Updates of an inventory: an event changes the interface that it names, and nothing else is read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use drakkar_netlink::{Address, Event, Link};
use drakkar_sysfs::{DeviceEvent, Uevent};
use ipnet::IpNet;

use super::routes::StaleRoutes;
use super::{Host, HostInterface, Inventory, InventoryError};

/// What an update has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// The interfaces that are new, gone or different, and those on top of a renamed one.
    pub interfaces: BTreeSet<u32>,
    /// Whether PCI functions are new, gone or different, or have or do not have an interface now.
    pub functions: bool,
    /// Whether anything can have changed: everything was read again.
    pub all: bool,
}

impl Changed {
    /// Everything.
    pub fn all() -> Self {
        Self { all: true, functions: true, ..Self::default() }
    }

    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what another update has changed.
    pub fn extend(&mut self, other: Self) {
        self.interfaces.extend(other.interfaces);
        self.functions |= other.functions;
        self.all |= other.all;
    }
}

impl Inventory {
    /// Takes in events of netlink.
    pub fn apply(&mut self, host: &mut Host, events: &[Event]) -> Result<Changed, InventoryError> {
        let mut changed = Changed::default();
        let mut routes = StaleRoutes::default();
        let mut has_new = false;
        for event in events {
            match event {
                Event::Overrun => return self.resync(host),
                Event::Link(link) => {
                    has_new |= !self.interfaces.contains_key(&link.index);
                    self.apply_link(host, link, &mut changed);
                }
                Event::LinkRemoved(link) => self.remove_link(link.index, &mut changed),
                Event::Address(address) => {
                    let is_changed = self.set_address(address);
                    changed.interfaces.extend(is_changed.then_some(address.index));
                }
                Event::AddressRemoved(address) => {
                    let is_changed = self.remove_address(address);
                    changed.interfaces.extend(is_changed.then_some(address.index));
                }
                Event::Route(route) | Event::RouteRemoved(route) => routes.add(self, route),
                // A kind of event that is newer than this code.
                _ => {}
            }
        }
        routes.read(self, host, &mut changed)?;
        if has_new {
            let names = host.rdma()?;
            self.set_rdma(&names, &mut changed);
        }
        Ok(changed)
    }

    /// Takes in uevents about PCI functions and RDMA devices.
    pub fn apply_devices(&mut self, host: &mut Host, events: &[Uevent]) -> Result<Changed, InventoryError> {
        let mut changed = Changed::default();
        let is_of = |event: &Uevent, subsystem: &str| match event {
            Uevent::Overflow => true,
            Uevent::Device(DeviceEvent { subsystem: of, .. }) => of == subsystem,
        };
        if events.iter().any(|event| is_of(event, "pci")) {
            let is_changed = if self.pci.devices.is_empty() {
                self.pci = host.pci()?;
                !self.pci.devices.is_empty()
            } else {
                !self.pci.apply_all(&host.sysfs, events)?.is_empty()
            };
            if is_changed {
                changed.functions = true;
                let of_functions = self.interfaces.values().filter(|interface| interface.pci().is_some());
                changed.interfaces.extend(of_functions.map(|interface| interface.link.index));
            }
        }
        if events.iter().any(|event| is_of(event, "infiniband")) {
            let names = host.rdma()?;
            self.set_rdma(&names, &mut changed);
        }
        Ok(changed)
    }

    /// Reads everything again.
    pub fn resync(&mut self, host: &mut Host) -> Result<Changed, InventoryError> {
        let now = host.scan()?;
        let is_same = self.interfaces == now.interfaces && self.pci.devices == now.pci.devices;
        *self = now;
        Ok(if is_same { Changed::default() } else { Changed::all() })
    }

    /// Reads an interface again, by its index: the events about it may not be there yet.
    pub fn refresh(&mut self, host: &mut Host, index: u32) -> Result<Changed, InventoryError> {
        let mut changed = Changed::default();
        let Some(link) = host.connection.link(index)? else {
            self.remove_link(index, &mut changed);
            return Ok(changed);
        };
        let mut addresses = host.connection.addresses_of(index)?;
        addresses.sort_unstable_by_key(key);
        let is_new = !self.interfaces.contains_key(&index);
        self.apply_link(host, &link, &mut changed);
        if let Some(interface) = self.interfaces.get_mut(&index).filter(|known| known.addresses != addresses) {
            interface.addresses = addresses;
            changed.interfaces.insert(index);
        }
        StaleRoutes::of(index).read(self, host, &mut changed)?;
        if is_new {
            let names = host.rdma()?;
            self.set_rdma(&names, &mut changed);
        }
        Ok(changed)
    }

    fn apply_link(&mut self, host: &Host, link: &Link, changed: &mut Changed) {
        match self.interfaces.get_mut(&link.index) {
            Some(known) if known.link == *link => return,
            Some(known) => {
                // The speed is known with the carrier, and files are found by name.
                let was = (&known.link.name, known.link.carrier, known.link.state, known.link.is_running);
                let is_renamed = known.link.name != link.name;
                if was != (&link.name, link.carrier, link.state, link.is_running) {
                    known.device = host.device(link);
                }
                known.link = link.clone();
                if is_renamed {
                    let on_top = |child: &&HostInterface| {
                        child.link.parent.is_some_and(|parent| parent.namespace.is_none() && parent.index == link.index)
                    };
                    let children = self.interfaces.values().filter(on_top).map(|child| child.link.index);
                    changed.interfaces.extend(children);
                }
            }
            None => {
                let interface = HostInterface { device: host.device(link), ..HostInterface::new(link.clone()) };
                changed.functions |= interface.pci().is_some();
                self.interfaces.insert(link.index, interface);
            }
        }
        changed.interfaces.insert(link.index);
    }

    fn remove_link(&mut self, index: u32, changed: &mut Changed) {
        if let Some(interface) = self.interfaces.remove(&index) {
            changed.functions |= interface.pci().is_some();
            changed.interfaces.insert(index);
        }
    }

    /// Sets an address. An interface that is not known is gone already.
    fn set_address(&mut self, address: &Address) -> bool {
        let Some(interface) = self.interfaces.get_mut(&address.index) else { return false };
        match interface.addresses.iter_mut().find(|known| is_same(known, address)) {
            Some(known) if known == address => false,
            Some(known) => {
                known.clone_from(address);
                true
            }
            None => {
                let place = interface.addresses.partition_point(|known| key(known) < key(address));
                interface.addresses.insert(place, address.clone());
                true
            }
        }
    }

    fn remove_address(&mut self, address: &Address) -> bool {
        let Some(interface) = self.interfaces.get_mut(&address.index) else { return false };
        let before = interface.addresses.len();
        interface.addresses.retain(|known| !is_same(known, address));
        interface.addresses.len() != before
    }
}

/// Returns whether two are the same address of an interface, whatever its state.
fn is_same(one: &Address, two: &Address) -> bool {
    key(one) == key(two)
}

/// Returns what an address is known by, in the order of which those of an interface are kept.
pub(super) fn key(address: &Address) -> (IpNet, Option<IpAddr>) {
    (address.address, address.peer)
}
