//! Mediated devices: their types, parents and instances.

mod read;

use std::fmt;
use std::path::PathBuf;

use drakkar_metadata::PciAddress;

pub(crate) use self::read::{read, read_parent, read_types, sorted_names};
use crate::Problem;

/// A type of mediated devices that can be made of a parent device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MdevType {
    /// The name of its directory in `mdev_supported_types`, such as `nvidia-63`.
    pub id: String,
    /// The name for people, such as `GRID P4-1Q`.
    pub name: Option<String>,
    /// The description, which has lines of its own format for each driver.
    pub description: Option<String>,
    /// The API of the devices: `vfio-pci`, `vfio-platform`, `vfio-ccw`, `vfio-ap`.
    pub device_api: Option<String>,
    /// How many more can be made now, this type alone.
    pub available_instances: u32,
    /// How many there are. Read together with `available_instances`.
    pub instances: u32,
}

/// A mediated device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mdev {
    /// The UUID, as the kernel prints it.
    pub uuid: String,
    /// The directory of the device below sysfs, without links.
    pub path: PathBuf,
    /// The id of its type.
    pub type_id: Option<String>,
    /// The device that it was made of.
    pub parent: MdevParentName,
    /// The driver that it is bound to, usually `vfio_mdev` or the one of its vendor.
    pub driver: Option<String>,
    /// The IOMMU group, which no other device is in.
    pub iommu_group: Option<u32>,
    /// The name of the VFIO character device, if it has a device node.
    pub vfio_cdev: Option<String>,
    /// What could not be read or is not as expected.
    pub problems: Vec<Problem>,
}

/// The name of a device that mediated devices are made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MdevParentName {
    /// A PCI device.
    Pci(PciAddress),
    /// Another device, such as `mtty` of the kernel's samples or a channel of s390.
    Other(String),
}

impl fmt::Display for MdevParentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Other(name) => f.pad(name),
        }
    }
}

/// A device that mediated devices are made of and that is no PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MdevParent {
    /// Its name in `/sys/class/mdev_bus`.
    pub name: String,
    /// The directory of the device below sysfs, without links.
    pub path: PathBuf,
    /// Its types.
    pub mdev_types: Vec<MdevType>,
    /// What could not be read or is not as expected.
    pub problems: Vec<Problem>,
}
