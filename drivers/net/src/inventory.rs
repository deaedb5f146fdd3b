//! The network interfaces of a host, and its PCI functions for networks that have none: one look at the start, then only what an
//! event names.
//!
//! Netlink says what interfaces there are, sysfs what is behind them, and RDMA netlink which of them have an RDMA device.
//! [`Host`] reads, [`Inventory`] is what was read. Nothing is polled: netlink reports interfaces, addresses and routes, uevents report
//! PCI functions and RDMA devices. If events were lost, everything is read again ([`Inventory::resync`]).

mod apply;
mod host;
mod identity;
mod kind;
mod routes;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use drakkar_netlink::{Address, AddressScope, Link};
use drakkar_sysfs::{NetDevice, PciAddress, PciDevice};

pub use self::apply::Changed;
pub use self::host::{Host, InventoryError};
pub use self::identity::Identity;
pub use self::kind::Kind;
pub use self::routes::RouteUse;

/// The interfaces and network functions of a host.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// The interfaces by index.
    pub interfaces: BTreeMap<u32, HostInterface>,
    /// The PCI devices. A host without PCI has none.
    pub pci: drakkar_sysfs::Inventory,
}

/// An interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostInterface {
    /// What netlink says of it.
    pub link: Link,
    /// What sysfs says of the device behind it. Empty for a virtual interface.
    pub device: NetDevice,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// The routes over it that somebody has configured, as many as matter.
    pub routes: Vec<RouteUse>,
    /// The name of its RDMA device.
    pub rdma: Option<String>,
}

impl HostInterface {
    /// Returns an interface of which only netlink has spoken.
    pub fn new(link: Link) -> Self {
        Self { link, device: NetDevice::default(), addresses: Vec::new(), routes: Vec::new(), rdma: None }
    }

    /// Returns the PCI function behind it.
    pub fn pci(&self) -> Option<PciAddress> {
        let parent = self.link.device.as_ref().filter(|device| device.bus == "pci");
        parent.and_then(|device| device.name.parse().ok()).or(self.device.pci)
    }

    /// Returns how it is recognized.
    pub fn identity(&self) -> Identity {
        Identity {
            name: self.link.name.clone(),
            index: self.link.index,
            device: self.link.device.clone(),
            permanent_address: self.link.permanent_address.clone(),
        }
    }

    /// Returns whether it is an end of a veth pair whose other end is in another network namespace: the interface of a pod.
    pub fn is_of_pod(&self) -> bool {
        self.link.kind == drakkar_netlink::LinkKind::Veth
            && self.link.parent.is_some_and(|parent| parent.namespace.is_some())
    }

    /// Returns whether it is the representor of a function in the switch of a card.
    pub fn is_representor(&self) -> bool {
        self.device.port_name.as_deref().is_some_and(is_representor)
    }

    /// Returns its addresses that others can reach it by.
    pub fn reachable_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let is_reachable = |address: &&Address| matches!(address.scope, AddressScope::Global | AddressScope::Site);
        self.addresses.iter().filter(is_reachable).map(|address| address.address.addr())
    }
}

/// Returns whether the name of a port is that of a function behind a switch (`pf0vf1`, `pf1`, `c1pf0sf3`), and not of an uplink
/// (`p0`) or its part (`p0s1`).
fn is_representor(port: &str) -> bool {
    let port =
        port.strip_prefix('c').map_or(port, |rest| rest.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    port.strip_prefix("pf").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

impl Inventory {
    /// Returns the PCI function of an interface.
    pub fn function(&self, interface: &HostInterface) -> Option<&PciDevice> {
        self.pci.devices.get(&interface.pci()?)
    }

    /// Returns the kind of an interface.
    pub fn kind(&self, interface: &HostInterface) -> Kind {
        let is_virtual_function = || self.function(interface).is_some_and(PciDevice::is_virtual_function);
        Kind::of(&interface.link, is_virtual_function)
    }

    /// Returns the PCI functions for networks that have no interface on the host: bound to a driver for user space, without a driver,
    /// or with an interface in another namespace.
    pub fn functions_without_interface(&self) -> impl Iterator<Item = &PciDevice> {
        let with: std::collections::BTreeSet<PciAddress> =
            self.interfaces.values().filter_map(HostInterface::pci).collect();
        let is_network = |device: &&PciDevice| device.base_class() == 0x02;
        self.pci.devices.values().filter(is_network).filter(move |device| !with.contains(&device.address))
    }
}
