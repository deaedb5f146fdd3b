//! Where the kernel's file systems are mounted.

use std::path::{Path, PathBuf};

use drakkar_metadata::PciAddress;

/// The directories of sysfs, devtmpfs and procfs. A driver in a container mounts the host's elsewhere, a test has a tree
/// of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Roots {
    /// The directory of sysfs, by default `/sys`.
    pub sys: PathBuf,
    /// The directory of device nodes, by default `/dev`.
    pub dev: PathBuf,
    /// The directory of procfs, by default `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::below("/")
    }
}

impl Roots {
    /// Returns the directories `sys`, `dev` and `proc` below one directory.
    pub fn below(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        Self { sys: directory.join("sys"), dev: directory.join("dev"), proc: directory.join("proc") }
    }

    /// Returns the directory with the links to all PCI devices.
    pub fn pci_devices(&self) -> PathBuf {
        self.sys.join("bus/pci/devices")
    }

    /// Returns the directory of a PCI device (a link).
    pub fn pci_device(&self, address: &PciAddress) -> PathBuf {
        self.sys.join(format!("bus/pci/devices/{address}"))
    }

    /// Returns the directory of a PCI driver. It exists while the driver is loaded.
    pub fn pci_driver(&self, driver: &str) -> PathBuf {
        self.sys.join("bus/pci/drivers").join(driver)
    }

    /// Returns the directory of a mediated device (a link).
    pub fn mdev(&self, uuid: &str) -> PathBuf {
        self.sys.join("bus/mdev/devices").join(uuid)
    }

    /// Returns the directory with the links to the devices of an IOMMU group.
    pub fn group_devices(&self, group: u32) -> PathBuf {
        self.sys.join(format!("kernel/iommu_groups/{group}/devices"))
    }
}
