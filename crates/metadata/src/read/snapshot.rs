//! A consistent read: the whole content of a file that may be written to meanwhile.
//!
//! A metadata file is updated in place, because a running container holds on to the inode that was mounted into it.
//! A single write is not atomic to a concurrent read, so three things keep a mix of old and new from being returned:
//!
//! 1. The writer holds an exclusive `flock` on the file while it writes, the reader a shared one while it reads. Then
//!    no read of ours overlaps with a write of ours.
//! 2. The content counts only when two reads, one after the other, are equal byte by byte.
//! 3. Between the two reads the reader waits for the write that is under way, if there is one
//!    ([`Source::finish_write`]): a write that was interrupted in its middle cannot let both reads see the same half.
//!
//! Whoever can read the file can also lock it, and must not be able to keep others from reading. So the lock is waited
//! for only briefly. A reader that did not get it also asks that nobody has begun a write for some time:
//! [`MAX_QUIET`] at first, and less as the call's time runs out, down to [`MIN_QUIET`], so that a file which is
//! rewritten again and again is read as well.
//!
//! What remains, while somebody else holds the lock: a writer that needs several writes for one update and pauses
//! between two of them for longer than that time. On file systems whose `lseek` does not wait for writes (ext4, btrfs,
//! tmpfs and overlays of them do; XFS needs no waiting) the same holds for a pause within a write.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};

/// How long a reader waits for writers' locks, all files together.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// How long a reader goes on when files are being written, all files together.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
/// How long a look at many files goes on, all directories and files together.
const WALK_WAIT: Duration = Duration::from_secs(10);
/// How long a look may take at least, however little time its caller has.
const SHORTEST_WALK: Duration = Duration::from_secs(1);
/// For how long a file that is locked must not have been written to, while there is plenty of time.
const MAX_QUIET: Duration = Duration::from_secs(1);
/// The same when there is no time left. More than the steps in which kernels count the times of files.
const MIN_QUIET: Duration = Duration::from_millis(20);
/// How long a lock is tried for without sleeping. A writer that takes it again at once leaves it free for a microsecond.
const LOCK_SPIN: Duration = Duration::from_micros(500);
/// How much is compared at a time.
const CHUNK: usize = 16 * 1024;

/// How long one call may wait, for all files that it reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    lock_until: Instant,
    settle_until: Instant,
    walk_until: Instant,
}

impl Default for Patience {
    fn default() -> Self {
        Self::from(Instant::now())
    }
}

impl Patience {
    fn from(now: Instant) -> Self {
        Self { lock_until: now + LOCK_WAIT, settle_until: now + SETTLE_WAIT, walk_until: now + WALK_WAIT }
    }

    /// The same, but not beyond a deadline.
    pub(super) fn until(deadline: Instant) -> Self {
        let now = Instant::now();
        let Self { lock_until, settle_until, walk_until } = Self::from(now);
        Self {
            lock_until: lock_until.min(deadline),
            settle_until: settle_until.min(deadline),
            // Somebody who has no time at all still wants one look.
            walk_until: walk_until.min(deadline.max(now + SHORTEST_WALK)),
        }
    }

    /// When a look at many files ends.
    pub(super) fn walk_until(&self) -> Instant {
        self.walk_until
    }

    /// For how long a file that is locked must not have been written to.
    fn quiet_time(&self, now: Instant) -> Duration {
        (self.settle_until.saturating_duration_since(now) / 4).clamp(MIN_QUIET, MAX_QUIET)
    }
}

#[derive(Debug)]
pub(super) enum SnapshotError {
    Io(io::Error),
    TooLarge,
    Unsettled,
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What changes with every write, as far as the file system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What a snapshot needs of a file and of time; a test can stand in for a writer and for the clock.
trait Source {
    /// Reads what is at an offset, as `pread` does.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Takes a shared lock if it is to be had in time; it is released when the answer is dropped.
    fn lock(&self, until: Instant) -> SharedLock<'_>;

    /// Returns when the write that is under way is finished.
    fn finish_write(&self);

    /// What changes with every write, and how long ago the last one began; a time in the future says nothing.
    fn stamp(&self) -> io::Result<(Stamp, Duration)>;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn lock(&self, until: Instant) -> SharedLock<'_> {
        SharedLock::wait(self, until)
    }

    fn finish_write(&self) {
        // A write holds the inode's lock from its first byte to its last, and the search for a hole takes it. The
        // answer is of no interest, and neither is an error: an empty file has no hole, and not all file systems know
        // of them. Nobody uses the file's position.
        let _ = seek(self, SeekFrom::Hole(0));
    }

