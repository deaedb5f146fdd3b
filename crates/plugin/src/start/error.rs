//! Why a driver did not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use drakkar_cdi::NameError as CdiNameError;
use drakkar_client::ConnectError;
use drakkar_metadata::VersionError;
use drakkar_metadata::name::{DriverName, NameError};
use tokio::task::JoinError;

use crate::error::BoxError;
use crate::http_endpoint::HttpError;
use crate::lock::LockError;
use crate::registration::NoDraService;
use crate::server::StartError as ServeError;
use crate::socket::SocketError;

/// Why a driver did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The driver's name is not valid.
    #[error("{0}; a driver's name is a domain name that its vendor owns, such as gpu.example.com")]
    DriverName(#[source] NameError),
    /// The driver's name cannot be the vendor of a CDI device.
    #[error(
        "driver name {driver}: device metadata needs a name that CDI can carry as a vendor: {source}, or turn device \
         metadata off"
    )]
    CdiVendor {
        /// The name.
        driver: DriverName,
        /// The rule of CDI that it breaks.
        source: CdiNameError,
    },
    /// The pod's UID is not valid.
    #[error(
        "pod UID {uid:?}: must be 1 to 128 letters, digits, '-', '_' and '.', starting with a letter or digit: use the pod's \
         metadata.uid"
    )]
    PodUid {
        /// The UID.
        uid: String,
    },
    /// The versions of metadata files cannot be written.
    #[error("metadata versions: {0}")]
    Versions(#[source] VersionError),
    /// Containers would not see metadata files.
    #[error("metadata layout: there is none; use kep, kubernetes or both")]
    NoLayout,
    /// No version of the DRA service is enabled.
    #[error("{NoDraService}")]
    NoService,
    /// A directory is missing or cannot be used.
    #[error("{what} {}: {source}; {remedy}", .path.display())]
    Directory {
        /// The purpose of the directory.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// There is no configuration for the API server.
    #[error("find the API server: {0}")]
    Client(#[source] ConnectError),
    /// The lock file for rolling updates cannot be used.
    #[error("{source}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The error of the system, or what is in the way.
        source: io::Error,
    },
    /// The HTTP endpoint cannot be served.
    #[error("{source}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The error of the system, with what to do.
        source: io::Error,
    },
    /// A socket cannot be served. The error's kind is [`io::ErrorKind::AddrInUse`] if another process listens there.
    #[error("{0}")]
    Socket(#[source] io::Error),
    /// The driver was not made: the error of the function given to [`crate::PluginBuilder::start_with`].
    #[error("{0}")]
    Driver(#[source] BoxError),
    /// A task of the start failed.
    #[error("start the driver: {0}")]
    Task(#[source] JoinError),
}

impl From<NoDraService> for StartError {
    fn from(NoDraService: NoDraService) -> Self {
        Self::NoService
    }
}

/// Makes an error of a lock file that cannot be used.
pub(super) fn lock_error(path: PathBuf, error: LockError) -> StartError {
    let kind = match &error {
        LockError::Io { source, .. } => source.kind(),
        LockError::NotAFile { .. } => io::ErrorKind::AlreadyExists,
    };
    StartError::Lock { path, source: io::Error::new(kind, error) }
}

/// Makes an error of a socket that cannot be served.
pub(super) fn socket_error(error: ServeError) -> StartError {
    let kind = match &error {
        ServeError::Name(_) => io::ErrorKind::InvalidInput,
        ServeError::Socket(SocketError::Live { .. }) => io::ErrorKind::AddrInUse,
        ServeError::Socket(SocketError::Io { source, .. }) => source.kind(),
        ServeError::Socket(_) | ServeError::Server(_) | ServeError::Task(_) => io::ErrorKind::Other,
    };
    StartError::Socket(io::Error::new(kind, error))
}

/// Makes an error of an HTTP endpoint that cannot be served.
pub(super) fn http_error(address: SocketAddr, error: HttpError) -> StartError {
    let kind = match &error {
        HttpError::Listen { source, .. } | HttpError::Thread { source, .. } => source.kind(),
        HttpError::StopTimeout { .. } => io::ErrorKind::TimedOut,
    };
    StartError::Http { address, source: io::Error::new(kind, error) }
}
