//! The process of a driver, and its processor time and memory.

use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// The unit of times in `/proc/PID/stat`, the same on all architectures of today.
const TICKS_PER_SECOND: u64 = 100;

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Process(Option<Child>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Process {
    /// Takes ownership of a child process.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Whether the process is still running.
    pub fn is_running(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Takes the pipes to its standard input and output.
    pub fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let child = self.0.as_mut().unwrap();
        (child.stdin.take().unwrap(), child.stdout.take().unwrap())
    }

    /// Sends SIGTERM, as the kubelet does, and waits until the process has exited.
    pub fn stop(mut self) {
        let mut child = self.0.take().unwrap();
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    /// The resident memory in MB, including pages of the program file.
    pub fn memory(&self) -> f64 {
        self.status("VmRSS:")
    }

    /// The resident memory in MB without pages of files, which are shared and can be dropped.
    pub fn anonymous_memory(&self) -> f64 {
        self.status("RssAnon:")
    }

    /// The peak of the resident memory in MB, including pages of the program file.
    pub fn peak_memory(&self) -> f64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
    }

    /// The processor time of its running threads. The sum for the process in `/proc/PID/stat` also has the time of threads
    /// that have exited, but a resolution of only 10 ms.
    pub fn processor_time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let times = threads.filter_map(|thread| {
            // A thread that has just exited is skipped.
            let schedstat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            schedstat.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(times.sum())
    }

    /// The processor time of the process with that of threads that have exited, in steps of 10 ms.
    pub fn total_processor_time(&self) -> Duration {
        let stat = self.proc("stat");
        // The name of the program, in parentheses, may contain spaces. User and system time are fields 14 and 15.
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.id())).unwrap()
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }
}
