//! All PCI and mediated devices of a host: one walk at the start, then only what an event names.

mod apply;
mod reader;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;

use drakkar_metadata::PciAddress;

pub(crate) use self::reader::{BlockedReads, NoAnswer, read_with_limit};
use crate::{IommuGroup, Mdev, MdevParent, PciDevice};

/// The PCI and mediated devices of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// The PCI devices.
    pub devices: BTreeMap<PciAddress, PciDevice>,
    /// The IOMMU groups by number.
    pub groups: BTreeMap<u32, IommuGroup>,
    /// The mediated devices by UUID.
    pub mdevs: BTreeMap<String, Mdev>,
    /// The devices by name that mediated devices are made of and that are no PCI devices.
    pub mdev_parents: BTreeMap<String, MdevParent>,
    /// Whether the kernel has iommufd: there is `/dev/iommu`.
    pub iommufd: bool,
    /// What could not be read and belongs to no device.
    pub problems: Vec<Problem>,
}

/// Something in sysfs that could not be read or is not as expected. It never ends a scan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file or link.
    pub path: PathBuf,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

/// What an event changed in an [`Inventory`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// PCI devices that are new.
    pub added: BTreeSet<PciAddress>,
    /// PCI devices that are gone.
    pub removed: BTreeSet<PciAddress>,
    /// PCI devices that have changed.
    pub changed: BTreeSet<PciAddress>,
    /// IOMMU groups that are new, gone or have changed, also in viability.
    pub groups: BTreeSet<u32>,
    /// Mediated devices that are new, gone or have changed.
    pub mdevs: BTreeSet<String>,
    /// Parents of mediated devices, other than PCI devices, that are new, gone or have changed.
    pub mdev_parents: BTreeSet<String>,
    /// Whether events were lost and everything was read again.
    pub rescanned: bool,
}

/// A failure that leaves no inventory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The directory of all PCI devices could not be read.
    #[error("list the PCI devices in {}: {source}; is sysfs mounted there?", .path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}
