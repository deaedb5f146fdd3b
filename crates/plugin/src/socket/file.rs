//! The file of a listening socket: creating it, probing an existing one and removing it.
//!
//! [`listen`] works in this order: probe an existing file, and remove it if it is a dead socket; bind under a staging name,
//! with mode 0600 from the start; listen, since connections are refused before; rename into place, which never replaces a
//! file. A step that fails removes the staged file.
//!
//! Device and inode tell a socket from its successor. Each [`SocketFile`] keeps its inode open, so that the kernel cannot
//! reuse the number. Between comparing and removing a file another process could still replace it: the kernel has no call
//! that does both.

use std::collections::hash_map::RandomState;
use std::fs::{self, FileType};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use drakkar_metadata::name::DriverName;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::name::staging_name;

/// The mode of sockets. The kubelet is root or the same user, and any process that can connect can unprepare claims.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o600);
/// The number of connections that may wait to be accepted. The kernel has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// How often [`listen`] starts over when other processes change the directory at the same time.
const ATTEMPTS: usize = 16;

/// A failure to listen on a socket or to remove its file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Another process listens on the socket.
    #[error(
        "{}: another process listens here: stop it first, or give each instance of the driver its pod UID (rolling update)",
        .path.display()
    )]
    Live { path: PathBuf },
    /// The existing file is not a socket.
    #[error("{}: is a {kind}, not a socket: move it away", .path.display())]
    NotASocket { path: PathBuf, kind: &'static str },
    /// Other processes create and remove this socket at the same time.
    #[error("{}: other processes keep changing this socket", .path.display())]
    Contended { path: PathBuf },
    /// A system call failed.
    #[error("{action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl SocketError {
    /// Returns a function for `map_err` that adds the action and the path.
    fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// Whether a file has disappeared.
    fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The file of a socket that this process listens on. Dropping it removes the file, unless another has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Opened with `O_PATH`: identifies the inode and prevents the reuse of its number.
    inode: OwnedFd,
    removed: bool,
}

impl SocketFile {
    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file and returns a failure instead of logging it. A file that has replaced it is left alone.
    pub(crate) fn remove(mut self) -> Result<(), SocketError> {
        self.removed = true;
        self.unlink()
    }

    fn unlink(&self) -> Result<(), SocketError> {
        unlink_if(&self.path, &self.inode).map(drop)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.unlink()
        {
            tracing::warn!(%error, "could not remove socket");
        }
    }
}

