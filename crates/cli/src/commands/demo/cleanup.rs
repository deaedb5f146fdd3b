//! Removes what a demo leaves behind when it is killed.
//!
//! The demo starts this command in a process of its own, with a pipe as standard input. The pipe closes when the demo ends,
//! however it ends. Then the processes that have the node's directory in their environment are killed, which are the drivers
//! and what they have started, and the directory is removed. After an orderly end there is nothing to do. Containers need no
//! help: the kernel kills them when the demo ends.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit::{Code, Failure};

/// The number of scans of all processes: one that forks faster than it can be killed must not keep us here forever.
const MAX_SCANS: usize = 100;
/// How long a killed process may take to exit.
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The number of attempts to remove the directory, and the delay between them.
const REMOVE_ATTEMPTS: usize = 100;
const REMOVE_RETRY_DELAY: Duration = Duration::from_millis(20);

/// The process that cleans up. Dropping it lets the process look for leftovers, and waits for its exit.
pub(super) struct Cleanup(Child);

impl Cleanup {
    pub(super) fn start(directory: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-cleanup").arg(directory);
        // In a process group of its own, so that Ctrl-C does not end it together with the demo.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).current_dir("/");
        command.spawn().map(Self)
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            tracing::warn!(%error, "waiting for the demo's cleanup failed");
        }
    }
}

/// Waits until the demo has ended, and removes its processes and its directory.
pub(crate) fn clean_up(directory: &Path) -> Result<(), Failure> {
    let is_of_demo = directory.file_name().is_some_and(|name| name.as_bytes().starts_with(b"dk-"));
    if !is_of_demo || !directory.join("kubelet").is_dir() {
        return Err(Failure::new(Code::Usage, format!("{} is not the directory of a demo", directory.display())));
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let mut marker = b"KUBELET_ROOT_DIR=".to_vec();
    marker.extend_from_slice(directory.join("kubelet").as_os_str().as_bytes());
    for _ in 0..MAX_SCANS {
        if !scan_and_kill(&marker)? {
            break;
        }
    }
    let mut attempts = 0..REMOVE_ATTEMPTS;
    loop {
        match fs::remove_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if attempts.next().is_none() => return Err(error.into()),
            // The namespaces of containers may still be going away.
            Err(_) => std::thread::sleep(REMOVE_RETRY_DELAY),
        }
    }
}

/// Kills the processes with the marker in their environment; returns whether there were any.
fn scan_and_kill(marker: &[u8]) -> io::Result<bool> {
    let mut found = false;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // Checked again with the handle, since the process id may have been reused.
        if has_marker(pid, marker)
            && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && has_marker(pid, marker)
        {
            found = true;
            match pidfd_send_signal(&handle, Signal::KILL) {
                Ok(()) => drop(poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&KILL_TIMEOUT))?),
                Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(found)
}

/// Reports whether a process has the marker in its environment. Not if it has exited, or belongs to another user.
fn has_marker(pid: Pid, marker: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == marker)
}
