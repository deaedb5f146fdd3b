//! How a device is handed to a claim: the driver that it is bound to, and the interface of the kernel's VFIO.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kernel driver of a device while a claim has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// vfio-pci, for virtual machines and for drivers in user space.
    #[default]
    Vfio,
    /// The kernel driver that the device had before.
    Kernel,
    /// No change: the device stays bound as it is, and containers get no device nodes. For programs that bind it themselves.
    None,
}

/// The interface of VFIO through which a program opens a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IommuBackend {
    /// iommufd where the kernel has it, with the group's node beside it, else the group's node alone.
    #[default]
    Auto,
    /// The node of the IOMMU group: `/dev/vfio/N` and `/dev/vfio/vfio`.
    Legacy,
    /// The node of the device: `/dev/vfio/devices/vfioN` and `/dev/iommu`.
    Iommufd,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vfio => "vfio",
            Self::Kernel => "kernel",
            Self::None => "none",
        })
    }
}

impl fmt::Display for IommuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Legacy => "legacy",
            Self::Iommufd => "iommufd",
        })
    }
}