/// Fails if a process listens at `path`. Removes a dead socket.
pub(crate) fn ensure_not_live(path: &Path) -> Result<(), SocketError> {
    match remove_if_dead(path)? {
        Found::Live => Err(SocketError::Live { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Listens on a path that is free or has a dead socket. The socket listens before it is visible at the path.
///
/// Blocks for a few system calls on local files and sockets.
pub(crate) fn listen(path: &Path, driver: &DriverName) -> Result<(UnixListener, SocketFile), SocketError> {
    for _ in 0..ATTEMPTS {
        match remove_if_dead(path)? {
            Found::Live => return Err(SocketError::Live { path: path.to_owned() }),
            Found::Other(kind) => return Err(SocketError::NotASocket { path: path.to_owned(), kind: describe(kind) }),
            Found::Nothing | Found::Removed => {}
        }
        if let Some(bound) = listen_if_free(path, driver)? {
            return Ok(bound);
        }
    }
    Err(SocketError::Contended { path: path.to_owned() })
}

/// Listens on a free path. Returns `None` if another process was faster or removed the staged socket as dead.
fn listen_if_free(path: &Path, driver: &DriverName) -> Result<Option<(UnixListener, SocketFile)>, SocketError> {
    let staged = path.with_file_name(staging_name(driver, RandomState::new().build_hasher().finish()));
    let socket = match bind(&staged) {
        Err(Errno::ADDRINUSE) => return Ok(None),
        other => other.map_err(SocketError::io("bind a socket in the directory of", path))?,
    };
    let file = match open_inode(&staged) {
        Err(error) if error.is_not_found() => return Ok(None),
        other => other.inspect_err(|_| drop(fs::remove_file(&staged)))?,
    };
    let mut file = SocketFile { path: staged, inode: file, removed: false };
    // The umask may have cleared bits of the mode.
    match rustix::fs::chmod(&file.path, SOCKET_MODE) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(SocketError::io("set the mode of", &file.path))?,
    }
    rustix::net::listen(&socket, BACKLOG).map_err(SocketError::io("listen on", &file.path))?;
    let listener = UnixListener::from(socket);
    match rename_if_free(&file.path, path) {
        Err(Errno::EXIST | Errno::NOENT) => return Ok(None),
        other => other.map_err(SocketError::io("rename a socket to", path))?,
    }
    file.path = path.to_owned();
    Ok(Some((listener, file)))
}

/// Binds a socket that only its owner can connect to, once it listens.
fn bind(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel creates the file with the mode of the socket, so the file never has another.
    rustix::fs::fchmod(&socket, SOCKET_MODE)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Renames without replacing, also on filesystems that do not support that in one call.
fn rename_if_free(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_and_unlink(from, to),
        other => other,
    }
}

fn link_and_unlink(from: &Path, to: &Path) -> Result<(), Errno> {
    rustix::fs::link(from, to)?;
    rustix::fs::unlink(from)
}

/// The result of probing the path of a socket.
#[derive(Debug)]
pub(super) enum Found {
    /// No file, or one that another process has just removed or replaced.
    Nothing,
    /// A dead socket, which has been removed.
    Removed,
    /// A socket that a process listens on.
    Live,
    /// A file of another kind.
    Other(FileType),
}

/// Removes a socket that refuses connections, and nothing else.
pub(super) fn remove_if_dead(path: &Path) -> Result<Found, SocketError> {
    let kind = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        other => other.map_err(SocketError::io("stat", path))?.file_type(),
    };
    if !kind.is_socket() {
        return Ok(Found::Other(kind));
    }
    let inode = match open_inode(path) {
        Err(error) if error.is_not_found() => return Ok(Found::Nothing),
        other => other?,
    };
    match connect(path) {
        Err(Errno::NOENT) => Ok(Found::Nothing),
        // The process that bound it is dead, since sockets listen before they get this name.
        Err(Errno::CONNREFUSED) => Ok(if unlink_if(path, &inode)? { Found::Removed } else { Found::Nothing }),
        // The queue is full, or the socket has another type: it is in use.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(Found::Live),
        Err(error) => Err(SocketError::io("connect to", path)(error)),
    }
}

/// Connects and disconnects without blocking.
fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn open_inode(path: &Path) -> Result<OwnedFd, SocketError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(SocketError::io("open", path))
}

/// Removes a file if it has this inode. Returns whether it did.
fn unlink_if(path: &Path, inode: &OwnedFd) -> Result<bool, SocketError> {
    let ours = rustix::fs::fstat(inode).map_err(SocketError::io("stat", path))?;
    let found = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        other => other.map_err(SocketError::io("stat", path))?,
    };
    if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino) {
        return Ok(false);
    }
    match rustix::fs::unlink(path) {
        Err(Errno::NOENT) => Ok(false),
        other => other.map(|()| true).map_err(SocketError::io("remove", path)),
    }
}

