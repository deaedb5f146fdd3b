//! A driver in a process of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::NodeError;

/// How long a driver may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver in a process of its own. It is killed when this is dropped, with all processes that it has started.
#[derive(Debug)]
pub struct DriverProcess {
    child: Child,
    group: Option<Pid>,
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
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(Self { child, group, log: log.to_owned() })
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

    /// SIGTERM, and waits until it has ended as it likes; after half a minute it is killed.
    pub async fn terminate(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(ended) => ended,
            Err(_) => self.kill().await,
        }
    }

    /// Signals it and what it has started. Does nothing if all have ended.
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
            tracing::warn!(log = %self.log.display(), %error, "a driver could not be killed");
        }
    }
}
