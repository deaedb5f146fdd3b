//! Which of two instances publishes, while a rolling update has both on a node: the newer, as long as it lives.
//!
//! Each instance that publishes locks one byte of a shared file, at the time since boot at which it began. Whoever sees a lock
//! behind its own is not the newest, and keeps quiet. A process that dies loses its lock, so the older one goes on. There is
//! nothing in the file, and nothing to clean up.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::time::{ClockId, clock_gettime};

/// The shared file in the driver's directory.
pub const FILE: &str = "publish.lock";

/// A place in the order of instances.
#[derive(Debug)]
pub(super) struct Turn {
    file: File,
    place: i64,
}

impl Turn {
    /// Becomes the newest.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, path, flags, Mode::from_raw_mode(0o600))?);
        let now = clock_gettime(ClockId::Boottime);
        let mut place = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock(place, 1))) {
                Ok(_) => return Ok(Self { file, place }),
                // Another began at the same nanosecond.
                Err(Errno::EAGAIN) => place += 1,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Whether no newer instance publishes.
    pub(super) fn is_ours(&self) -> io::Result<bool> {
        let mut found = lock(self.place + 1, 0);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(i32::from(found.l_type) == libc::F_UNLCK)
    }
}

fn lock(start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        // Must be 0: the owner is the open file description.
        l_pid: 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_lives_has_the_turn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let turn = || Turn::take(&path).unwrap();
        let old = turn();
        assert!(old.is_ours().unwrap());
        let (new, newest) = (turn(), turn());
        assert!(!old.is_ours().unwrap() && !new.is_ours().unwrap() && newest.is_ours().unwrap());
        drop(newest);
        assert!(!old.is_ours().unwrap() && new.is_ours().unwrap());
        drop(new);
        assert!(old.is_ours().unwrap());
    }
}
