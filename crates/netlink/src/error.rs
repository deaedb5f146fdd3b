//! The error of every netlink operation: what was asked for, which interface, and what the kernel answered.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

/// The result of a netlink operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the request.
    #[error("{operation}: {errno}{}", Explanation(.message.as_deref()))]
    Refused {
        /// The request and the interface.
        operation: String,
        /// The kernel's error number.
        errno: Errno,
        /// The kernel's explanation (extended acknowledgement), if it gave one.
        message: Option<String>,
    },
    /// The kernel did not answer in time.
    #[error("{operation}: no answer from the kernel within {timeout:?}")]
    Timeout {
        /// The request and the interface.
        operation: String,
        /// The time that was allowed.
        timeout: Duration,
    },
    /// The kernel's tables changed in each attempt to read them.
    #[error("{operation}: the kernel's table changed during each of {attempts} attempts to read it")]
    Interrupted {
        /// The request.
        operation: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// The answer is not understood.
    #[error("{operation}: malformed answer: {detail}")]
    Malformed {
        /// The request.
        operation: String,
        /// What is wrong with the answer.
        detail: String,
    },
    /// The request cannot be sent: a name is too long, an address has no octets and the like.
    #[error("{operation}: {detail}")]
    Invalid {
        /// The request and the interface.
        operation: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The socket failed.
    #[error("{operation}: netlink socket: {source}")]
    Socket {
        /// The request and the interface.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// A socket for packets cannot be opened or used.
    #[error("{operation}: {source}")]
    Packet {
        /// The interface and what was tried.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// A network namespace cannot be opened, entered or made.
    #[error("network namespace {}: {operation}: {source}", .path.display())]
    Namespace {
        /// The path, or a description of a namespace without one.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A setting below `/proc/sys` cannot be read or written.
    #[error("setting {path} in network namespace {}: {source}", .namespace.display())]
    Setting {
        /// The path below `/proc/sys`.
        path: String,
        /// The namespace.
        namespace: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is something else than a network namespace.
    #[error("{}: not a network namespace", .path.display())]
    NotANamespace {
        /// The path.
        path: PathBuf,
    },
}

impl Error {
    /// Returns the error number, if the kernel or the system gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Socket { source, .. }
            | Self::Packet { source, .. }
            | Self::Namespace { source, .. }
            | Self::Setting { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// Returns whether there is no such interface, address, route, rule or namespace.
    pub fn is_not_found(&self) -> bool {
        let errno = self.errno();
        errno.is_some_and(|errno| [Errno::NODEV, Errno::NOENT, Errno::SRCH, Errno::ADDRNOTAVAIL].contains(&errno))
    }

    /// Returns whether there is already one of that name or with that content.
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Returns whether the kernel cannot do this at all, such as an interface kind that it was built without.
    pub fn is_unsupported(&self) -> bool {
        let errno = self.errno();
        let numbers = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT];
        errno.is_some_and(|errno| numbers.contains(&errno))
    }
}

struct Explanation<'a>(Option<&'a str>);

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |message| write!(f, ": {message}"))
    }
}
