//! Programs that tests run in the node beside the components, such as a driver that is no pod.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::process::Process;

/// A program that runs in the node, until it is stopped or the node is taken down.
///
/// It is not a child of the test. Killing a child that was made by [`Cluster::command`](crate::Cluster::command) would
/// end `nsenter`, and not what that runs.
#[derive(Clone, Debug)]
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn new(process: Process, log: PathBuf) -> Self {
        Self { process, log }
    }

    /// Its pid on the machine, which is another than in the node.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// What it prints.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether it runs.
    ///
    /// # Errors
    ///
    /// The machine does not tell.
    pub fn is_running(&self) -> Result<bool> {
        self.process.is_alive()
    }

    /// SIGTERM, and SIGKILL when that does not help for a while; returns when it has ended.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub fn stop(&self) -> Result<()> {
        self.process.stop()
    }

    /// SIGKILL; returns when it has ended.
    ///
    /// # Errors
    ///
    /// It does not end.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }
}
