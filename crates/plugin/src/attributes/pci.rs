//! The root complex of a PCI device, read from sysfs.

use std::path::{Component, Path, PathBuf};

use drakkar_metadata::{DeviceAttribute, PciAddress};

use super::{AttributeError, Sysfs};

impl Sysfs {
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

/// Returns the last root complex in the path of a device, or `None` if the path is not that of the device.
fn root_complex<'a>(path: &'a Path, address: &PciAddress) -> Option<&'a str> {
    let is_device = path.file_name().and_then(|name| name.to_str()) == Some(address.to_string().as_str());
    let components = path.components().rev().skip(1).filter_map(|component| component.as_os_str().to_str());
    components.filter(|_| is_device).find(|component| PciAddress::is_root_complex(component))
}

/// Resolves the target of a link lexically, without access to the filesystem, so that a test's tree can be anywhere.
fn resolve(directory: &Path, target: &Path) -> PathBuf {
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
