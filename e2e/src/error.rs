//! What can go wrong with a cluster, in words that say what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the cluster cannot do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused something.
    #[error("{action}")]
    Io {
        /// What was tried, with the path.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("make certificates")]
    Certificate(#[from] rcgen::Error),
    /// A command failed.
    #[error("`{command}` failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed last.
        output: String,
    },
    /// The machine lacks something.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is not there.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// Something did not become true in time.
    #[error("{what} did not come about within {} s; {}", within.as_secs(), see)]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        within: Duration,
        /// Where to look, or what was seen last.
        see: String,
    },
    /// A component ended, although nobody asked it to.
    #[error("{component} ended: {log}")]
    Ended {
        /// Which one.
        component: String,
        /// The end of its log.
        log: String,
    },
    /// A program cannot be put into an image.
    #[error("{}: {reason}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no cluster in this directory.
    #[error("no cluster is up in {}: run `cargo xtask e2e up`", .0.display())]
    NotUp(PathBuf),
    /// The directory holds something else.
    #[error("{} cannot be the cluster's directory: {reason}", path.display())]
    Directory {
        /// Which directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// What the functions of this crate give.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says what was tried when the system refuses it.
pub(crate) trait Doing<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { action: action(), source: error.into() })
    }
}
