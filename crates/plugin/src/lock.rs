//! Locks for claims and for driver calls: within the process and, during a rolling update, across the two instances of a
//! driver on one node.
//!
//! There are three kinds of locks. They are taken in this order, and all claims of a task at once:
//!
//! | lock | excludes | in the shared file |
//! |---|---|---|
//! | [`Locks::everything`] | all claims and driver calls of all processes; held while a start recovers the disk | the whole file |
//! | [`Locks::driver_call`] | other driver calls, where the driver's calls are serialized | byte 0 |
//! | [`Locks::claims`] | other work on the same claim | the byte of the claim's slot |
//!
//! The driver call lock comes before the claims: a task that waits for it, for as long as the driver takes, must not block
//! the claims, because an update of a claim needs no driver call. A task that holds a claim never waits for the driver call
//! lock, so there is no deadlock. While a claim is locked by another task, the driver call lock is released, at least a few
//! times, so that one claim does not block the driver for all others. No request to the API server is made while one of these
//! locks is held.
//!
//! The file is `serialize.lock` in the driver's directory, the same that the Go framework uses. An instance built with the Go
//! framework locks the whole file around each of its calls, so it excludes all of our locks, and each of ours excludes it.
//!
//! The file locks belong to the open file description. They are polled, and never waited for in the kernel: a failed attempt is
//! repeated after 1 ms, and later after up to 50 ms. So dropping the future ends the wait, leaves nothing locked, and no thread
//! is ever blocked (G12: the Go framework's lock blocks a thread and cannot be cancelled, and its kind depends on what file
//! descriptor 0 is). The price is that the file has no queue: the whole file is granted only when no other process holds a
//! byte. There are no deadlines here; callers set theirs.
//!
//! A guard can be moved to another thread, for example into the closure that does the work, so that the lock lasts as long
//! as the work even if the caller is gone. The locks of a process that dies are released.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_client::Backoff;
use drakkar_metadata::name::{ClaimName, Namespace};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use tokio::sync::OwnedMutexGuard;

/// The name of the shared file in the driver's directory.
pub(crate) const FILE: &str = "serialize.lock";

/// The delays between attempts to lock a part of the file.
const RETRY: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50)).with_jitter(1.0, 1.0);
/// The byte of the driver call lock. No claim has it.
const DRIVER_CALL: Range = Range { start: 0, length: 1 };
/// Every byte of the file.
const WHOLE_FILE: Range = Range { start: 0, length: 0 };

/// An error of the lock file. A lock that is held by another task or process is not an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// The path is not a regular file.
    #[error("lock file {}: is a {kind}, not a regular file: move it away", .path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    /// A system call failed.
    #[error("{action} lock file {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// The locks of one process. Clones share the same locks.
#[derive(Debug, Clone)]
pub(crate) struct Locks {
    claims: Arc<SlotTable>,
    driver_call: Arc<tokio::sync::Mutex<()>>,
    file: Option<Arc<LockFile>>,
}

/// The lock on a claim, released on drop.
#[derive(Debug)]
#[must_use = "the claim is unlocked when the guard is dropped"]
pub(crate) struct ClaimGuard {
    // Dropped from top to bottom: the next task of this process must not get the claim before the byte is unlocked. To the
    // kernel both have the same owner, so the late unlock would release the byte that the next task has just locked.
    _byte: Option<RangeLock>,
    _claim: OwnedMutexGuard<()>,
    _user: SlotUser,
}

/// The locks on the claims of a call, nearly always one. Shared by the work for each of them.
pub(crate) type ClaimGuards = Arc<SmallVec<[ClaimGuard; 1]>>;

/// The lock on driver calls, released on drop.
#[derive(Debug)]
#[must_use = "another task may call the driver when the guard is dropped"]
pub(crate) struct DriverCallGuard {
    _byte: Option<RangeLock>,
    _driver_call: OwnedMutexGuard<()>,
}

/// The lock that keeps other processes from all claims, released on drop.
#[derive(Debug)]
#[must_use = "other processes may work on claims when the guard is dropped"]
pub(crate) struct EverythingGuard {
    _whole: Option<RangeLock>,
}

