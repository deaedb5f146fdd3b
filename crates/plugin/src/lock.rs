//! Who may work on a claim, and whose turn it is in the driver's code: within the process and, in a rolling update,
//! across the two processes of a driver that share a node.
//!
//! There are three kinds of locks, to be taken in this order, all claims of a task in one go:
//!
//! | lock | excludes | in the shared file |
//! |---|---|---|
//! | [`Locks::everything`] | all claims and turns of all processes; held while a start brings the disk in order | the whole file |
//! | [`Locks::turn`] | others in the driver's code, where that may not be entered twice at a time | byte 0 |
//! | [`Locks::claims`] | others at the same claim | the byte of the claim's slot |
//!
//! The turn comes before the claims, so that whoever waits for it, for as long as the driver takes, keeps nobody from the claims:
//! an update of a claim needs no turn. Whoever has a claim never waits for the turn, so two cannot wait for each other. A turn
//! is given back while a claim is locked, at least a few times, so that one claim does not keep the driver from all others.
//! No request to the API server is made while one of them is held.
//!
//! The file is `serialize.lock` in the driver's directory, the same that the Go framework uses. An instance that is
//! built on Go locks the whole file around each of its calls, so it excludes all of ours, and each of ours excludes it.
//!
//! Locks of the file belong to the open file description. They are always tried, never waited for in the kernel: whoever
//! does not get one tries again, after 1 ms at first and up to 50 ms later. So a wait ends when its future is dropped,
//! nothing is held after that, and no thread is blocked (G12: the Go framework's lock blocks a thread without a way to
//! cancel it, and its flavour depends on what file descriptor 0 is). The price is that the file knows no queue: who waits
//! for the whole of it gets it when nobody else holds a byte. Nothing waits with a deadline here; callers have theirs.
//!
//! A guard can be moved to another thread, for example into the closure that does the work, so that the lock lasts as long
//! as the work, also when nobody waits for its outcome any more. What a process that dies has held is free.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_metadata::name::{ClaimName, Namespace};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

/// The name of the shared file in the driver's directory.
pub(crate) const FILE: &str = "serialize.lock";

/// How long a lock of the file that another process has is left alone before it is tried again.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// What that time grows to.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// The byte of the driver's turn. No claim has it.
const TURN: Range = Range { start: 0, length: 1 };
/// All bytes that a file can have.
const WHOLE: Range = Range { start: 0, length: 0 };

/// Why a lock cannot be had, other than that somebody else has it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Something else has the file's name.
    #[error("lock file {}: is a {kind}, not a regular file: move it away", .path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    /// The system refused.
    #[error("{action} lock file {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// The locks of one process; clones are the same locks.
#[derive(Debug, Clone)]
pub(crate) struct Locks {
    claims: Arc<Table>,
    turn: Arc<tokio::sync::Mutex<()>>,
    file: Option<Arc<LockFile>>,
}

/// A claim is ours. Dropping it lets the next one have it.
#[derive(Debug)]
#[must_use = "the claim is free again when the guard is dropped"]
pub(crate) struct ClaimGuard {
    // Dropped from top to bottom: the next in this process must not find the byte still locked, since that lock would
    // be taken for its own.
    _byte: Option<RangeLock>,
    _claim: OwnedMutexGuard<()>,
    _seat: Seat,
}

/// It is our turn in the driver's code. Dropping it lets the next one in.
#[derive(Debug)]
#[must_use = "the turn is over when the guard is dropped"]
pub(crate) struct TurnGuard {
    _byte: Option<RangeLock>,
    _turn: OwnedMutexGuard<()>,
}

/// No other process works on any claim. Dropping it lets them.
#[derive(Debug)]
#[must_use = "others may work again when the guard is dropped"]
pub(crate) struct EverythingGuard {
    _whole: Option<RangeLock>,
}

impl Locks {
    /// Locks for a process that has its node to itself.
    pub(crate) fn in_process() -> Self {
        Self { claims: Arc::default(), turn: Arc::default(), file: None }
    }

    /// Locks that another process shares through a file, which is made if it is not there.
    ///
    /// Blocks, for two system calls on a local file.
    pub(crate) fn shared(path: &Path) -> Result<Self, LockError> {
        let file = LockFile::open(path)?;
        Ok(Self { file: Some(Arc::new(file)), ..Self::in_process() })
    }

    /// Whether another process may hold locks.
    pub(crate) fn are_shared(&self) -> bool {
        self.file.is_some()
    }

    /// Waits until nobody else works on the claim. Dropping the future gives up.
    ///
    /// Two claims can share a slot, in which case they exclude each other: whoever holds a claim must not wait for
    /// another.
    #[cfg(test)]
    pub(crate) async fn claim(&self, namespace: &Namespace, name: &ClaimName) -> Result<ClaimGuard, LockError> {
        self.slot(slot(namespace, name)).await
    }

    async fn slot(&self, slot: i64) -> Result<ClaimGuard, LockError> {
        let (seat, claim) = self.claims.sit_down(slot);
        let claim = claim.lock_owned().await;
        let byte = self.lock(Range { start: slot, length: 1 }).await?;
        Ok(ClaimGuard { _byte: byte, _claim: claim, _seat: seat })
    }

