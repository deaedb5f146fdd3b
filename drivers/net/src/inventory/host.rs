//! Reading a host: netlink sockets in its network namespace, and its sysfs.

use std::collections::BTreeMap;

use drakkar_netlink::rdma::Rdma;
use drakkar_netlink::{Connection, Link, LinkKind, Namespace};
use drakkar_sysfs::{NetDevice, ScanError, Sysfs};

use super::{Changed, HostInterface, Inventory, routes};

/// A host that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// Netlink failed.
    #[error(transparent)]
    Netlink(#[from] drakkar_netlink::Error),
    /// The PCI devices cannot be listed.
    #[error(transparent)]
    Pci(#[from] ScanError),
}

/// Where the interfaces of a host are read.
#[derive(Debug)]
pub struct Host {
    pub(super) connection: Connection,
    /// `None` as long as the kernel has no RDMA: its modules can be loaded later.
    rdma: Option<Rdma>,
    namespace: Namespace,
    pub(super) sysfs: Sysfs,
}

impl Host {
    /// Opens a host: the network namespace, and the sysfs that was mounted in it. Open the events before, so that nothing is missed.
    pub fn open(namespace: &Namespace, sysfs: Sysfs) -> Result<Self, InventoryError> {
        let connection = Connection::open(namespace)?;
        let rdma = Rdma::open(namespace)?;
        Ok(Self { connection, rdma, namespace: namespace.try_clone()?, sysfs })
    }

    /// Returns the sysfs.
    pub fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    /// Reads everything.
    pub fn scan(&mut self) -> Result<Inventory, InventoryError> {
        let mut inventory = Inventory { interfaces: BTreeMap::new(), pci: self.pci()? };
        for link in self.connection.links()? {
            let interface = HostInterface { device: self.device(&link), ..HostInterface::new(link) };
            inventory.interfaces.insert(interface.link.index, interface);
        }
        for address in self.connection.addresses()? {
            if let Some(interface) = inventory.interfaces.get_mut(&address.index) {
                interface.addresses.push(address);
            }
        }
        for interface in inventory.interfaces.values_mut() {
            interface.addresses.sort_unstable_by_key(super::apply::key);
        }
        let routes = self.connection.routes()?;
        let mut changed = Changed::default();
        routes::set_all(&mut inventory, &routes, &mut changed);
        inventory.set_rdma(&self.rdma()?, &mut changed);
        Ok(inventory)
    }

    /// Reads the PCI devices. A host without a PCI bus has none.
    pub(super) fn pci(&self) -> Result<drakkar_sysfs::Inventory, InventoryError> {
        match drakkar_sysfs::Inventory::scan(&self.sysfs) {
            Err(ScanError::List { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(Default::default())
            }
            scanned => Ok(scanned?),
        }
    }

    /// Reads what is behind an interface. Kinds that are never a device's are not looked up: a node has hundreds of cables.
    pub(super) fn device(&self, link: &Link) -> NetDevice {
        let can_have_device = matches!(link.kind, LinkKind::Device | LinkKind::Bond | LinkKind::Other(_));
        let read = || NetDevice::read(&self.sysfs, &link.name).unwrap_or_default();
        if can_have_device && !link.is_loopback { read() } else { NetDevice::default() }
    }

    /// Reads the RDMA devices of interfaces, by index.
    pub(super) fn rdma(&mut self) -> Result<BTreeMap<u32, String>, InventoryError> {
        if self.rdma.is_none() {
            self.rdma = Rdma::open(&self.namespace)?;
        }
        let Some(rdma) = &mut self.rdma else { return Ok(BTreeMap::new()) };
        let mut names = BTreeMap::new();
        for device in rdma.devices()? {
            let ports = match rdma.ports(&device) {
                Ok(ports) => ports,
                // It went meanwhile.
                Err(error) if error.is_not_found() || error.errno() == Some(drakkar_netlink::Errno::INVAL) => continue,
                Err(error) => return Err(error.into()),
            };
            for index in ports.into_iter().filter_map(|port| port.interface) {
                names.insert(index, device.name.clone());
            }
        }
        Ok(names)
    }
}

impl Inventory {
    /// Sets the RDMA devices of all interfaces.
    pub(super) fn set_rdma(&mut self, names: &BTreeMap<u32, String>, changed: &mut Changed) {
        for (index, interface) in &mut self.interfaces {
            let rdma = names.get(index);
            if interface.rdma.as_ref() != rdma {
                interface.rdma = rdma.cloned();
                changed.interfaces.insert(*index);
            }
        }
    }
}