impl Locks {
    /// Creates locks for a process that is the only instance of the driver on its node.
    pub(crate) fn in_process() -> Self {
        Self { claims: Arc::default(), driver_call: Arc::default(), file: None }
    }

    /// Creates locks that are shared with other processes through a file, which is created if it does not exist.
    ///
    /// Blocks for two system calls on a local file.
    pub(crate) fn shared(path: &Path) -> Result<Self, LockError> {
        let file = LockFile::open(path)?;
        Ok(Self { file: Some(Arc::new(file)), ..Self::in_process() })
    }

    /// Whether another process may hold locks.
    pub(crate) fn are_shared(&self) -> bool {
        self.file.is_some()
    }

    /// Locks a claim. Dropping the future cancels the wait.
    ///
    /// Two claims can share a slot, and then exclude each other: a task that holds a claim must not wait for another one.
    #[cfg(test)]
    pub(crate) async fn claim(&self, namespace: &Namespace, name: &ClaimName) -> Result<ClaimGuard, LockError> {
        self.slot(slot(namespace, name)).await
    }

    async fn slot(&self, slot: i64) -> Result<ClaimGuard, LockError> {
        let (user, claim) = self.claims.join(slot);
        let claim = claim.lock_owned().await;
        let byte = self.lock(Range { start: slot, length: 1 }).await?;
        Ok(ClaimGuard { _byte: byte, _claim: claim, _user: user })
    }

    /// Locks several claims. Dropping the future cancels the wait, and unlocks those that are already locked.
    ///
    /// A task that needs several claims must lock them in one call: they are locked in the order of their slots, so that two
    /// tasks with the same claims do not deadlock.
    pub(crate) async fn claims<'a>(
        &self,
        claims: impl IntoIterator<Item = (&'a Namespace, &'a ClaimName)>,
    ) -> Result<ClaimGuards, LockError> {
        let mut slots: SmallVec<[i64; 1]> = claims.into_iter().map(|(namespace, name)| slot(namespace, name)).collect();
        slots.sort_unstable();
        slots.dedup();
        let mut guards = SmallVec::with_capacity(slots.len());
        for slot in slots {
            guards.push(self.slot(slot).await?);
        }
        Ok(Arc::new(guards))
    }

    /// Takes the driver call lock, in the order of arrival within the process. Dropping the future cancels the wait.
    pub(crate) async fn driver_call(&self) -> Result<DriverCallGuard, LockError> {
        let driver_call = Arc::clone(&self.driver_call).lock_owned().await;
        Ok(DriverCallGuard { _byte: self.lock(DRIVER_CALL).await?, _driver_call: driver_call })
    }

    /// Waits until no other process works on any claim. For the start of a process, before it takes any other lock: it would
    /// wait forever for locks of its own. Dropping the future cancels the wait.
    ///
    /// Does not wait if the process is the only instance on its node.
    pub(crate) async fn everything(&self) -> Result<EverythingGuard, LockError> {
        let Some(file) = &self.file else { return Ok(EverythingGuard { _whole: None }) };
        // A separate open file description: with the one of the single bytes, this lock would not conflict with them, and
        // unlocking the whole file would unlock every byte that is locked by then.
        let file = Arc::new(LockFile::open(&file.path)?);
        Ok(EverythingGuard { _whole: Some(file.lock(WHOLE_FILE).await?) })
    }

    /// Locks a range of the file, if the locks are shared.
    ///
    /// All ranges share one open file description. To the kernel that is one owner, so it would grant the same range to two
    /// tasks. This is safe because only the task that holds the lock within the process asks for its range.
    async fn lock(&self, range: Range) -> Result<Option<RangeLock>, LockError> {
        match &self.file {
            Some(file) => Ok(Some(file.lock(range).await?)),
            None => Ok(None),
        }
    }
}

