//! The threads of writes, and which of them have not returned.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Kernel, WriteError};

/// A write that the kernel has not returned from within the time limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HungWrite {
    /// The device that the write is for.
    pub device: String,
    /// The file.
    pub path: PathBuf,
    /// The value.
    pub value: String,
    /// When the write began.
    pub since: Instant,
}

/// The writes that have hung. Several threads can have begun writes for one device before one of them hung.
#[derive(Debug, Default)]
pub(super) struct Writes {
    next: AtomicU64,
    hung: Mutex<BTreeMap<u64, HungWrite>>,
}

impl Writes {
    pub(super) fn write(
        self: &Arc<Self>,
        kernel: &Arc<dyn Kernel>,
        device: &str,
        path: &Path,
        value: &str,
        timeout: Duration,
    ) -> Result<(), WriteError> {
        self.ensure_none_hung(device, path)?;
        let write = HungWrite {
            device: device.to_owned(),
            path: path.to_owned(),
            value: value.to_owned(),
            since: Instant::now(),
        };
        let (sender, receiver) = channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let thread = Thread { id, kernel: kernel.clone(), writes: self.clone(), write: write.clone(), sender };
        let spawned = std::thread::Builder::new().name("sysfs-write".to_owned()).spawn(move || thread.run());
        spawned.map_err(|source| WriteError::Thread { device: device.to_owned(), path: path.to_owned(), source })?;

        let result = match receiver.recv_timeout(timeout) {
            Ok(result) => result,
            Err(error) => {
                // The thread sends its result while it holds the lock, so it is either here now, or the thread will find the
                // entry and remove it.
                let mut hung = self.lock();
                match (receiver.try_recv(), error) {
                    (Ok(result), _) => result,
                    (Err(_), RecvTimeoutError::Disconnected) => {
                        Err(io::Error::other("the thread of the write ended without a result"))
                    }
                    (Err(_), RecvTimeoutError::Timeout) => {
                        hung.insert(id, write.clone());
                        tracing::warn!(device, path = %path.display(), value, ?timeout, "write to sysfs hangs");
                        let HungWrite { device, path, value, .. } = write;
                        return Err(WriteError::Hung { device, path, value, after: timeout });
                    }
                }
            }
        };
        result.map_err(|source| WriteError::Refused {
            device: write.device,
            path: write.path,
            value: write.value,
            source,
        })
    }

    pub(super) fn ensure_none_hung(&self, device: &str, path: &Path) -> Result<(), WriteError> {
        match self.lock().values().find(|write| write.device == device) {
            None => Ok(()),
            Some(earlier) => Err(WriteError::Blocked {
                device: device.to_owned(),
                path: path.to_owned(),
                earlier: Box::new(earlier.clone()),
            }),
        }
    }

    pub(super) fn hung(&self) -> Vec<HungWrite> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, HungWrite>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread of one write has.
struct Thread {
    id: u64,
    kernel: Arc<dyn Kernel>,
    writes: Arc<Writes>,
    write: HungWrite,
    sender: Sender<io::Result<()>>,
}

impl Thread {
    fn run(self) {
        let HungWrite { device, path, value, since } = &self.write;
        let write = AssertUnwindSafe(|| self.kernel.write(path, value.as_bytes()));
        let result = catch_unwind(write).unwrap_or_else(|_| Err(io::Error::other("the kernel's stand-in panicked")));
        let error = result.as_ref().err().map(ToString::to_string);
        let mut hung = self.writes.lock();
        // Nobody listens any more if the write is in the map: both happen under the lock.
        drop(self.sender.send(result));
        if hung.remove(&self.id).is_some() {
            let after = since.elapsed();
            tracing::info!(device, path = %path.display(), value, ?after, error, "hung write to sysfs returned");
        }
    }
}
