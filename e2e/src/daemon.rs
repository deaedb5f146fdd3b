//! Programs that tests run in the node beside the components, such as a driver outside of a pod.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::process::Process;

/// A program that runs in the node until it is stopped or the cluster is taken down.
///
/// It is not a child process of the test: killing a child started by [`Cluster::command`](crate::Cluster::command) kills
/// `nsenter`, not the program that `nsenter` runs.
#[derive(Clone, Debug)]
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn new(process: Process, log: PathBuf) -> Self {
        Self { process, log }
    }

    /// The pid on the host, which differs from the one in the node.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The path of the log, with standard output and standard error.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether the program is running.
    ///
    /// # Errors
    ///
    /// The process cannot be looked up.
    pub fn is_running(&self) -> Result<bool> {
        self.process.is_alive()
    }

    /// Sends SIGTERM, and SIGKILL after a timeout; returns when the program has exited.
    ///
    /// # Errors
    ///
    /// The program does not exit.
    pub fn stop(&self) -> Result<()> {
        self.process.stop()
    }

    /// Sends SIGKILL; returns when the program has exited.
    ///
    /// # Errors
    ///
    /// The program does not exit.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }
}
