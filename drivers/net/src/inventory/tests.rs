//! Inventories without a kernel, for the tests of what is made of them.

use drakkar_netlink::{Address, AddressScope, BusAddress, DadState, Link, LinkKind, OperationalState, Parent};
use drakkar_sysfs::{IommuGroup, NetDevice, PciDevice};
use ipnet::IpNet;

use super::{HostInterface, Inventory, RouteUse};

/// An interface that the kernel made.
pub(crate) fn virtual_interface(index: u32, name: &str, kind: LinkKind) -> HostInterface {
    let link = Link {
        index,
        name: name.to_owned(),
        alt_names: Vec::new(),
        alias: None,
        address: format!("02:00:00:00:00:{index:02x}").parse().ok(),
        permanent_address: None,
        device: None,
        mtu: 1500,
        min_mtu: None,
        max_mtu: None,
        kind,
        layer: 1,
        parent: None,
        master: None,
        state: OperationalState::Up,
        is_up: true,
        is_running: true,
        is_loopback: false,
        carrier: Some(true),
        has_xdp: false,
    };
    HostInterface::new(link)
}

/// The interface of a PCI function.
pub(crate) fn on_pci(index: u32, name: &str, address: &str) -> HostInterface {
    let mut interface = virtual_interface(index, name, LinkKind::Device);
    interface.link.device = Some(BusAddress { bus: "pci".to_owned(), name: address.to_owned() });
    interface.link.permanent_address = interface.link.address.clone();
    interface.device = NetDevice {
        has_device: true,
        pci: address.parse().ok(),
        driver: Some("ice".to_owned()),
        speed: Some(25_000),
        ..NetDevice::default()
    };
    interface
}

/// The loopback interface.
pub(crate) fn loopback() -> HostInterface {
    let mut interface = virtual_interface(1, "lo", LinkKind::Device);
    interface.link.is_loopback = true;
    interface.link.layer = 772;
    interface
}

impl HostInterface {
    /// With an address.
    pub(crate) fn with_address(mut self, address: &str) -> Self {
        let address: IpNet = address.parse().unwrap();
        self.addresses.push(Address {
            index: self.link.index,
            address,
            peer: None,
            broadcast: None,
            scope: AddressScope::Global,
            label: None,
            is_permanent: true,
            is_secondary: false,
            no_prefix_route: false,
            no_dad: false,
            dad: DadState::Done,
        });
        self
    }

    /// With a route over it.
    pub(crate) fn with_route(mut self, destination: &str, table: u32) -> Self {
        self.routes.push(RouteUse { destination: destination.parse().unwrap(), table, source: None });
        self
    }

    /// With a parent on the host.
    pub(crate) fn on(mut self, parent: u32) -> Self {
        self.link.parent = Some(Parent { index: parent, namespace: None });
        self
    }

    /// As part of a bridge or bond.
    pub(crate) fn part_of(mut self, master: u32) -> Self {
        self.link.master = Some(master);
        self
    }

    /// With the other end of the cable in a pod.
    pub(crate) fn into_pod(mut self) -> Self {
        self.link.parent = Some(Parent { index: 2, namespace: Some(0) });
        self
    }
}

/// A host with these interfaces.
pub(crate) fn host(interfaces: impl IntoIterator<Item = HostInterface>) -> Inventory {
    let mut inventory = Inventory::default();
    for interface in interfaces {
        inventory.interfaces.insert(interface.link.index, interface);
    }
    inventory
}

/// A virtual function of `0000:3b:00.0` for networks, in an IOMMU group of its own.
pub(crate) fn add_virtual_function(inventory: &mut Inventory, address: &str, driver: Option<&str>, group: u32) {
    let parsed = address.parse().unwrap();
    let device = PciDevice {
        vendor: 0x8086,
        device: 0x1889,
        class: 0x02_0000,
        driver: driver.map(str::to_owned),
        iommu_group: Some(group),
        numa_node: Some(1),
        pcie_root: Some("pci0000:3a".to_owned()),
        physical_function: "0000:3b:00.0".parse().ok(),
        ..PciDevice::new(parsed, format!("devices/pci0000:3a/{address}"))
    };
    inventory.pci.devices.insert(parsed, device);
    let group = inventory.pci.groups.entry(group).or_insert_with(|| IommuGroup {
        id: group,
        devices: Vec::new(),
        other_devices: Vec::new(),
        viability: Default::default(),
        is_noiommu: false,
    });
    group.devices.push(parsed);
}
