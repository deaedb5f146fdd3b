//! Reads the whole content of a file consistently, while another process may write to it.
//!
//! A metadata file is updated in place, because a running container keeps the inode that was mounted into it. A write is
//! not atomic to a concurrent read, so three measures prevent a mix of old and new content:
//!
//! 1. The writer holds an exclusive `flock` on the file while it writes, and the reader a shared one while it reads, so
//!    Drakkar's reads and writes never overlap.
//! 2. The content counts only if two consecutive reads are equal byte by byte.
//! 3. Between the two reads the reader waits for a write in progress ([`Source::finish_write`]), so that both reads
//!    cannot see the same half of an interrupted write.
//!
//! Any process that can read the file can also lock it, and must not be able to block other readers. The reader therefore
//! waits for the lock only briefly. Without the lock it also requires that no write has started for some time:
//! [`MAX_QUIET`] at first, and less towards the call's deadline, down to [`MIN_QUIET`], so that a file with frequent
//! updates can be read as well.
//!
//! One case remains while another process holds the lock: a writer that needs several writes for one update and pauses
//! between two of them for longer than that time. On file systems whose `lseek` does not wait for writes (ext4, btrfs,
//! tmpfs and overlays of them do; XFS needs no waiting) the same holds for a pause within a write.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};

/// The time to wait for writers' locks, for all files of a call together.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// The time to retry reads of files that are being written, for all files of a call together.
const REREAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a search through directories and files.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The minimum timeout of a search, even if the caller's deadline is earlier.
const MIN_SEARCH_TIMEOUT: Duration = Duration::from_secs(1);
/// The time since the last write that a read without the lock requires at first.
const MAX_QUIET: Duration = Duration::from_secs(1);
/// The time since the last write that a read without the lock requires at its deadline. It exceeds the resolution of
/// file timestamps.
const MIN_QUIET: Duration = Duration::from_millis(20);
/// The time to spin for a lock. A writer that takes it again at once leaves it free for about a microsecond.
const LOCK_SPIN: Duration = Duration::from_micros(500);
/// The number of bytes to compare at a time.
const CHUNK: usize = 16 * 1024;

/// The deadlines of a call, for all files that it reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    lock_until: Instant,
    reread_until: Instant,
    search_until: Instant,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::from(Instant::now())
    }
}

impl Deadlines {
    fn from(now: Instant) -> Self {
        Self { lock_until: now + LOCK_TIMEOUT, reread_until: now + REREAD_TIMEOUT, search_until: now + SEARCH_TIMEOUT }
    }

    /// Creates the default deadlines, limited by the caller's deadline.
    pub(super) fn until(deadline: Instant) -> Self {
        let now = Instant::now();
        let Self { lock_until, reread_until, search_until } = Self::from(now);
        Self {
            lock_until: lock_until.min(deadline),
            reread_until: reread_until.min(deadline),
            // Even with a timeout of zero there is one search.
            search_until: search_until.min(deadline.max(now + MIN_SEARCH_TIMEOUT)),
        }
    }

    /// Returns the deadline of a search.
    pub(super) fn search_until(&self) -> Instant {
        self.search_until
    }

    /// Returns the time since the last write that a read without the lock requires.
    fn quiet_time(&self, now: Instant) -> Duration {
        (self.reread_until.saturating_duration_since(now) / 4).clamp(MIN_QUIET, MAX_QUIET)
    }
}

#[derive(Debug)]
pub(super) enum SnapshotError {
    Io(io::Error),
    TooLarge,
    Changing,
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The metadata of a file that changes with every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The file and clock operations that a snapshot needs; tests replace them.
trait Source {
    /// Reads at an offset, as `pread` does.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Tries to take a shared lock before a deadline; dropping the result releases it.
    fn lock(&self, until: Instant) -> SharedLock<'_>;

    /// Waits for a write in progress.
    fn finish_write(&self);

    /// Returns the file's stamp, and the time since the last write; zero if that is in the future.
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
        // A write holds the inode's lock from its first byte to its last, and `SEEK_HOLE` takes that lock. The result and
        // errors are ignored: an empty file has no hole, and not all file systems support holes. The file's position is
        // not used.
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

/// Reads the content of a file of at most `limit` bytes.
pub(super) fn read(file: &File, size: u64, limit: u64, deadlines: Deadlines) -> Result<Vec<u8>, SnapshotError> {
    read_consistent(file, size, limit, deadlines)
}

fn read_consistent(
    source: &impl Source,
    size: u64,
    limit: u64,
    deadlines: Deadlines,
) -> Result<Vec<u8>, SnapshotError> {
    let mut spin = SpinWait::default();
    let mut watch = None;
    loop {
        {
            let lock = source.lock(deadlines.lock_until);
            if !lock.is_refused() {
                let content = read_whole(source, size, limit)?;
                source.finish_write();
                if has_content(source, &content)? {
                    return Ok(content);
                }
            } else if let Some(content) = read_unlocked(source, size, limit, deadlines, &mut watch)? {
                return Ok(content);
            }
        }
        if source.now() >= deadlines.reread_until {
            return Err(SnapshotError::Changing);
        }
        spin.wait(source);
    }
}

/// A file's stamp, and the time since which it is unchanged.
struct Watch {
    stamp: Stamp,
    since: Instant,
}

/// Reads a file that another process has locked. Returns `None` if it was written to too recently.
fn read_unlocked(
    source: &impl Source,
    size: u64,
    limit: u64,
    deadlines: Deadlines,
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
    if !has_content(source, &content)? {
        return Ok(None);
    }
    let (after, age) = source.stamp()?;
    let now = source.now();
    // The modification time makes waiting unnecessary for an old file. Observed time counts as well, because the file
    // system's clock can differ.
    let quiet = age.max(now.saturating_duration_since(since));
    Ok((before == after && quiet >= deadlines.quiet_time(now)).then_some(content))
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

/// Returns whether the file still has exactly this content.
fn has_content(file: &impl Source, content: &[u8]) -> io::Result<bool> {
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

/// The result of trying to take a shared lock, which is released when dropped.
enum SharedLock<'a> {
    Held(&'a File),
    /// Another process holds an exclusive lock.
    Refused,
    /// The file system has no locks.
    Unsupported,
}

impl<'a> SharedLock<'a> {
    /// Tries to take the lock until the deadline, and for at least [`LOCK_SPIN`].
    fn wait(file: &'a File, until: Instant) -> Self {
        let mut spin = SpinWait::default();
        loop {
            let spin_until = Instant::now() + LOCK_SPIN;
            loop {
                match file.try_lock_shared() {
                    Ok(()) => return Self::Held(file),
                    Err(TryLockError::Error(_)) => return Self::Unsupported,
                    Err(TryLockError::WouldBlock) if Instant::now() < spin_until => std::hint::spin_loop(),
                    Err(TryLockError::WouldBlock) => break,
                }
            }
            if Instant::now() >= until {
                return Self::Refused;
            }
            spin.wait(file);
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

/// Waits between attempts, from no delay to a few milliseconds. A write takes microseconds, so the first waits only yield.
#[derive(Default)]
struct SpinWait(u32);

impl SpinWait {
    fn wait(&mut self, source: &impl Source) {
        match self.0 {
            0..3 => std::thread::yield_now(),
            count => source.sleep(Duration::from_micros(50 << (count - 3).min(6))),
        }
        self.0 += 1;
    }
}

#[cfg(test)]
mod tests;
