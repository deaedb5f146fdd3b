//! Why the kernel's state could not be changed.

use std::io;
use std::path::PathBuf;

use drakkar_metadata::PciAddress;
use rustix::io::Errno;

use crate::WriteError;

/// A failed change of the kernel's state. It names the device, the file, the cause, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is no such device (any more).
    #[error("{device}: there is no {}: the device was removed or never existed", .path.display())]
    Gone {
        /// The device.
        device: String,
        /// Where it should be.
        path: PathBuf,
    },
    /// The driver is not loaded.
    #[error("{device}: driver {driver} is not loaded (there is no {}): load it on the host with `modprobe {driver}`", .path.display())]
    NoDriver {
        /// The device.
        device: PciAddress,
        /// The driver.
        driver: String,
        /// Where it should be.
        path: PathBuf,
    },
    /// No driver of the kernel wants the device.
    #[error("{device}: no driver that is loaded wants this device: load one on the host, or use it with vfio-pci")]
    NoKernelDriver {
        /// The device.
        device: PciAddress,
    },
    /// The state could not be read.
    #[error("{device}: read {}: {source}", .path.display())]
    Read {
        /// The device.
        device: String,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel does not return from reading the state.
    #[error(
        "{device}: reading {} blocks in the kernel, because whoever binds or unbinds the device has not returned; the device is \
         left alone until it does. Look for a process that has the device open, and for hung tasks in the kernel's log",
        .path.display()
    )]
    ReadHung {
        /// The device.
        device: String,
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused a write or has not returned from it.
    #[error("{source}{hint}")]
    Write {
        /// What the error number means for this file, and what to do.
        hint: &'static str,
        /// What the kernel said.
        source: WriteError,
    },
    /// The kernel accepted a write, and the state is not what was written.
    #[error(
        "{device}: the kernel accepted {value:?} for {}, but {found}: look for the reason in the kernel's log",
        .path.display()
    )]
    NoEffect {
        /// The device.
        device: String,
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// What the state is.
        found: String,
    },
    /// A device cannot have virtual functions.
    #[error("{device}: has no virtual functions: there is no {}", .path.display())]
    NoSriov {
        /// The device.
        device: PciAddress,
        /// The file that is missing.
        path: PathBuf,
    },
    /// More virtual functions than a device can have.
    #[error("{device}: cannot have {asked} virtual functions, only {total}")]
    TooManyVfs {
        /// The device.
        device: PciAddress,
        /// How many are wanted.
        asked: u16,
        /// How many there can be.
        total: u16,
    },
    /// The number of virtual functions cannot change, because that removes all of them and one is in use.
    #[error(
        "{device}: cannot change the number of virtual functions from {current} to {asked}: all are removed for it, and {vf} is in use ({user})"
    )]
    VfInUse {
        /// The device.
        device: PciAddress,
        /// How many there are.
        current: u16,
        /// How many are wanted.
        asked: u16,
        /// The virtual function.
        vf: PciAddress,
        /// Who has it.
        user: String,
    },
    /// A parent has no such type of mediated devices.
    #[error("{parent}: has no mdev type {type_id}: there is no {}", .path.display())]
    NoMdevType {
        /// The parent.
        parent: String,
        /// The type.
        type_id: String,
        /// The directory that is missing.
        path: PathBuf,
    },
    /// A mediated device with this UUID exists and is another one.
    #[error("mdev {uuid}: exists already as {found}; wanted {wanted}")]
    MdevDiffers {
        /// The UUID.
        uuid: String,
        /// Its parent and type.
        found: String,
        /// The parent and type that were wanted.
        wanted: String,
    },
}

impl ChangeError {
    /// Returns whether the outcome is not known, because the kernel has not returned from this or an earlier write, or from reading
    /// the state.
    pub fn is_hung(&self) -> bool {
        matches!(
            self,
            Self::ReadHung { .. } | Self::Write { source: WriteError::Hung { .. } | WriteError::Blocked { .. }, .. }
        )
    }

    /// Returns whether the device is not there.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Returns the error number of the kernel, if it refused a write.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Write { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn errno(&self) -> Option<Errno> {
        self.raw_os_error().map(Errno::from_raw_os_error)
    }

    /// Adds what an error number means for the file that was written.
    pub(crate) fn write(source: WriteError) -> Self {
        let file = match &source {
            WriteError::Refused { path, .. } => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            _ => String::new(),
        };
        let errno = source.raw_os_error().map(Errno::from_raw_os_error);
        let hint = match (file.as_str(), errno) {
            ("bind", Some(Errno::NODEV)) => ": the driver does not want the device, or the device is gone",
            ("bind", Some(Errno::BUSY)) => ": the device has another driver, or another program works on it",
            ("bind", Some(Errno::AGAIN)) => ": the driver waits for something that is not there yet",
            ("bind", Some(Errno::INVAL)) => {
                ": without an IOMMU group vfio-pci refuses a device; turn the IOMMU on in firmware and kernel (intel_iommu=on)"
            }
            ("unbind", Some(Errno::NODEV)) => ": the device is not bound to this driver",
            ("sriov_numvfs", Some(Errno::NOENT)) => {
                ": the device's driver cannot make virtual functions, or it has none"
            }
            ("sriov_numvfs", Some(Errno::BUSY)) => ": the number can change only by way of 0, or the driver is busy",
            ("sriov_numvfs", Some(Errno::NOMEM | Errno::NOSPC)) => {
                ": the bridge above has no room for more bus numbers or memory windows; see SR-IOV in the firmware's settings"
            }
            ("create", Some(Errno::NOSPC | Errno::USERS)) => {
                ": the parent has no instance of this type left; its types share their capacity"
            }
            ("create", Some(Errno::EXIST)) => ": there is a mediated device with this UUID",
            ("remove", Some(Errno::BUSY | Errno::AGAIN)) => ": a program has the mediated device open",
            (_, Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                ": sysfs must be mounted writable, and the driver needs root on the host (a privileged container)"
            }
            _ => "",
        };
        Self::Write { hint, source }
    }
}
