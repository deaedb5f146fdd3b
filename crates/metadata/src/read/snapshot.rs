//! A consistent read: the whole content of a file that may be written to meanwhile.
//!
//! A metadata file is updated in place, because a running container holds on to the inode that was mounted into it.
//! A single write is not atomic to a concurrent read, so two things keep a mix of old and new from being returned:
//!
//! 1. The writer holds an exclusive `flock` on the file while it writes, the reader a shared one while it reads.
//!    That is a guarantee between our own writer and reader. It is only ever waited for during [`LOCK_WAIT`]: whoever
//!    can read the file can also lock it, and must not be able to keep others from reading.
//! 2. Whoever writes without the lock, or while the wait was in vain: the content counts only when two reads, one
//!    after the other, are equal byte by byte. Against a writer without a lock that is as good as it gets and no
//!    guarantee: one that is held up in the middle of its write shows the same mix twice.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a reader waits for a writer's lock.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// How long a reader goes on when no two reads agree.
const SETTLE_WAIT: Duration = Duration::from_secs(2);
/// How much is compared at a time.
const CHUNK: usize = 16 * 1024;

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
    fn lock(&self) -> SharedLock<'_>;
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn lock(&self) -> SharedLock<'_> {
        SharedLock::wait(self)
    }
}

/// The content of a file of at most `limit` bytes.
pub(super) fn read(file: &File, size: u64, limit: u64) -> Result<Vec<u8>, SnapshotError> {
    settle(file, size, limit)
}

fn settle(source: &impl Source, size: u64, limit: u64) -> Result<Vec<u8>, SnapshotError> {
    let deadline = Instant::now() + SETTLE_WAIT;
    let mut pauses = Pauses::default();
    loop {
        {
            let _lock = source.lock();
            let content = read_whole(source, size, limit)?;
            if is_still(source, &content)? {
                return Ok(content);
            }
        }
        if Instant::now() >= deadline {
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
struct SharedLock<'a>(Option<&'a File>);

impl<'a> SharedLock<'a> {
    fn wait(file: &'a File) -> Self {
        let deadline = Instant::now() + LOCK_WAIT;
        let mut pauses = Pauses::default();
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Self(Some(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => pauses.pause(),
                // Locked for too long, or a file system without locks: reading twice has to do.
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return Self(None),
            }
        }
    }
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
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
    }

    impl Changing {
        fn new(old: &'static [u8], new: &'static [u8], changes_after: usize) -> Self {
            Self { contents: [old, new], changes_after, reads: Cell::new(0) }
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

        fn lock(&self) -> SharedLock<'_> {
            SharedLock(None)
        }
    }

    #[test]
    fn a_write_between_any_two_reads_never_gives_a_mix() {
        let (old, new): (&[u8], &[u8]) = (b"old old old old", b"new new new new, and longer");
        for changes_after in 0..24 {
            let content = settle(&Changing::new(old, new, changes_after), old.len() as u64, 1000).unwrap();
            assert!(content == old || content == new, "{}", String::from_utf8_lossy(&content));
        }
    }

    #[test]
    fn a_file_that_has_grown_beyond_the_limit_is_too_large() {
        let source = Changing::new(b"", b"0123456789", 0);
        assert!(matches!(settle(&source, 0, 9), Err(SnapshotError::TooLarge)));
        assert_eq!(settle(&source, 0, 10).unwrap(), b"0123456789");
    }
}
