//! The root complex of a PCI device, read from sysfs.

use std::path::PathBuf;

use drakkar_metadata::{DeviceAttribute, PciAddress};

use super::{AttributeError, StandardAttributes};
use crate::pci::root_complex;
use crate::read::resolve;

impl StandardAttributes {
    /// Returns the value of [`super::PCIE_ROOT`]: the root complex of the device, such as `pci0000:60`.
    ///
    /// This is the nearest one: devices behind Intel VMD have a root complex of their own below another.
    pub fn pcie_root(&self, address: &PciAddress) -> Result<DeviceAttribute, AttributeError> {
        let link = self.pci_device(address);
        let target = std::fs::read_link(&link).map_err(|source| AttributeError::Read { path: link.clone(), source })?;
        let target = resolve(&self.path("bus/pci/devices"), &target);
        let devices = self.path("devices");
        let root = target.strip_prefix(&devices).ok().and_then(|path| root_complex(path, address)).map(str::to_owned);
        root.map(DeviceAttribute::from).ok_or(AttributeError::NotBelowRoot { path: link, target, root: devices })
    }

    /// Returns the path of a PCI device's link.
    pub(super) fn pci_device(&self, address: &PciAddress) -> PathBuf {
        self.path("bus/pci/devices").join(address.to_string())
    }
}
