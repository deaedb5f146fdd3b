//! The file of a hook's unix socket.
//!
//! virt-launcher takes every file in the directory of hook sockets for a socket of its own name, so nothing else is ever
//! created there: no lock, no staging name. [`listen`] works in this order: probe an existing file, and remove it if it is a
//! socket that refuses connections, which an earlier run of the container has left; bind and listen; set the mode. A launcher
//! that connects between these steps is refused, and tries again.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The mode of the socket: any user. Only the launcher's container and the hook's mount its directory, and the launcher's
/// user (107, or root) need not be the hook's.
const MODE: u32 = 0o666;

/// A failure to listen on a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens on the socket.
    #[error("hook socket {}: another process listens here: give each hook a name of its own", .path.display())]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// The existing file is not a socket.
    #[error("hook socket {}: exists and is not a socket: move it away", .path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The directory does not exist.
    #[error(
        "hook socket {}: the directory does not exist: KubeVirt mounts it in the container of a hook; \
         name another socket to run the hook elsewhere",
        .path.display()
    )]
    NoDirectory {
        /// The socket.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("hook socket {}: {action}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// A socket file of this process. Dropping it removes the file, unless another has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.device_and_inode;
        if fs::symlink_metadata(&self.path).is_ok_and(ours)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "could not remove hook socket");
        }
    }
}

/// Listens on a path that is free or has a dead socket.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let failed = |action| move |source| SocketError::Io { path: path.to_owned(), action, source };
    remove_dead(path)?;
    let listener = UnixListener::bind(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => SocketError::NoDirectory { path: path.to_owned() },
        _ => failed("listen")(source),
    })?;
    let metadata = fs::symlink_metadata(path).map_err(failed("stat"))?;
    let file = SocketFile { path: path.to_owned(), device_and_inode: (metadata.dev(), metadata.ino()) };
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed("set the mode"))?;
    listener.set_nonblocking(true).map_err(failed("make non-blocking"))?;
    Ok((listener, file))
}

/// Removes a socket that refuses connections. Fails if it is in use or not a socket.
fn remove_dead(path: &Path) -> Result<(), SocketError> {
    let failed = |action| move |source| SocketError::Io { path: path.to_owned(), action, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Live { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove a dead socket")(error)),
            _ => Ok(()),
        },
        Err(error) => Err(failed("probe")(error)),
    }
}
