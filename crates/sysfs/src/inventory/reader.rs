//! Reading PCI devices on threads that can be given up.
//!
//! Some files of a device wait for its lock (`driver_override`, `sriov_numvfs`), which whoever binds or unbinds it holds: while an
//! `unbind` hangs, so does reading. So devices are read on threads of their own. When no thread has finished a device within
//! the time limit, the devices that they are at are blocked: they are reported as such, the threads are given up, and the
//! devices are not read again before the kernel has returned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_metadata::PciAddress;

use crate::read::Dir;
use crate::{PciDevice, Sysfs, pci};

/// From how many devices on another thread is worth its start.
const DEVICES_PER_THREAD: usize = 128;
/// More threads than this wait for each other in the kernel.
const MAX_THREADS: usize = 4;

/// What became of reading a device.
#[derive(Debug)]
pub(super) enum Reading {
    /// This is the device.
    Found(Box<PciDevice>),
    /// There is no such device.
    Absent,
    /// It is not known, for this reason.
    Unknown(String),
}

impl Reading {
    fn blocked() -> Self {
        let text = "reading the device blocks in the kernel, so what is known of it may be old: a process that binds or \
            unbinds it has not returned";
        Self::Unknown(text.to_owned())
    }
}

/// The devices whose reading has not returned.
#[derive(Debug, Default)]
pub(crate) struct BlockedReads {
    addresses: Mutex<BTreeSet<PciAddress>>,
}

impl BlockedReads {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<PciAddress>> {
        // The set is whole after every operation on it, also if a thread panicked.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That the kernel does not return from reading a file of a device.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// It has not returned within the time limit, from this read or an earlier one.
    Blocked,
    /// There was no thread for reading.
    Thread(std::io::Error),
}

/// Reads something of a device that can block, on a thread that is given up after the time limit.
pub(crate) fn read_with_limit<T: Send + 'static>(
    sysfs: &Sysfs,
    address: PciAddress,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    if sysfs.blocked_reads().lock().contains(&address) {
        return Err(NoAnswer::Blocked);
    }
    let (sender, receiver) = channel();
    let shared = sysfs.clone();
    let thread = move || {
        let value = read();
        let mut blocked = shared.blocked_reads().lock();
        // Nobody listens any more if the device is in the set: both happen under the lock.
        if sender.send(value).is_err() && blocked.remove(&address) {
            tracing::info!(%address, "reading a device in sysfs no longer hangs");
        }
    };
    std::thread::Builder::new().name("sysfs-read".to_owned()).spawn(thread).map_err(NoAnswer::Thread)?;
    if let Ok(value) = receiver.recv_timeout(sysfs.read_timeout()) {
        return Ok(value);
    }
    let mut blocked = sysfs.blocked_reads().lock();
    // It may have come in the meantime.
    if let Ok(value) = receiver.try_recv() {
        return Ok(value);
    }
    tracing::warn!(%address, timeout = ?sysfs.read_timeout(), "reading a device in sysfs hangs");
    blocked.insert(address);
    drop(receiver);
    Err(NoAnswer::Blocked)
}

/// Reads devices, a large number of them on several threads.
pub(super) fn read(sysfs: &Sysfs, addresses: &BTreeSet<PciAddress>) -> BTreeMap<PciAddress, Reading> {
    let known = sysfs.blocked_reads().lock().clone();
    let hung: BTreeSet<String> = sysfs.hung_writes().into_iter().map(|write| write.device).collect();
    let is_blocked =
        |address: &PciAddress| known.contains(address) || (!hung.is_empty() && hung.contains(&address.to_string()));
    let (blocked, queue): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_blocked);
    let mut readings: BTreeMap<_, _> = blocked.into_iter().map(|address| (address, Reading::blocked())).collect();

    let available = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let mut threads = (queue.len() / DEVICES_PER_THREAD).clamp(1, available);
    let work = Arc::new(Work { sysfs: sysfs.clone(), queue, next: AtomicUsize::new(0) });
    let (sender, receiver) = channel();
    while readings.len() < addresses.len() {
        for _ in 0..threads {
            Work::start(&work, &sender, &mut readings);
        }
        threads = 0;
        if let Ok((address, reading)) = receiver.recv_timeout(sysfs.read_timeout()) {
            readings.insert(address, reading);
            continue;
        }
        // A thread sends while it holds the lock: its device is either here now, or the thread will find it in the set.
        let mut blocked = sysfs.blocked_reads().lock();
        let before = readings.len();
        readings.extend(receiver.try_iter());
        if readings.len() > before {
            continue;
        }
        for address in
            work.begun().iter().filter(|address| !readings.contains_key(*address)).copied().collect::<Vec<_>>()
        {
            tracing::warn!(%address, timeout = ?sysfs.read_timeout(), "reading a device in sysfs hangs");
            readings.insert(address, Reading::blocked());
            blocked.insert(address);
        }
        // All threads are at devices that block; another one goes on with the rest.
        threads = 1;
    }
    readings
}

/// The devices to be read, and up to which they are begun.
struct Work {
    sysfs: Sysfs,
    queue: Vec<PciAddress>,
    next: AtomicUsize,
}

impl Work {
    /// Starts a thread. Without one, what is not begun is not known.
    fn start(work: &Arc<Self>, sender: &Sender<(PciAddress, Reading)>, readings: &mut BTreeMap<PciAddress, Reading>) {
        let thread = (work.clone(), sender.clone());
        let spawned = std::thread::Builder::new().name("sysfs-read".to_owned()).spawn(move || thread.0.run(&thread.1));
        if let Err(error) = spawned {
            while let Some(address) = work.take() {
                readings.insert(address, Reading::Unknown(format!("starting a thread for reading: {error}")));
            }
        }
    }

    fn take(&self) -> Option<PciAddress> {
        self.queue.get(self.next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    /// Returns the devices that threads have begun with, or are done with.
    fn begun(&self) -> &[PciAddress] {
        &self.queue[..self.next.load(Ordering::Relaxed).min(self.queue.len())]
    }

    fn run(&self, sender: &Sender<(PciAddress, Reading)>) {
        let devices = Dir::open(&self.sysfs, self.sysfs.roots().pci_devices());
        while let Some(address) = self.take() {
            let reading = match &devices {
                Ok(Some(devices)) => {
                    pci::read(devices, &address).map_or(Reading::Absent, |device| Reading::Found(Box::new(device)))
                }
                Ok(None) => Reading::Absent,
                Err(error) => Reading::Unknown(format!("opening the directory of all devices: {error}")),
            };
            let mut blocked = self.sysfs.blocked_reads().lock();
            if blocked.remove(&address) {
                tracing::info!(%address, "reading a device in sysfs no longer hangs");
            }
            if sender.send((address, reading)).is_err() {
                return;
            }
        }
    }
}