fn describe(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "directory"
    } else if kind.is_symlink() {
        "symbolic link"
    } else if kind.is_file() {
        "regular file"
    } else {
        "device or pipe"
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use crate::socket::watch::DirectoryWatch;

    fn driver() -> DriverName {
        DriverName::new("gpu.example.com").unwrap()
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A.6: listening creates the socket's file, closing removes it.
    #[test]
    fn a_socket_is_for_its_owner_alone_and_is_removed_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let (_listener, file) = listen(&path, &driver()).unwrap();
        assert_eq!(names_in(directory.path()), ["dra.sock"]);
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(file.path()).unwrap();
        file.remove().unwrap();
        assert!(names_in(directory.path()).is_empty());
    }

    /// The mode is set from the start, whatever the umask is, and connections are refused until the socket listens.
    #[test]
    fn a_socket_has_its_mode_before_it_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let socket = bind(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o177, 0);
        assert_eq!(connect(&path), Err(Errno::CONNREFUSED));
        rustix::net::listen(&socket, BACKLOG).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_dropped_socket_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        drop(listen(&directory.path().join("dra.sock"), &driver()).unwrap());
        assert!(names_in(directory.path()).is_empty());
    }

    /// G8: the socket of a dead process is removed.
    #[test]
    fn a_socket_that_refuses_connections_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, _file) = listen(&path, &driver()).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(names_in(directory.path()), ["dra.sock"]);
    }

    /// G8: a live socket is not replaced, whatever its type.
    #[test]
    fn a_live_socket_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let live = UnixListener::bind(&path).unwrap();
        let error = listen(&path, &driver()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: another process listens here", path.display())), "{error}");
        live.accept().unwrap();
        UnixStream::connect(&path).unwrap();
        live.accept().unwrap();

        let datagram = directory.path().join("datagram.sock");
        let _live = UnixDatagram::bind(&datagram).unwrap();
        assert!(matches!(listen(&datagram, &driver()), Err(SocketError::Live { .. })));
        assert_eq!(names_in(directory.path()), ["datagram.sock", "dra.sock"]);
    }

    /// G8: a process that is too busy to accept is alive.
    #[test]
    fn a_socket_with_a_full_queue_is_live() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert_eq!(connect(&path), Err(Errno::AGAIN));
        assert!(matches!(listen(&path, &driver()), Err(SocketError::Live { .. })));
        assert!(path.exists());
    }

    /// G8: only sockets are ever removed.
    #[test]
    fn a_file_of_another_kind_is_an_error_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let dead = directory.path().join("dead.sock");
        drop(UnixListener::bind(&dead).unwrap());
        for (name, kind) in [("file", "regular file"), ("directory", "directory"), ("link", "symbolic link")] {
            let path = directory.path().join(name);
            match kind {
                "regular file" => fs::write(&path, "precious").unwrap(),
                "directory" => fs::create_dir(&path).unwrap(),
                _ => std::os::unix::fs::symlink(&dead, &path).unwrap(),
            }
            let error = listen(&path, &driver()).unwrap_err();
            assert_eq!(error.to_string(), format!("{}: is a {kind}, not a socket: move it away", path.display()));
        }
        assert_eq!(names_in(directory.path()), ["dead.sock", "directory", "file", "link"]);
        assert_eq!(fs::read(directory.path().join("file")).unwrap(), b"precious");
    }

    /// G7: an old instance that stops late leaves the new instance's socket alone.
    #[test]
    fn closing_leaves_the_socket_of_a_successor_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let (listener, old) = listen(&path, &driver()).unwrap();
        drop(listener);
        let (_listener, _new) = listen(&path, &driver()).unwrap();
        old.remove().unwrap();
        UnixStream::connect(&path).unwrap();
    }

    /// A.6: a failed removal is reported.
    #[test]
    fn a_file_that_cannot_be_removed_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let (_listener, file) = listen(&inner.join("dra.sock"), &driver()).unwrap();
        // A path through a regular file: this is an error also for root.
        fs::rename(&inner, directory.path().join("moved")).unwrap();
        fs::write(&inner, "").unwrap();
        let error = file.remove().unwrap_err();
        assert!(error.to_string().contains("inner/dra.sock: Not a directory"), "{error}");
    }

    /// G5: a failed attempt leaves no files.
    #[test]
    fn a_directory_that_is_missing_is_an_error_that_names_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/dra.sock");
        let error = listen(&path, &driver()).unwrap_err();
        assert!(error.to_string().contains(&format!("{}: No such file", path.display())), "{error}");
        assert!(names_in(directory.path()).is_empty());
    }

    /// When instances start at the same time, one gets the path, the others get an error, and no socket is lost.
    #[test]
    fn of_many_concurrent_starts_exactly_one_gets_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| listen(&path, &driver()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        assert!(
            results.iter().all(|result| !matches!(result, Err(error) if !matches!(error, SocketError::Live { .. })))
        );
        UnixStream::connect(&path).unwrap();
        assert_eq!(names_in(directory.path()), ["dra.sock"]);
    }

    /// The kubelet dials a socket as soon as its name appears, and ignores names that start with a dot.
    #[test]
    fn a_socket_already_listens_when_its_name_appears() {
        let directory = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(&[directory.path()]);
        let (_listener, file) = listen(&directory.path().join("gpu.example.com@reg.sock"), &driver()).unwrap();
        assert_eq!(
            watch.events(),
            ["create .staged", "move-from .staged", "move-to gpu.example.com@reg.sock"],
            "it is bound and listens under another name"
        );
        drop(file);
        assert_eq!(watch.events(), ["delete gpu.example.com@reg.sock"]);
    }

    /// G8: another process may take the path between the probe and the rename. Also on filesystems that cannot rename without
    /// replacing.
    #[test]
    fn renaming_never_replaces_a_file() {
        for rename in [rename_if_free, link_and_unlink] {
            let directory = tempfile::tempdir().unwrap();
            let staged = directory.path().join(".staged");
            let path = directory.path().join("dra.sock");
            let listener = UnixListener::bind(&staged).unwrap();
            rename(&staged, &path).unwrap();
            assert_eq!(names_in(directory.path()), ["dra.sock"]);
            let _other = UnixListener::bind(&staged).unwrap();
            assert_eq!(rename(&staged, &path), Err(Errno::EXIST));
            UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
        }
    }
}