    fn stamp(&self) -> io::Result<(Stamp, Duration)> {
        let metadata = self.metadata()?;
        let stamp = Stamp {
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        Ok((stamp, metadata.modified()?.elapsed().unwrap_or_default()))
    }
}

/// The content of a file of at most `limit` bytes.
pub(super) fn read(file: &File, size: u64, limit: u64, patience: Patience) -> Result<Vec<u8>, SnapshotError> {
    settle(file, size, limit, patience)
}

fn settle(source: &impl Source, size: u64, limit: u64, patience: Patience) -> Result<Vec<u8>, SnapshotError> {
    let mut pauses = Pauses::default();
    let mut watch = None;
    loop {
        {
            let lock = source.lock(patience.lock_until);
            if !lock.is_refused() {
                let content = read_whole(source, size, limit)?;
                source.finish_write();
                if is_still(source, &content)? {
                    return Ok(content);
                }
            } else if let Some(content) = read_unlocked(source, size, limit, patience, &mut watch)? {
                return Ok(content);
            }
        }
        if source.now() >= patience.settle_until {
            return Err(SnapshotError::Unsettled);
        }
        pauses.pause(source);
    }
}

/// Since when a file has looked as it does.
struct Watch {
    stamp: Stamp,
    since: Instant,
}

/// The content of a file that somebody else has locked, if nobody has written to it for long enough.
fn read_unlocked(
    source: &impl Source,
    size: u64,
    limit: u64,
    patience: Patience,
    watch: &mut Option<Watch>,
) -> Result<Option<Vec<u8>>, SnapshotError> {
    let (before, _) = source.stamp()?;
    let since = match watch {
        Some(watch) if watch.stamp == before => watch.since,
        _ => source.now(),
    };
    *watch = Some(Watch { stamp: before, since });
    let content = read_whole(source, size, limit)?;
    source.finish_write();
    if !is_still(source, &content)? {
        return Ok(None);
    }
    let (after, age) = source.stamp()?;
    let now = source.now();
    // The file's own time tells at once what watching tells only after a while, and also if its clock is another one.
    let quiet = age.max(now.saturating_duration_since(since));
    Ok((before == after && quiet >= patience.quiet_time(now)).then_some(content))
}

fn read_whole(file: &impl Source, size: u64, limit: u64) -> Result<Vec<u8>, SnapshotError> {
    if size > limit {
        return Err(SnapshotError::TooLarge);
    }
    // `size` is only a hint: the file may have grown.
    let mut content = vec![0; usize::try_from(size).unwrap_or_default() + 1];
    let mut length = 0;
    loop {
        match file.read_at(&mut content[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if length as u64 > limit {
            return Err(SnapshotError::TooLarge);
        }
        if length == content.len() {
            content.resize(length * 2, 0);
        }
    }
    content.truncate(length);
    Ok(content)
}

/// Whether the file still has exactly this content.
fn is_still(file: &impl Source, content: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; CHUNK.min(content.len() + 1)];
    let mut compared = 0;
    loop {
        let count = match file.read_at(&mut buffer, compared as u64) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return Ok(compared == content.len());
        }
        if content.get(compared..compared + count) != Some(&buffer[..count]) {
            return Ok(false);
        }
        compared += count;
    }
}

/// A shared lock if it could be had in time; released when dropped.
enum SharedLock<'a> {
    Held(&'a File),
    /// Somebody else has it.
    Refused,
    /// A file system without locks.
    Impossible,
}

impl<'a> SharedLock<'a> {
    /// Tries for [`LOCK_SPIN`] at least, and again and again until the time is over.
    fn wait(file: &'a File, until: Instant) -> Self {
        let mut pauses = Pauses::default();
        loop {
            let spin_until = Instant::now() + LOCK_SPIN;
            loop {
                match file.try_lock_shared() {
                    Ok(()) => return Self::Held(file),
                    Err(TryLockError::Error(_)) => return Self::Impossible,
                    Err(TryLockError::WouldBlock) if Instant::now() < spin_until => std::hint::spin_loop(),
                    Err(TryLockError::WouldBlock) => break,
                }
            }
            if Instant::now() >= until {
                return Self::Refused;
            }
            pauses.pause(file);
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        if let Self::Held(file) = self {
            // Cannot fail for a lock that is held; closing the file would release it as well.
            let _ = file.unlock();
        }
    }
}

/// Pauses that grow from nothing to a few milliseconds.
#[derive(Default)]
struct Pauses(u32);

impl Pauses {
    fn pause(&mut self, source: &impl Source) {
        match self.0 {
            0..3 => std::thread::yield_now(),
            count => source.sleep(Duration::from_micros(50 << (count - 3).min(6))),
        }
        self.0 += 1;
    }
}

#[cfg(test)]
mod tests;
