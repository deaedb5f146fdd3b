//! What people want to know of a device, under every name that it goes by.
//!
//! Names differ between Kubernetes, KubeVirt, their design documents and drivers. The accessors here know them all
//! and take the canonical one first; the lists of names are public for whoever must be strict. Only a `string` value
//! that is not empty counts, as with the consumers that exist.

use crate::attribute::DeviceAttribute;
use crate::types::Device;

/// The PCI address of the device, `0000:65:00.0`: Kubernetes' standard name, then the slips of the design documents,
/// then the name that drivers had before there was a standard.
pub const PCI_BUS_ID: &[&str] =
    &["resource.kubernetes.io/pciBusID", "resources.kubernetes.io/pciBusID", "resource.k8s.io/pciBusID", "pciAddress"];

/// The UUID of a mediated device: the name that KubeVirt reads, then the other spellings.
pub const MDEV_UUID: &[&str] = &["mdevUUID", "mDevUUID", "resource.kubernetes.io/mDevUUID", "dra.kubevirt.io/mdevUUID"];

/// The PCIe root complex of the device, `pci0000:60`. It is not an address.
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The NUMA node of the device, a number or a list with the nearest first.
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

impl Device {
    /// The PCI address, under any of the names in [`PCI_BUS_ID`] or as the driver's own `{driver}/pciAddress`.
    pub fn pci_bus_id(&self) -> Option<&str> {
        self.first_of(PCI_BUS_ID).or_else(|| self.first_of(&[&format!("{}/pciAddress", self.driver)]))
    }

    /// The UUID of a mediated device, under any of the names in [`MDEV_UUID`]. It is not checked to be a UUID.
    pub fn mdev_uuid(&self) -> Option<&str> {
        self.first_of(MDEV_UUID)
    }

    /// The PCIe root complex.
    pub fn pcie_root(&self) -> Option<&str> {
        self.first_of(&[PCIE_ROOT])
    }

    /// The NUMA node; of a list, the first.
    pub fn numa_node(&self) -> Option<i64> {
        let attribute = self.attributes.get(NUMA_NODE)?;
        attribute.int.or_else(|| attribute.ints.first().copied())
    }

    /// The name of the network interface in the pod.
    pub fn interface_name(&self) -> Option<&str> {
        self.network_data.as_ref().map(|data| data.interface_name.as_str()).filter(|name| !name.is_empty())
    }

    /// The addresses of the network interface, with their prefix lengths.
    pub fn ips(&self) -> &[String] {
        self.network_data.as_ref().map_or(&[], |data| &data.ips)
    }

    /// The hardware (MAC) address of the network interface.
    pub fn hardware_address(&self) -> Option<&str> {
        self.network_data.as_ref().map(|data| data.hardware_address.as_str()).filter(|address| !address.is_empty())
    }

    /// Anything that the device has, by a name as a person would type it:
    ///
    /// - `pciBusID` and `mdevUUID`, under any spelling, and an attribute of just that name where there is none of them;
    /// - `interfaceName`, `ips` and `hardwareAddress`, also as `networkData.ips` and so on; where there is no network
    ///   data, an attribute of that name;
    /// - `driver`, `pool` and `name`: which device it is;
    /// - else an attribute, with or without the driver's domain. An attribute that is called like one of the above is
    ///   asked for with its domain.
    ///
    /// An attribute without a value is none.
    pub fn lookup(&self, name: &str) -> Option<DeviceAttribute> {
        let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(DeviceAttribute::from);
        let well_known = match name {
            "pciBusID" => text(self.pci_bus_id()),
            _ if PCI_BUS_ID.contains(&name) => text(self.pci_bus_id()),
            _ if MDEV_UUID.contains(&name) => text(self.mdev_uuid()),
            "interfaceName" | "networkData.interfaceName" => text(self.interface_name()),
            "hardwareAddress" | "networkData.hardwareAddress" => text(self.hardware_address()),
            "ips" | "networkData.ips" => (!self.ips().is_empty()).then(|| self.ips().to_vec().into()),
            "driver" => text(Some(&self.driver)),
            "pool" => text(Some(&self.pool)),
            "name" => text(Some(&self.name)),
            _ => None,
        };
        let attribute = || self.attribute(name).filter(|value| value.set_values().next().is_some()).cloned();
        well_known.or_else(attribute)
    }

    /// The attribute of this name. A bare name belongs to the driver's domain, so `model` and `{driver}/model` are
    /// the same attribute; the one that is spelled as asked goes first.
    pub fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        self.attributes.get(name).or_else(|| match name.split_once('/') {
            None => self.attributes.get(&format!("{}/{name}", self.driver)),
            Some((domain, bare)) if domain == self.driver => self.attributes.get(bare),
            Some(_) => None,
        })
    }

    fn first_of(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.attributes.get(*name)?.as_non_empty_str())
    }
}
