//! Processes that outlive the command that started them: who they are, and ending just them.
//!
//! A pid alone may belong to somebody else by the time it is used. So a record also has the time at which the process
//! started and the boot in which it did, and signals go through a pidfd that was opened before these were compared.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Doing, Error, Result};

/// How long a process may take to end after SIGTERM, and any process after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(15);

/// One process, and no later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: i32,
    /// In clock ticks since the machine booted, as in `/proc/PID/stat`.
    started: u64,
    boot: String,
}

impl Process {
    /// The process that has this pid now; nothing when none does.
    pub(crate) fn of_pid(pid: i32) -> Result<Option<Self>> {
        let path = format!("/proc/{pid}/stat");
        let stat = match fs::read_to_string(&path) {
            Ok(stat) => stat,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error).doing(|| format!("read {path}")),
        };
        let Some(started) = start_time(&stat) else {
            return Err(std::io::Error::other("not the format that proc(5) tells of"))
                .doing(|| format!("parse {path}"));
        };
        Ok(Some(Self { pid, started, boot: boot()? }))
    }

    /// What a record says; nothing when there is none or it is half written.
    pub(crate) fn recorded(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [pid, started, boot] = words[..] else { return Ok(None) };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse()) else { return Ok(None) };
        Ok(Some(Self { pid, started, boot: boot.to_owned() }))
    }

    /// Writes the record.
    pub(crate) fn record(&self, path: &Path) -> Result<()> {
        fs::write(path, format!("{} {} {}\n", self.pid, self.started, self.boot))
            .doing(|| format!("write {}", path.display()))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it runs. One that has ended and was not reaped yet does not.
    pub(crate) fn is_alive(&self) -> Result<bool> {
        let Some(fd) = self.open()? else { return Ok(false) };
        Ok(!ended(&fd, Duration::ZERO)?)
    }

    /// SIGTERM, and SIGKILL when that does not help; returns when it has ended.
    pub(crate) fn stop(&self) -> Result<()> {
        let Some(fd) = self.open()? else { return Ok(()) };
        self.signal(&fd, Signal::TERM)?;
        if ended(&fd, PATIENCE)? { Ok(()) } else { self.kill() }
    }

    /// SIGKILL; returns when it has ended.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(fd) = self.open()? else { return Ok(()) };
        self.signal(&fd, Signal::KILL)?;
        if ended(&fd, PATIENCE)? {
            return Ok(());
        }
        Err(Error::Timeout {
            what: format!("the end of process {} after SIGKILL", self.pid),
            within: PATIENCE,
            see: format!("see /proc/{}/stack", self.pid),
        })
    }

    /// A handle of this very process; nothing when it is gone.
    fn open(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error).doing(|| format!("open process {}", self.pid)),
        };
        // Whoever has the pid now has the handle too: it is compared after it was opened.
        Ok((Self::of_pid(self.pid)?.as_ref() == Some(self)).then_some(fd))
    }

    fn signal(&self, fd: &OwnedFd, signal: Signal) -> Result<()> {
        match pidfd_send_signal(fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).doing(|| format!("send {signal:?} to process {}", self.pid)),
        }
    }
}

/// Whether the process has ended; waits for it.
fn ended(fd: &OwnedFd, within: Duration) -> Result<bool> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing(|| "wait for a process to end".to_owned()),
        }
    }
}

/// A process may go away between open and read.
fn gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Field 22 of `/proc/PID/stat`. The second is the command, in parentheses, and may itself hold any of them.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Which boot of the machine this is.
fn boot() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).doing(|| format!("read {path}"))?.trim().to_owned())
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
    fn a_record_leads_back_to_its_process() {
        let (mut child, process) = sleeper();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sleeper");
        assert_eq!(Process::recorded(&path).unwrap(), None);
        process.record(&path).unwrap();
        assert_eq!(Process::recorded(&path).unwrap(), Some(process.clone()));
        assert!(process.is_alive().unwrap());
        process.stop().unwrap();
        // It is a zombie now: nobody has waited for it.
        assert!(!process.is_alive().unwrap());
        assert_eq!(child.wait().unwrap().code(), None);
    }

    #[test]
    fn a_process_that_has_anothers_pid_is_left_alone() {
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
    fn a_command_with_parentheses_does_not_hide_the_start() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2";
        assert_eq!(start_time(stat), Some(987_654));
        assert_eq!(start_time("nonsense"), None);
    }
}
