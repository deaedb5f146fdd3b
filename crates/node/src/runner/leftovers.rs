//! Kills the processes that outlive the first process of their container, as the end of a pid namespace would.
//!
//! They may have left the process group and the session, but not the mount namespace, unless with privileges and on
//! purpose. The namespace is held open meanwhile, so that its inode number is not reused. Nothing here allocates: the
//! [guard](super::guard) does the same in a process that may only make system calls.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, statat};
use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The number of scans of all processes: one that forks faster than it can be killed must not keep us here forever.
const MAX_SCANS: usize = 100;
/// How long a killed process may take to exit.
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Kills all processes in the namespace and waits for their exit. Blocks.
pub(super) fn kill(mounts: impl AsFd) -> Result<()> {
    let status = rustix::fs::fstat(mounts)?;
    let namespace = (status.st_dev, status.st_ino);
    for _ in 0..MAX_SCANS {
        if !scan_and_kill(namespace)? {
            return Ok(());
        }
    }
    // New processes appear faster than they can be killed.
    Err(Errno::AGAIN)
}

/// Kills the processes that exist now; returns whether there were any.
fn scan_and_kill(namespace: (u64, u64)) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = openat(CWD, c"/proc", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 8 << 10];
    let mut entries = RawDir::new(&processes, &mut buffer);
    let mut found = false;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = number(name).and_then(Pid::from_raw) else { continue };
        // Checked again with the handle, since the process id may have been reused.
        if is_member(&processes, name, namespace)
            && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && is_member(&processes, name, namespace)
        {
            found = true;
            match pidfd_send_signal(&handle, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => wait(&handle)?,
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(found)
}

fn number(name: &CStr) -> Option<i32> {
    name.to_str().ok()?.parse().ok()
}

/// Reports whether a process is in the namespace. Not if it has exited, or its namespaces may not be read.
fn is_member(processes: &OwnedFd, name: &CStr, namespace: (u64, u64)) -> bool {
    let mut path = [0; 32];
    let parts = name.to_bytes().iter().chain(b"/ns/mnt\0");
    path.iter_mut().zip(parts).for_each(|(target, byte)| *target = *byte);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    statat(processes, path, AtFlags::empty()).is_ok_and(|status| (status.st_dev, status.st_ino) == namespace)
}

fn wait(process: &OwnedFd) -> Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&KILL_TIMEOUT)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
