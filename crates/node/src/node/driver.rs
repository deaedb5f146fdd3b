//! A driver that runs as a process of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::NodeError;

/// How long a driver may take to exit after SIGTERM.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A driver that runs as a process of its own. Dropping it kills the process and all processes that it has started.
#[derive(Debug)]
pub struct DriverProcess {
    child: Child,
    group: Option<Pid>,
    log: PathBuf,
}

impl DriverProcess {
    /// Starts the process; its output is appended to a log file.
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self, NodeError> {
        let output = File::options().create(true).append(true).open(log).map_err(NodeError::Directory)?;
        let errors = output.try_clone().map_err(NodeError::Directory)?;
        // A shell may run between this process and the driver: one process group covers all that it starts.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|source| NodeError::Driver {
            command: command.as_std().get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(Self { child, group, log: log.to_owned() })
    }

    /// Returns the process id while the process runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the output of this process and of earlier ones of the same driver.
    pub fn log(&self) -> std::io::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// Waits until the process exits by itself.
    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Sends SIGKILL and waits for the exit.
    pub async fn kill(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.child.wait().await
    }

    /// Sends SIGTERM and waits for the exit; sends SIGKILL after 30 seconds.
    pub async fn terminate(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(TERMINATION_TIMEOUT, self.child.wait()).await {
            Ok(ended) => ended,
            Err(_) => self.kill().await,
        }
    }

    /// Signals the process and what it has started. Does nothing if all have exited.
    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        match self.group.map_or(Ok(()), |group| kill_process_group(group, signal)) {
            Err(Errno::SRCH) => Ok(()),
            signalled => Ok(signalled?),
        }
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        if let Err(error) = self.signal(Signal::KILL) {
            tracing::warn!(log = %self.log.display(), %error, "killing the driver failed");
        }
    }
}
