//! Processes that outlive the first process of their container: killed, as the end of a real container's process
//! namespace would.
//!
//! They may have left the process group and the session, but not the mount namespace, unless with privileges and on
//! purpose. The namespace is held open meanwhile, so that no other can get its number. Nothing here allocates: the
//! [guard](super::guard) does the same in a process that may only make system calls.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, statat};
use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often all processes are looked at: one that forks faster than we kill would keep us here for ever.
const ROUNDS: usize = 100;
/// How long a killed process may take to end.
const LAST_BREATH: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Kills all processes in the namespace and waits for their end. Blocks.
pub(super) fn kill(mounts: impl AsFd) -> Result<()> {
    let status = rustix::fs::fstat(mounts)?;
    let namespace = (status.st_dev, status.st_ino);
    for _ in 0..ROUNDS {
        if !kill_round(namespace)? {
            return Ok(());
        }
    }
    // New ones appear faster than they can be killed.
    Err(Errno::AGAIN)
}

/// Kills those that are there now; says whether there were any.
fn kill_round(namespace: (u64, u64)) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = openat(CWD, c"/proc", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 8 << 10];
    let mut entries = RawDir::new(&processes, &mut buffer);
    let mut some = false;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = number(name).and_then(Pid::from_raw) else { continue };
        // Asked again with the handle: the number may be another's by now.
        if is_member(&processes, name, namespace)
            && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && is_member(&processes, name, namespace)
        {
            some = true;
            match pidfd_send_signal(&handle, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => wait(&handle)?,
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(some)
}

fn number(name: &CStr) -> Option<i32> {
    name.to_str().ok()?.parse().ok()
}

/// Those that are gone, dead, or not ours to look at are no members.
fn is_member(processes: &OwnedFd, name: &CStr, namespace: (u64, u64)) -> bool {
    let mut path = [0; 32];
    let parts = name.to_bytes().iter().chain(b"/ns/mnt\0");
    path.iter_mut().zip(parts).for_each(|(place, byte)| *place = *byte);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    statat(processes, path, AtFlags::empty()).is_ok_and(|status| (status.st_dev, status.st_ino) == namespace)
}

fn wait(process: &OwnedFd) -> Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&LAST_BREATH)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
