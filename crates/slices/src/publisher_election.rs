//! The election of the instance that publishes while a rolling update runs two on a node: the newest live one.
//!
//! Each instance locks one byte of a shared file, at an offset that is its start time (nanoseconds since boot). An instance
//! that finds a lock behind its own is not the newest, and stands by. The kernel releases the lock of a process that dies, so
//! an older one takes over. The file has no content, and nothing has to be cleaned up.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::time::{ClockId, clock_gettime};

/// The default name of the lock file, in the driver's directory.
pub const FILE: &str = "publish.lock";

/// The candidacy of this instance: a lock that lasts until it is dropped.
#[derive(Debug)]
pub(super) struct PublisherElection {
    file: File,
    /// The start time of this instance, which is the offset of its lock.
    started: i64,
}

impl PublisherElection {
    /// Joins as the newest instance.
    pub(super) fn join(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, path, flags, Mode::from_raw_mode(0o600))?);
        let now = clock_gettime(ClockId::Boottime);
        let mut started = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock(started, 1))) {
                Ok(_) => return Ok(Self { file, started }),
                // Another instance started at the same nanosecond.
                Err(Errno::EAGAIN) => started += 1,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns whether this is the newest live instance.
    pub(super) fn is_elected(&self) -> io::Result<bool> {
        let mut found = lock(self.started + 1, 0);
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
    fn the_newest_live_instance_is_elected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let join = || PublisherElection::join(&path).unwrap();
        let old = join();
        assert!(old.is_elected().unwrap());
        let new = join();
        let newest = join();
        assert!(!old.is_elected().unwrap() && !new.is_elected().unwrap() && newest.is_elected().unwrap());
        drop(newest);
        assert!(!old.is_elected().unwrap() && new.is_elected().unwrap());
        drop(new);
        assert!(old.is_elected().unwrap());
    }
}
