//! Why a container cannot be run.

use std::io;
use std::path::PathBuf;

use super::cdi::{Edits, InjectError};
use super::spec::ContainerId;

/// Why the runner cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to run.
    #[error("container {container}: has no command: there are no images that would have one")]
    NoCommand {
        /// Namespace, pod and container.
        container: String,
    },
    /// Its devices cannot be given to the container.
    #[error("container {container}: CDI device injection failed: {source}")]
    Inject {
        /// Namespace, pod and container.
        container: String,
        /// Why.
        source: InjectError,
    },
    /// A path in the container that nothing can be at.
    #[error("container {container}: {what} {path:?}: {problem}")]
    Path {
        /// Namespace, pod and container.
        container: String,
        /// What is to be there.
        what: &'static str,
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A step on the way to the container's program failed.
    #[error("container {container}: {step}: {source}")]
    Setup {
        /// Namespace, pod and container.
        container: String,
        /// What was to be done: names the mount or the device.
        step: String,
        /// What the system says.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("container {container}: run {program:?}: {source}")]
    Program {
        /// Namespace, pod and container.
        container: String,
        /// The first word of the command.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// Containers cannot be run here, or are not to be.
    #[error("container {container}: not run: {why}; it would have\n{edits}")]
    ShowOnly {
        /// Namespace, pod and container.
        container: String,
        /// Why not.
        why: String,
        /// What it would have had.
        edits: Box<Edits>,
    },
    /// The isolation that was asked for does not work here.
    #[error("isolation {wanted}: {why}")]
    Isolation {
        /// What was asked for.
        wanted: String,
        /// Why it cannot be had.
        why: String,
    },
    /// There is no such container, or it was removed.
    #[error("container {0}: is not known")]
    Unknown(ContainerId),
    /// It does not run any more.
    #[error("container {0}: does not run")]
    NotRunning(ContainerId),
    /// It must end before it can be removed.
    #[error("container {0}: still runs: stop it first")]
    StillRunning(ContainerId),
    /// A file of the runner's own.
    #[error("{action} {}: {source}", .path.display())]
    State {
        /// What was to be done.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No thread could be had, or it is gone.
    #[error("runner: {0}")]
    Thread(String),
}

impl Error {
    /// Whether the container was made and only its program did not start, which is final for a pod that never restarts
    /// its containers. It is then in the list, as exited with code 128 and the reason `StartError`. Other errors leave
    /// nothing behind, and are worth another try whatever the pod says.
    pub fn is_start_error(&self) -> bool {
        matches!(self, Self::Setup { .. } | Self::Program { .. })
    }
}
