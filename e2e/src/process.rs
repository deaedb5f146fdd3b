//! Processes that outlive the command that started them: identifying and signalling them safely.
//!
//! The kernel can reuse a pid. A record therefore also has the start time of the process and the id of the boot, and
//! signals are sent through a pidfd that was opened before these were compared.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Error, IoContext, Result};

/// How long a process may take to exit after SIGTERM, and after SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);

/// A process, distinguished from later ones with the same pid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: i32,
    /// The start time in clock ticks since boot, as in `/proc/PID/stat`.
    started: u64,
    boot: String,
}

impl Process {
    /// Returns the process that has this pid now, or `None`.
    pub(crate) fn of_pid(pid: i32) -> Result<Option<Self>> {
        let path = format!("/proc/{pid}/stat");
        let stat = match fs::read_to_string(&path) {
            Ok(stat) => stat,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {path}")),
        };
        let Some(started) = start_time(&stat) else {
            return Err(std::io::Error::other("not in the format of proc(5)")).with_context(|| format!("parse {path}"));
        };
        Ok(Some(Self { pid, started, boot: boot()? }))
    }

    /// Reads a record; `None` if it does not exist or is incomplete.
    pub(crate) fn recorded(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [pid, started, boot] = words[..] else { return Ok(None) };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse()) else { return Ok(None) };
        Ok(Some(Self { pid, started, boot: boot.to_owned() }))
    }

    /// Writes the record.
    pub(crate) fn record(&self, path: &Path) -> Result<()> {
        fs::write(path, format!("{} {} {}\n", self.pid, self.started, self.boot))
            .with_context(|| format!("write {}", path.display()))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the process is running. A zombie is not.
    pub(crate) fn is_alive(&self) -> Result<bool> {
        let Some(fd) = self.open()? else { return Ok(false) };
        Ok(!has_exited(&fd, Duration::ZERO)?)
    }

    /// Sends SIGTERM, and SIGKILL after a timeout; returns when the process has exited.
    pub(crate) fn stop(&self) -> Result<()> {
        let Some(fd) = self.open()? else { return Ok(()) };
        self.signal(&fd, Signal::TERM)?;
        if has_exited(&fd, EXIT_TIMEOUT)? { Ok(()) } else { self.kill() }
    }

    /// Sends SIGKILL; returns when the process has exited.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(fd) = self.open()? else { return Ok(()) };
        self.signal(&fd, Signal::KILL)?;
        if has_exited(&fd, EXIT_TIMEOUT)? {
            return Ok(());
        }
        Err(Error::Timeout {
            what: format!("process {} to exit after SIGKILL", self.pid),
            timeout: EXIT_TIMEOUT,
            hint: format!("see /proc/{}/stack", self.pid),
        })
    }

    /// Opens a pidfd of this process; `None` if it has exited.
    fn open(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("open process {}", self.pid)),
        };
        // Compared after opening: if the pid was reused before that, the comparison fails.
        Ok((Self::of_pid(self.pid)?.as_ref() == Some(self)).then_some(fd))
    }

    fn signal(&self, fd: &OwnedFd, signal: Signal) -> Result<()> {
        match pidfd_send_signal(fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("send {signal:?} to process {}", self.pid)),
        }
    }
}

/// Waits until the process has exited; returns whether it has within the timeout.
fn has_exited(fd: &OwnedFd, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: remaining.as_secs().cast_signed(), tv_nsec: remaining.subsec_nanos().into() };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).with_context(|| "wait for a process to exit".to_owned()),
        }
    }
}

/// Whether the process does not exist: `ESRCH` if it exits between open and read.
fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Field 22 of `/proc/PID/stat`. The second field is the command in parentheses, which can itself contain parentheses and
/// spaces.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The id of the current boot.
fn boot() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of_pid(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        (child, process)
    }

    #[test]
    fn a_record_identifies_its_process() {
        let (mut child, process) = sleeper();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sleeper");
        assert_eq!(Process::recorded(&path).unwrap(), None);
        process.record(&path).unwrap();
        assert_eq!(Process::recorded(&path).unwrap(), Some(process.clone()));
        assert!(process.is_alive().unwrap());
        process.stop().unwrap();
        // It is a zombie until `wait`.
        assert!(!process.is_alive().unwrap());
        assert_eq!(child.wait().unwrap().code(), None);
    }

    #[test]
    fn a_process_with_a_reused_pid_is_not_signalled() {
        let (mut child, process) = sleeper();
        for other in [
            Process { started: process.started - 1, ..process.clone() },
            Process { boot: "another".to_owned(), ..process.clone() },
        ] {
            assert!(!other.is_alive().unwrap());
            other.kill().unwrap();
            assert!(child.try_wait().unwrap().is_none());
        }
        process.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_start_time_is_found_after_a_command_with_parentheses() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2";
        assert_eq!(start_time(stat), Some(987_654));
        assert_eq!(start_time("nonsense"), None);
    }
}
