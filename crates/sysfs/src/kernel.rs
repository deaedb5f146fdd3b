//! Writes to sysfs, each on a thread of its own and with a limit of time.
//!
//! A write to sysfs runs a driver's code: an `unbind` waits until the last user of the device is gone, which can be never. The
//! thread of such a write cannot be ended. So [`Sysfs::write`] stops waiting after the limit, reports
//! [`WriteError::Hung`], and refuses later writes for the same device, by name, until the kernel has returned from the
//! first: at most one thread is lost for each device, and no write overtakes another.

mod writes;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use self::writes::HungWrite;
use self::writes::Writes;
use crate::Roots;
use crate::inventory::BlockedReads;

/// The time that a write may take unless [`Sysfs::with_write_timeout`] says otherwise.
pub const DEFAULT_WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time that reading a device may take unless [`Sysfs::with_read_timeout`] says otherwise.
pub const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Who carries out writes: the kernel itself ([`HostKernel`]) or a simulation of it. Reads go to the file system below
/// [`Roots`] in both cases.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Writes a value to a file of sysfs, in one system call. The file is neither created nor truncated. The error is the
    /// one of the driver behind the file.
    fn write(&self, path: &Path, value: &[u8]) -> io::Result<()>;
}

/// The kernel of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostKernel;

impl Kernel for HostKernel {
    fn write(&self, path: &Path, value: &[u8]) -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
        // One call: the kernel takes each call as a value of its own.
        let written = file.write(value)?;
        if written == value.len() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::WriteZero, format!("only {written} of {} bytes were taken", value.len())))
    }
}

/// A failed write to sysfs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The kernel refused the value.
    #[error("{device}: write {value:?} to {}: {source}", .path.display())]
    Refused {
        /// The device that the write is for.
        device: String,
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel did not return in time. It may still carry out the write.
    #[error(
        "{device}: write {value:?} to {}: the kernel has not returned for {after:?}; writes for this device are refused \
         until it does. Look for a process that has the device open, and for hung tasks in the kernel's log",
        .path.display()
    )]
    Hung {
        /// The device that the write is for.
        device: String,
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// How long was waited.
        after: Duration,
    },
    /// An earlier write for the device has not returned yet.
    #[error(
        "{device}: {} is left alone: an earlier write of {:?} to {} has not returned for {:?}",
        .path.display(), .earlier.value, .earlier.path.display(), .earlier.since.elapsed()
    )]
    Blocked {
        /// The device that the write is for.
        device: String,
        /// The file.
        path: PathBuf,
        /// The write that has not returned.
        earlier: Box<HungWrite>,
    },
    /// There was no thread for the write, which was not begun.
    #[error("{device}: write to {}: starting a thread: {source}", .path.display())]
    Thread {
        /// The device that the write is for.
        device: String,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl WriteError {
    /// Returns the error number of the kernel, if it refused the value.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Returns whether the outcome is unknown: the kernel has not returned and may still act.
    pub fn is_hung(&self) -> bool {
        matches!(self, Self::Hung { .. })
    }
}

/// The devices of a host: where to read about them, and who writes. Clones are cheap and share hung writes and counters.
#[derive(Debug, Clone)]
pub struct Sysfs {
    roots: Arc<Roots>,
    kernel: Arc<dyn Kernel>,
    write_timeout: Duration,
    read_timeout: Duration,
    writes: Arc<Writes>,
    blocked_reads: Arc<BlockedReads>,
    opens: Arc<AtomicU64>,
}

impl Default for Sysfs {
    /// The kernel of this host at the usual directories.
    fn default() -> Self {
        Self::at(Roots::default())
    }
}

impl Sysfs {
    /// The kernel of this host with its file systems in other directories.
    pub fn at(roots: Roots) -> Self {
        Self::with_kernel(roots, Arc::new(HostKernel))
    }

    /// Another kernel, such as a simulation.
    pub fn with_kernel(roots: Roots, kernel: Arc<dyn Kernel>) -> Self {
        Self {
            roots: Arc::new(roots),
            kernel,
            write_timeout: DEFAULT_WRITE_TIMEOUT,
            read_timeout: DEFAULT_READ_TIMEOUT,
            writes: Arc::default(),
            blocked_reads: Arc::default(),
            opens: Arc::default(),
        }
    }

    /// Sets how long to wait for the kernel to return from a write.
    #[must_use]
    pub fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets how long to wait for a device that is being read: some of its files block while a driver does not let go of it.
    #[must_use]
    pub fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// Returns the directories.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the number of files and directories that were opened for reading, by this and all its clones. It shows what an
    /// update costs: see [`crate::Inventory::apply`].
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Writes a value to a file and waits until the kernel has returned, at most for the time limit. `device` is the PCI
    /// address or UUID that the write is for: many devices share files such as `drivers/vfio-pci/bind`.
    pub fn write(&self, device: &impl fmt::Display, path: &Path, value: &str) -> Result<(), WriteError> {
        self.writes.write(&self.kernel, &device.to_string(), path, value, self.write_timeout)
    }

    /// Returns [`WriteError::Blocked`] if an earlier write for the device has not returned. Ask before you read a file that
    /// waits for the device's lock, which such a write may hold: `driver_override`, `sriov_numvfs`.
    pub fn ensure_no_hung_write(&self, device: &impl fmt::Display, path: &Path) -> Result<(), WriteError> {
        self.writes.ensure_none_hung(&device.to_string(), path)
    }

    /// Returns the writes that the kernel has not returned from within the time limit.
    pub fn hung_writes(&self) -> Vec<HungWrite> {
        self.writes.hung()
    }

    pub(crate) fn read_timeout(&self) -> Duration {
        self.read_timeout
    }

    pub(crate) fn blocked_reads(&self) -> &BlockedReads {
        &self.blocked_reads
    }

    pub(crate) fn count_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }
}
