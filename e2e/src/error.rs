//! The crate's error type. Messages name the remedy where there is one.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of a cluster operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O operation failed.
    #[error("{action}")]
    Io {
        /// The operation, with the path.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// A certificate could not be created.
    #[error("create certificates")]
    Certificate(#[from] rcgen::Error),
    /// A command failed.
    #[error("`{command}` failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// The exit status.
        status: String,
        /// The end of its output.
        output: String,
    },
    /// The host lacks something.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// A condition did not become true in time.
    #[error("timed out after {} s waiting for {what}; {hint}", timeout.as_secs())]
    Timeout {
        /// The condition.
        what: String,
        /// The timeout.
        timeout: Duration,
        /// Where to look.
        hint: String,
    },
    /// A component exited unexpectedly.
    #[error("{component} exited: {log}")]
    Exited {
        /// The component.
        component: String,
        /// The end of its log.
        log: String,
    },
    /// A file cannot be the program of an image.
    #[error("{}: {reason}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// No cluster is running in this directory.
    #[error("no cluster is running in {}: run `cargo xtask e2e up`", .0.display())]
    NotUp(PathBuf),
    /// The directory cannot be the cluster's state directory.
    #[error("{} cannot be the cluster's state directory: {reason}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the failed operation to an I/O error.
pub(crate) trait IoContext<T> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { action: action(), source: error.into() })
    }
}
