//! Why a claim's devices could not be prepared or taken back.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use drakkar_driver_kit::cdi::CdiError;
use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{ChangeError, PciAddress};

use crate::nodes::NodeError;
use crate::target::Target;

/// A failed prepare or unprepare. It names the claim, the device, the cause, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// Another claim has the device, or something that it is part of.
    #[error("claim {claim}: {device}: {used} is held by claim {holder}: unprepare that claim first")]
    InUse {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// What is held.
        used: String,
        /// The other claim.
        holder: Box<ClaimRef>,
    },
    /// The claim names a device twice.
    #[error("claim {claim}: {device} is requested twice")]
    Duplicate {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
    },
    /// The claim was prepared with other devices.
    #[error("claim {claim}: was prepared with other devices ({prepared}) and has not been unprepared since")]
    Differs {
        /// The claim.
        claim: Box<ClaimRef>,
        /// Its devices.
        prepared: String,
    },
    /// The device is not in the IOMMU group that it was published with.
    #[error(
        "claim {claim}: {device}: its IOMMU group was {published} when it was published and is {} now: it is published anew, delete the pod so that it is scheduled again",
        .now.map_or("none".to_owned(), |group| group.to_string())
    )]
    GroupChanged {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// The group that it was published with.
        published: u32,
        /// The group that it is in.
        now: Option<u32>,
    },
    /// The device has no IOMMU group.
    #[error(
        "claim {claim}: {device}: has no IOMMU group, which vfio-pci needs: turn the IOMMU on in firmware and kernel (intel_iommu=on)"
    )]
    NoGroup {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
    },
    /// The device's IOMMU group is one that VFIO has made without an IOMMU.
    #[error(
        "claim {claim}: {device}: IOMMU group {group} has no IOMMU behind it (vfio-noiommu), so the device could read and write all \
         memory of the host: turn the IOMMU on in firmware and kernel (intel_iommu=on)"
    )]
    NoIommu {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// The group.
        group: u32,
    },
    /// Other devices of the group would have to be taken from their drivers, and the configuration does not allow it.
    #[error(
        "claim {claim}: {device}: IOMMU group {group} goes to user space as a whole, and the configuration does not let these go along: {}",
        .members.iter().map(|(address, driver)| format!("{address} (driver {driver})")).collect::<Vec<_>>().join(", ")
    )]
    Companions {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// The group.
        group: u32,
        /// The devices and their drivers.
        members: Vec<(PciAddress, String)>,
    },
    /// A function would have to be taken from its driver, which would destroy virtual functions or mediated devices.
    #[error("claim {claim}: {device}: {function} cannot leave its driver, because it has {parts}: remove them first")]
    HasParts {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// The function.
        function: PciAddress,
        /// What it has.
        parts: String,
    },
    /// The kernel's state could not be read or changed.
    #[error("claim {claim}: {device}: {source}")]
    Change {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: String,
        /// The cause.
        source: Box<ChangeError>,
    },
    /// A device node is missing.
    #[error("claim {claim}: {device}: {source}")]
    Node {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The device.
        device: Target,
        /// The cause.
        source: NodeError,
    },
    /// The journal could not be written.
    #[error("claim {claim}: journal {}: {source}", .path.display())]
    Journal {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The CDI spec could not be written or removed.
    #[error("claim {claim}: {source}")]
    Cdi {
        /// The claim.
        claim: Box<ClaimRef>,
        /// The cause.
        source: CdiError,
    },
    /// Another claim's devices in the same group or of the same parent were being worked on all the time.
    #[error(
        "claim {claim}: waited {waited:?} for claim {holder}, whose devices share a group or parent with those of this claim"
    )]
    Busy {
        /// The claim.
        claim: String,
        /// How long.
        waited: Duration,
        /// The other claim.
        holder: String,
    },
    /// Preparing failed, and taking it back did as well. It is tried again with the next prepare, unprepare or start.
    #[error("{source}; taking it back failed as well and is tried again: {rollback}")]
    Rollback {
        /// Why preparing failed.
        source: Box<PrepareError>,
        /// Why taking it back failed.
        rollback: Box<PrepareError>,
    },
    /// The driver's directories could not be used.
    #[error("{}: {source}", .path.display())]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl PrepareError {
    /// Returns whether a write to sysfs has not returned: trying again helps only after it does.
    pub fn is_hung(&self) -> bool {
        match self {
            Self::Change { source, .. } => source.is_hung(),
            Self::Rollback { source, rollback } => source.is_hung() || rollback.is_hung(),
            _ => false,
        }
    }

    /// Returns whether the device is not there any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Change { source, .. } => source.is_gone(),
            Self::Rollback { source, .. } => source.is_gone(),
            _ => false,
        }
    }
}
