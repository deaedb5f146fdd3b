//! The crate's error type. Messages name the remedy where there is one.

use std::io;
use std::time::Duration;

/// An error of a virtual machine, or of what it is made from.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O operation failed.
    #[error("{action}: {source}")]
    Io {
        /// The operation, with the path.
        action: String,
        /// The cause.
        source: io::Error,
    },
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
    /// A file does not have the expected format.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// QEMU refused a QMP command.
    #[error("QEMU refused `{command}`: {error}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error.
        error: String,
    },
    /// The virtual machine ended before it was expected to.
    #[error(
        "the virtual machine ended ({status}) while {while_}; QEMU says: {messages}\nthe end of its log {log}:\n{tail}"
    )]
    Ended {
        /// What was being done.
        while_: String,
        /// QEMU's exit status.
        status: String,
        /// What QEMU printed.
        messages: String,
        /// The path of the log.
        log: String,
        /// The end of the log.
        tail: String,
    },
    /// The virtual machine made no progress: nothing in its log and no message.
    #[error("the virtual machine made no progress for {} s while {while_}\nthe end of its log {log}:\n{tail}", limit.as_secs())]
    Stalled {
        /// What was being done.
        while_: String,
        /// The limit.
        limit: Duration,
        /// The path of the log.
        log: String,
        /// The end of the log.
        tail: String,
    },
    /// A program in the virtual machine failed.
    #[error("`{program}` in the virtual machine failed with status {status}\nthe end of its log {log}:\n{tail}")]
    Program {
        /// The arguments of the program.
        program: String,
        /// Its exit status.
        status: u8,
        /// The path of the log.
        log: String,
        /// The end of the log.
        tail: String,
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
