//! Where the connection comes from: a path that is dialled again and again, or a socket that exists once.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::net::UnixStream;

use crate::error::{ConnectionError, StartError};

/// The path of the socket, if no other is configured.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";
/// The environment variable with the path of the socket.
pub const SOCKET_VARIABLE: &str = "NRI_SOCKET";
/// The environment variable with the descriptor of the connection, in a plugin that the runtime launched.
pub const DESCRIPTOR_VARIABLE: &str = "NRI_PLUGIN_SOCKET";
/// The environment variable with the name of a plugin that the runtime launched.
pub const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
/// The environment variable with the index of a plugin that the runtime launched.
pub const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";

/// Where the connection comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A path, which the runtime creates again when it restarts.
    Path(PathBuf),
    /// A connected socket; there is no other one. `None` when it was used.
    Connected(Option<StdStream>),
}

impl Source {
    /// Connects. `None` if there is nothing to connect to any more.
    pub(crate) async fn connect(&mut self) -> Option<Result<UnixStream, ConnectionError>> {
        match self {
            Self::Path(path) => {
                let stream = UnixStream::connect(&*path).await;
                Some(stream.map_err(|source| ConnectionError::Connect { path: path.clone(), source }))
            }
            Self::Connected(stream) => {
                let stream = stream.take()?;
                let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
                Some(stream.map_err(ConnectionError::Io))
            }
        }
    }
}

/// Returns the path of the socket: the configured one, or that of the environment, or the default.
pub(crate) fn socket_path(configured: Option<PathBuf>) -> PathBuf {
    let from_environment = || std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    configured.or_else(from_environment).unwrap_or_else(|| DEFAULT_SOCKET.into())
}

/// Returns the connection that the runtime gave to this process when it launched it.
pub(crate) fn launched_connection(value: &OsStr) -> Result<StdStream, StartError> {
    let error = |source| StartError::Descriptor { value: value.to_string_lossy().into_owned(), source };
    let number = value.to_str().and_then(|value| value.parse().ok());
    let number = number.ok_or_else(|| error(io::Error::new(io::ErrorKind::InvalidInput, "not a descriptor")))?;
    let stream = StdStream::from(duplicate(number).map_err(error)?);
    // Fails if it is no socket.
    stream.peer_addr().map_err(error)?;
    Ok(stream)
}

/// Duplicates a descriptor of this process that only its number is known of: through the kernel's view of the process, since
/// taking a number for a descriptor is not safe in Rust.
fn duplicate(number: i32) -> io::Result<OwnedFd> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}
