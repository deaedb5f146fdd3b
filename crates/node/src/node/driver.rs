//! A driver in a process of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::NodeError;

/// A driver in a process of its own. It is killed when this is dropped, with all processes that it has started.
#[derive(Debug)]
pub struct DriverProcess {
    child: Child,
    log: PathBuf,
}

impl DriverProcess {
    /// Starts it; what it prints goes to a file.
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self, NodeError> {
        let output = File::options().create(true).append(true).open(log).map_err(NodeError::Directory)?;
        let errors = output.try_clone().map_err(NodeError::Directory)?;
        // A shell may be between this and the driver: all that it starts is one group.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|source| NodeError::Driver {
            command: command.as_std().get_program().to_string_lossy().into_owned(),
            source,
        })?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it and those before it printed.
    pub fn log(&self) -> std::io::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// Waits until it has ended by itself.
    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.child.wait().await
    }

    /// SIGTERM, and waits until it has ended as it likes.
    pub async fn terminate(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.child.wait().await
    }

    /// Does nothing if it has ended.
    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        let group = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(group.map_or(Ok(()), |group| kill_process_group(group, signal))?)
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        if let Err(error) = self.signal(Signal::KILL) {
            tracing::warn!(log = %self.log.display(), %error, "a driver could not be killed");
        }
    }
}