    /// Waits until nobody else works on any of these claims. Dropping the future gives up, and lets go of those that it has.
    ///
    /// Whoever needs several takes them here, in one go: always in the order of their slots, so that two who want the same
    /// ones do not wait for each other.
    pub(crate) async fn claims<'a>(
        &self,
        claims: impl IntoIterator<Item = (&'a Namespace, &'a ClaimName)>,
    ) -> Result<Vec<ClaimGuard>, LockError> {
        let mut slots: Vec<i64> = claims.into_iter().map(|(namespace, name)| slot(namespace, name)).collect();
        slots.sort_unstable();
        slots.dedup();
        let mut guards = Vec::with_capacity(slots.len());
        for slot in slots {
            guards.push(self.slot(slot).await?);
        }
        Ok(guards)
    }

    /// Waits for our turn in the driver's code: first come, first served within the process. Dropping the future gives up.
    pub(crate) async fn turn(&self) -> Result<TurnGuard, LockError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        Ok(TurnGuard { _byte: self.lock(TURN).await?, _turn: turn })
    }

    /// Waits until no other process works on any claim. For a start, before anything else is held or waited for: what
    /// this process holds is waited for too, and would never be free. Dropping the future gives up.
    ///
    /// A process that has its node to itself holds nothing at its start, so then there is nothing to wait for.
    pub(crate) async fn everything(&self) -> Result<EverythingGuard, LockError> {
        let Some(file) = &self.file else { return Ok(EverythingGuard { _whole: None }) };
        // A description of its own. The one for the bytes would not be in its own way, and unlocking the whole would
        // unlock every byte that is locked by then.
        let file = Arc::new(LockFile::open(&file.path)?);
        Ok(EverythingGuard { _whole: Some(file.lock(WHOLE).await?) })
    }

    /// Locks a part of the file, if there is one.
    ///
    /// All parts share one open file description, and to the kernel that is one owner, whichever task asks: it would
    /// give the same part twice. That is safe since a part is only asked for by the one task that holds its lock within
    /// the process.
    async fn lock(&self, range: Range) -> Result<Option<RangeLock>, LockError> {
        match &self.file {
            Some(file) => Ok(Some(file.lock(range).await?)),
            None => Ok(None),
        }
    }
}

/// Where a claim's lock is: the same in every process and every version of this code.
///
/// At least 2 and always even. Neighbouring locks of one owner become one, and to unlock a part of that the kernel needs
/// memory that it may not have; even ones are never neighbours.
fn slot(namespace: &Namespace, name: &ClaimName) -> i64 {
    let mut hash = Sha256::new();
    hash.update(namespace.as_str());
    hash.update("/");
    hash.update(name.as_str());
    let [first, second, third, fourth, ..] = <[u8; 32]>::from(hash.finalize());
    let hash = u32::from_be_bytes([first, second, third, fourth]) >> 2;
    2 * (i64::from(hash) + 1)
}

/// The claims that somebody in this process holds or waits for, by slot. Others take no memory.
#[derive(Debug, Default)]
struct Table {
    slots: Mutex<HashMap<i64, Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// How many hold it or wait for it.
    seats: usize,
}

/// A place among those who hold or wait for a slot; the last to leave takes the slot out of the table.
#[derive(Debug)]
struct Seat {
    table: Arc<Table>,
    slot: i64,
}

impl Table {
    fn sit_down(self: &Arc<Self>, number: i64) -> (Seat, Arc<tokio::sync::Mutex<()>>) {
        let mut slots = self.slots();
        let slot = slots.entry(number).or_default();
        slot.seats += 1;
        (Seat { table: Arc::clone(self), slot: number }, Arc::clone(&slot.lock))
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<i64, Slot>> {
        // Nothing panics while it is locked, and each change is a single step.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut slots = self.table.slots();
        if let Some(slot) = slots.get_mut(&self.slot) {
            slot.seats -= 1;
            if slot.seats == 0 {
                slots.remove(&self.slot);
            }
        }
    }
}

/// A part of the file. A length of 0 reaches to the end of all files.
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
    /// Opens a regular file and nothing else: what is at the path may have been planted there.
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
        let status = fstat(&file).map_err(|errno| io("look at")(errno.into()))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok(Self { file, path: path.to_owned() }),
            _ => Err(not_a_file("pipe or device")),
        }
    }

    async fn lock(self: &Arc<Self>, range: Range) -> Result<RangeLock, LockError> {
        let mut wait = FIRST_WAIT;
        loop {
            // Between the lock and its guard there is no await, so it cannot be lost there.
            match self.set(libc::F_WRLCK, range) {
                Ok(()) => return Ok(RangeLock { file: Arc::clone(self), range }),
                // Linux says this, and never EACCES as POSIX allows, of a lock that somebody else has.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => {
                    return Err(LockError::Io { action: "lock", path: self.path.clone(), source: errno.into() });
                }
            }
            tokio::time::sleep(wait).await;
            wait = LONGEST_WAIT.min(wait * 2);
        }
    }

    /// Locks or unlocks a part of the file, without waiting.
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

/// A part of the file that we have locked.
#[derive(Debug)]
struct RangeLock {
    file: Arc<LockFile>,
    range: Range,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        if let Err(errno) = self.file.set(libc::F_UNLCK, self.range) {
            tracing::error!(path = %self.file.path.display(), error = %io::Error::from(errno), "a lock stays locked");
        }
    }
}
