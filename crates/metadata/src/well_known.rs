//! Well-known attributes of a device, under all the names that are in use.
//!
//! Names differ between Kubernetes, KubeVirt, their design documents and drivers. The accessors know all of them, and
//! prefer the canonical one; the lists of names are public for programs that must be strict. Only a `string` value that
//! is not empty counts, as in the existing consumers.

use crate::attribute::DeviceAttribute;
use crate::types::Device;

/// The names of the attribute for the PCI address, for example `0000:65:00.0`.
///
/// Kubernetes' standard name comes first, then the variants in the design documents, then the name that drivers used
/// before the standard.
pub const PCI_BUS_ID: &[&str] =
    &["resource.kubernetes.io/pciBusID", "resources.kubernetes.io/pciBusID", "resource.k8s.io/pciBusID", "pciAddress"];

/// The names of the attribute for the UUID of a mediated device: KubeVirt's first, then other spellings.
pub const MDEV_UUID: &[&str] = &["mdevUUID", "mDevUUID", "resource.kubernetes.io/mDevUUID", "dra.kubevirt.io/mdevUUID"];

/// The name of the attribute for the PCIe root complex, for example `pci0000:60`. It is not an address.
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The name of the attribute for the NUMA node: a number, or a list with the nearest node first.
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

impl Device {
    /// Returns the PCI address, under any of the names in [`PCI_BUS_ID`] or as the driver's own `{driver}/pciAddress`.
    pub fn pci_bus_id(&self) -> Option<&str> {
        self.first_of(PCI_BUS_ID).or_else(|| self.first_of(&[&format!("{}/pciAddress", self.driver)]))
    }

    /// Returns the UUID of a mediated device, under any of the names in [`MDEV_UUID`], without validating it.
    pub fn mdev_uuid(&self) -> Option<&str> {
        self.first_of(MDEV_UUID)
    }

    /// Returns the PCIe root complex.
    pub fn pcie_root(&self) -> Option<&str> {
        self.first_of(&[PCIE_ROOT])
    }

    /// Returns the NUMA node; the first of a list.
    pub fn numa_node(&self) -> Option<i64> {
        let attribute = self.attributes.get(NUMA_NODE)?;
        attribute.int.or_else(|| attribute.ints.first().copied())
    }

    /// Returns the name of the network interface in the pod.
    pub fn interface_name(&self) -> Option<&str> {
        self.network_data.as_ref().map(|data| data.interface_name.as_str()).filter(|name| !name.is_empty())
    }

    /// Returns the addresses of the network interface, with their prefix lengths.
    pub fn ips(&self) -> &[String] {
        self.network_data.as_ref().map_or(&[], |data| &data.ips)
    }

    /// Returns the hardware (MAC) address of the network interface.
    pub fn hardware_address(&self) -> Option<&str> {
        self.network_data.as_ref().map(|data| data.hardware_address.as_str()).filter(|address| !address.is_empty())
    }

    /// Returns an attribute, or another property of the device, by name:
    ///
    /// - `pciBusID` and `mdevUUID`: the well-known attribute under any spelling, else an attribute of exactly that name;
    /// - `interfaceName`, `ips` and `hardwareAddress`, also as `networkData.ips` and so on: the network data, else an
    ///   attribute of that name;
    /// - `driver`, `pool` and `name`: the device's own;
    /// - else an attribute, with or without the driver's domain. An attribute with one of the names above needs its
    ///   domain.
    ///
    /// Returns `None` for an attribute without a value.
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

    /// Returns the attribute of this name.
    ///
    /// A name without a domain belongs to the driver's domain, so `model` and `{driver}/model` are the same attribute;
    /// an exact match takes precedence.
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
