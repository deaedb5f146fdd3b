//! The process that a driver runs in, and what it takes of the machine.

use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// A process that does not outlive this value.
pub(crate) struct Process(Option<Child>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Process {
    pub(crate) fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Our ends of its standard input and output.
    pub(crate) fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let child = self.0.as_mut().unwrap();
        (child.stdin.take().unwrap(), child.stdout.take().unwrap())
    }

    /// Ends it as a kubelet does, and waits until it has ended.
    pub(crate) fn end(mut self) {
        let mut child = self.0.take().unwrap();
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    /// What it has of the machine's memory, in MB, the pages of its program file included.
    pub(crate) fn memory(&self) -> f64 {
        self.status("VmRSS:")
    }

    /// The same without pages of files, which others share and which can be dropped.
    pub(crate) fn anonymous_memory(&self) -> f64 {
        self.status("RssAnon:")
    }

    /// The most that it ever had, in MB, the pages of its program file included.
    pub(crate) fn peak_memory(&self) -> f64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
    }

    /// What it has had of the processors' time.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = self.proc("stat");
        // Behind the program's name, which is in parentheses.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>();
        let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap();
        Duration::from_secs_f64(ticks / f64::from(per_second))
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.as_ref().unwrap().id())).unwrap()
    }
}
