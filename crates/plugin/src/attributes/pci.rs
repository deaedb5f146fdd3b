//! The root complex of a PCI device, from sysfs.

use std::path::{Component, Path, PathBuf};

use drakkar_metadata::{DeviceAttribute, PciAddress};

use super::{AttributeError, Sysfs};

impl Sysfs {
    /// The value of [`super::PCIE_ROOT`]: the root complex that the device is behind, `pci0000:60`.
    ///
    /// It is the nearest one: devices behind Intel VMD have one of their own below another.
    pub fn pcie_root(&self, address: &PciAddress) -> Result<DeviceAttribute, AttributeError> {
        let link = self.pci_device(address);
        let target = std::fs::read_link(&link).map_err(|source| AttributeError::Read { path: link.clone(), source })?;
        let target = resolved(&self.path("bus/pci/devices"), &target);
        let devices = self.path("devices");
        let root = target.strip_prefix(&devices).ok().and_then(|below| root_of(below, address)).map(str::to_owned);
        root.map(DeviceAttribute::from).ok_or(AttributeError::NotBelowRoot { path: link, target, root: devices })
    }

    /// The link to a device among all PCI devices.
    pub(super) fn pci_device(&self, address: &PciAddress) -> PathBuf {
        self.path("bus/pci/devices").join(address.to_string())
    }
}

/// The last component before the device that is a root complex, if the path is that of the device.
fn root_of<'a>(path: &'a Path, address: &PciAddress) -> Option<&'a str> {
    let is_device = path.file_name().and_then(|name| name.to_str()) == Some(address.to_string().as_str());
    let components = path.components().rev().skip(1).filter_map(|component| component.as_os_str().to_str());
    components.filter(|_| is_device).find(|component| PciAddress::is_root_complex(component))
}

/// The target of a link in a directory, by its words alone: the tree of a test is not where links say that it is.
fn resolved(directory: &Path, target: &Path) -> PathBuf {
    let mut path = directory.to_owned();
    for component in target.components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            component => path.push(component),
        }
    }
    path
}