/// Returns the byte of the file that locks a claim: the same in every process and every version of this code.
///
/// It is at least 2 and always even. The kernel merges adjacent locks of one owner, and needs memory, which it may not have, to
/// unlock a part of a merged lock; even bytes are never adjacent.
fn slot(namespace: &Namespace, name: &ClaimName) -> i64 {
    let mut hash = Sha256::new();
    hash.update(namespace.as_str());
    hash.update("/");
    hash.update(name.as_str());
    let [first, second, third, fourth, ..] = <[u8; 32]>::from(hash.finalize());
    let hash = u32::from_be_bytes([first, second, third, fourth]) >> 2;
    2 * (i64::from(hash) + 1)
}

/// The slots that tasks of this process hold or wait for. Others take no memory.
#[derive(Debug, Default)]
struct SlotTable {
    slots: Mutex<HashMap<i64, Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// The number of tasks that hold it or wait for it.
    users: usize,
}

/// A task that holds or waits for a slot. The last one to be dropped removes the slot from the table.
#[derive(Debug)]
struct SlotUser {
    table: Arc<SlotTable>,
    slot: i64,
}

impl SlotTable {
    fn join(self: &Arc<Self>, number: i64) -> (SlotUser, Arc<tokio::sync::Mutex<()>>) {
        let mut slots = self.slots();
        let slot = slots.entry(number).or_default();
        slot.users += 1;
        (SlotUser { table: Arc::clone(self), slot: number }, Arc::clone(&slot.lock))
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i64, Slot>> {
        // Ignores poisoning: nothing panics while it is locked, and every change is a single operation.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SlotUser {
    fn drop(&mut self) {
        let mut slots = self.table.slots();
        if let Some(slot) = slots.get_mut(&self.slot) {
            slot.users -= 1;
            if slot.users == 0 {
                slots.remove(&self.slot);
            }
        }
    }
}

/// A byte range of the file. A length of 0 extends to the largest possible offset.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: i64,
    length: i64,
}

/// The shared file, open.
#[derive(Debug)]
struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Opens a regular file and nothing else: the entry at the path may have been planted there.
    fn open(path: &Path) -> Result<Self, LockError> {
        let not_a_file = |kind| LockError::NotAFile { path: path.to_owned(), kind };
        let io = |action| move |source: io::Error| LockError::Io { action, path: path.to_owned(), source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(CWD, path, flags, Mode::from_raw_mode(0o600)) {
            Err(rustix::io::Errno::LOOP) => return Err(not_a_file("symbolic link")),
            Err(rustix::io::Errno::ISDIR) => return Err(not_a_file("directory")),
            Err(rustix::io::Errno::NXIO) => return Err(not_a_file("socket or device")),
            opened => File::from(opened.map_err(|errno| io("open")(errno.into()))?),
        };
        let status = fstat(&file).map_err(|errno| io("stat")(errno.into()))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok(Self { file, path: path.to_owned() }),
            _ => Err(not_a_file("pipe or device")),
        }
    }

    async fn lock(self: &Arc<Self>, range: Range) -> Result<RangeLock, LockError> {
        let mut retry = RETRY.retry();
        loop {
            // No await between the lock and its guard, so a dropped future cannot leave it locked.
            match self.set(libc::F_WRLCK, range) {
                Ok(()) => return Ok(RangeLock { file: Arc::clone(self), range }),
                // Linux returns EAGAIN for a lock that is held elsewhere, never EACCES, which POSIX also allows.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => {
                    return Err(LockError::Io { action: "lock", path: self.path.clone(), source: errno.into() });
                }
            }
            retry.wait().await;
        }
    }

    /// Locks or unlocks a range of the file, without waiting.
    fn set(&self, kind: libc::c_int, range: Range) -> Result<(), Errno> {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: range.start,
            l_len: range.length,
            // Must be 0: the owner is the open file description.
            l_pid: 0,
        };
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
    }
}

/// A locked range of the file, unlocked on drop.
#[derive(Debug)]
struct RangeLock {
    file: Arc<LockFile>,
    range: Range,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        if let Err(errno) = self.file.set(libc::F_UNLCK, self.range) {
            tracing::error!(path = %self.file.path.display(), error = %io::Error::from(errno), "unlocking failed");
        }
    }
}
