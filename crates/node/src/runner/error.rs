//! Errors of the container runner.

use std::io;
use std::path::PathBuf;

use super::cdi::{Edits, InjectError};
use super::spec::ContainerId;

/// An error of the container runner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container has no command.
    #[error("container {container}: has no command, and there are no images that would have one")]
    NoCommand {
        /// Namespace, pod and container.
        container: String,
    },
    /// The CDI devices cannot be injected.
    #[error("container {container}: CDI device injection failed: {source}")]
    Inject {
        /// Namespace, pod and container.
        container: String,
        /// The cause.
        source: InjectError,
    },
    /// A path in the container is invalid.
    #[error("container {container}: {what} {path:?}: {problem}")]
    Path {
        /// Namespace, pod and container.
        container: String,
        /// What the path is for.
        what: &'static str,
        /// The path.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// An action before the container's program failed.
    #[error("container {container}: {action}: {source}")]
    Setup {
        /// Namespace, pod and container.
        container: String,
        /// The action, with the mount or device it is about.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("container {container}: run {program:?}: {source}")]
    Program {
        /// Namespace, pod and container.
        container: String,
        /// The first word of the command.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// The start of the container was refused.
    #[error("container {container}: {reason}")]
    Refused {
        /// Namespace, pod and container.
        container: String,
        /// The cause.
        reason: String,
    },
    /// Containers are not run, by configuration or because no isolation works.
    #[error("container {container}: not run: {reason}; it would have\n{edits}")]
    ShowOnly {
        /// Namespace, pod and container.
        container: String,
        /// Why containers are not run.
        reason: String,
        /// The edits that the container would have.
        edits: Box<Edits>,
    },
    /// The configured isolation does not work.
    #[error("isolation {isolation}: {reason}")]
    Isolation {
        /// The isolation.
        isolation: String,
        /// Why it does not work.
        reason: String,
    },
    /// There is no such container, or it was removed.
    #[error("container {0}: no such container")]
    Unknown(ContainerId),
    /// The container has exited.
    #[error("container {0}: is not running")]
    NotRunning(ContainerId),
    /// The container must exit before it can be removed.
    #[error("container {0}: is still running: stop it first")]
    StillRunning(ContainerId),
    /// An operation on a file of the runner failed.
    #[error("{action} {}: {source}", .path.display())]
    State {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A thread could not be started, or has ended.
    #[error("runner: {0}")]
    Thread(String),
}

impl Error {
    /// Reports whether the container was created and only its program did not start, which is final for a pod that never
    /// restarts its containers. The container is then in the list, exited with code 128 and the reason `StartError`. Other
    /// errors leave nothing behind, and can be retried whatever the pod's restart policy is.
    pub fn is_start_error(&self) -> bool {
        matches!(self, Self::Setup { .. } | Self::Program { .. } | Self::Refused { .. })
    }
}
