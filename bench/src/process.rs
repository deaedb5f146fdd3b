//! The process that a driver runs in, and what it takes of the machine.

use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// A process that does not outlive this value.
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
    /// This child.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// Whether it has not ended by itself.
    pub fn runs(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    /// Our ends of its standard input and output.
    pub fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let child = self.0.as_mut().unwrap();
        (child.stdin.take().unwrap(), child.stdout.take().unwrap())
    }

    /// Ends it as a kubelet does, and waits until it has ended.
    pub fn end(mut self) {
        let mut child = self.0.take().unwrap();
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    /// What it has of the machine's memory, in MB, the pages of its program file included.
    pub fn memory(&self) -> f64 {
        self.status("VmRSS:")
    }

    /// The same without pages of files, which others share and which can be dropped.
    pub fn anonymous_memory(&self) -> f64 {
        self.status("RssAnon:")
    }

    /// The most that it ever had, in MB, the pages of its program file included.
    pub fn peak_memory(&self) -> f64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
    }

    /// What its threads have had of the processors' time, those that have ended not counted. The kernel's own sum for the
    /// process counts in hundredths of a second, which is too coarse here.
    pub fn processor_time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let times = threads.filter_map(|thread| {
            // One that ends just now has none.
            let told = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            told.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(times.sum())
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.id())).unwrap()
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }
}
