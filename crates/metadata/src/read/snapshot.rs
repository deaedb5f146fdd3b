//! A consistent read: the whole content of a file that may be written to meanwhile.
//!
//! A metadata file is updated in place, because a running container holds on to the inode that was mounted into it.
//! A single write is not atomic to a concurrent read, so two things keep a mix of old and new from being returned:
//!
//! 1. The writer holds an exclusive `flock` on the file while it writes, the reader a shared one while it reads. Then
//!    no read of ours overlaps with a write of ours.
//! 2. The content counts only when two reads, one after the other, are equal byte by byte.
//!
//! Whoever can read the file can also lock it, and must not be able to keep others from reading. So the lock is waited
//! for only briefly, and a reader that did not get it believes only a file that has not been written to for
//! [`QUIET`]. What remains is a writer without the lock, or one that is held up for longer than that in the middle of
//! its write: against those, two equal reads are as good as it gets and no guarantee.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a reader waits for writers' locks, all files together.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// How long a reader goes on when files are being written, all files together.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
/// For how long a file that is locked must not have been written to.
const QUIET: Duration = Duration::from_secs(2);
/// How much is compared at a time.
const CHUNK: usize = 16 * 1024;

/// How long one call may wait, for all files that it reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    lock_until: Instant,
    settle_until: Instant,
}

impl Default for Patience {
    fn default() -> Self {
        let now = Instant::now();
        Self { lock_until: now + LOCK_WAIT, settle_until: now + SETTLE_WAIT }
    }
}

impl Patience {
    /// The same, but not beyond a deadline.
    pub(super) fn until(deadline: Instant) -> Self {
        let Self { lock_until, settle_until } = Self::default();
        Self { lock_until: lock_until.min(deadline), settle_until: settle_until.min(deadline) }
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

/// What a snapshot needs of a file; a test can stand in for a writer.
trait Source {
    /// Reads what is at an offset, as `pread` does.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Takes a shared lock if it is to be had in time; it is released when the answer is dropped.
    fn lock(&self, until: Instant) -> SharedLock<'_>;

    /// Whether nobody has written to it for some time.
    fn is_quiet(&self) -> io::Result<bool>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn lock(&self, until: Instant) -> SharedLock<'_> {
        SharedLock::wait(self, until)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        // A time of writing that lies in the future says nothing.
        Ok(self.metadata()?.modified()?.elapsed().is_ok_and(|age| age >= QUIET))
    }
}

/// The content of a file of at most `limit` bytes.
pub(super) fn read(file: &File, size: u64, limit: u64, patience: Patience) -> Result<Vec<u8>, SnapshotError> {
    settle(file, size, limit, patience)
}

fn settle(source: &impl Source, size: u64, limit: u64, patience: Patience) -> Result<Vec<u8>, SnapshotError> {
    let mut pauses = Pauses::default();
    loop {
        {
            let lock = source.lock(patience.lock_until);
            let content = read_whole(source, size, limit)?;
            if is_still(source, &content)? && (!lock.is_refused() || source.is_quiet()?) {
                return Ok(content);
            }
        }
        if Instant::now() >= patience.settle_until {
            return Err(SnapshotError::Unsettled);
        }
        pauses.pause();
    }
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
    fn wait(file: &'a File, until: Instant) -> Self {
        let mut pauses = Pauses::default();
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Self::Held(file),
                Err(TryLockError::Error(_)) => return Self::Impossible,
                Err(TryLockError::WouldBlock) if Instant::now() < until => pauses.pause(),
                Err(TryLockError::WouldBlock) => return Self::Refused,
            }
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
    fn pause(&mut self) {
        match self.0 {
            0..3 => std::thread::yield_now(),
            count => std::thread::sleep(Duration::from_micros(50 << (count - 3).min(6))),
        }
        self.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A file whose writer comes between two system calls: the content after that many reads.
    struct Changing {
        contents: [&'static [u8]; 2],
        changes_after: usize,
        reads: Cell<usize>,
        /// After how many looks at a file that is locked it is quiet.
        quiet_after: Option<usize>,
        looks: Cell<usize>,
    }

    impl Changing {
        fn new(old: &'static [u8], new: &'static [u8], changes_after: usize) -> Self {
            let (reads, looks) = (Cell::new(0), Cell::new(0));
            Self { contents: [old, new], changes_after, reads, quiet_after: None, looks }
        }
    }

    impl Source for Changing {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            let content = self.contents[usize::from(self.reads.get() >= self.changes_after)];
            self.reads.set(self.reads.get() + 1);
            let rest = content.get(offset as usize..).unwrap_or_default();
            // Short reads, so that the writer can come in the middle of the file.
            let count = rest.len().min(buffer.len()).min(4);
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn lock(&self, _: Instant) -> SharedLock<'_> {
            if self.quiet_after.is_some() { SharedLock::Refused } else { SharedLock::Impossible }
        }

        fn is_quiet(&self) -> io::Result<bool> {
            self.looks.set(self.looks.get() + 1);
            Ok(self.quiet_after.is_some_and(|quiet| self.looks.get() > quiet))
        }
    }

    #[test]
    fn a_write_between_any_two_reads_never_gives_a_mix() {
        let (old, new): (&[u8], &[u8]) = (b"old old old old", b"new new new new, and longer");
        for changes_after in 0..24 {
            let content =
                settle(&Changing::new(old, new, changes_after), old.len() as u64, 1000, Patience::default()).unwrap();
            assert!(content == old || content == new, "{}", String::from_utf8_lossy(&content));
        }
    }

    #[test]
    fn a_file_that_has_grown_beyond_the_limit_is_too_large() {
        let source = Changing::new(b"", b"0123456789", 0);
        assert!(matches!(settle(&source, 0, 9, Patience::default()), Err(SnapshotError::TooLarge)));
        assert_eq!(settle(&source, 0, 10, Patience::default()).unwrap(), b"0123456789");
    }

    #[test]
    fn a_file_that_stays_locked_is_believed_only_when_nobody_writes_to_it() {
        let source = Changing { quiet_after: Some(3), ..Changing::new(b"half", b"half", 0) };
        assert_eq!(settle(&source, 4, 10, Patience::default()).unwrap(), b"half");
        assert_eq!(source.looks.get(), 4);
        let never = Changing { quiet_after: Some(usize::MAX), ..Changing::new(b"half", b"half", 0) };
        let impatient = Patience::until(Instant::now());
        assert!(matches!(settle(&never, 4, 10, impatient), Err(SnapshotError::Unsettled)));
    }
}
