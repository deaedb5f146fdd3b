//! The file that a listening socket is.
//!
//! Order of the steps of [`listen`]: look at what has the name, and remove it if it is a dead socket; bind under a staging
//! name, restricted to its owner from the first moment; listen, since nobody can connect before; rename it into place, which
//! never replaces anything. What fails on the way takes its own file with it.
//!
//! A socket is told from its successors by device and inode. Each [`SocketFile`] holds its inode open, so that the number
//! cannot be given to another file while it lives. Between the comparison and the removal of a file there is a moment in
//! which another process could replace the file: the kernel has no call that does both.

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

/// The kubelet is root, or the same user. Whoever can connect can prepare and unprepare claims.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o600);
/// The number of connections that the kernel keeps until they are accepted. It has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// How often [`listen`] starts anew when another process changed the directory under its hands.
const ATTEMPTS: usize = 16;

/// Why a socket cannot be listened on, or its file not be removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Somebody accepts connections.
    #[error(
        "{}: another process listens here: stop it first, or give each instance of the driver its pod UID (rolling update)",
        .path.display()
    )]
    Live { path: PathBuf },
    /// Something else has the name.
    #[error("{}: is a {kind}, not a socket: move it away", .path.display())]
    NotASocket { path: PathBuf, kind: &'static str },
    /// Other processes create and remove this socket all the time.
    #[error("{}: other processes keep changing this socket", .path.display())]
    Contended { path: PathBuf },
    /// The system refused.
    #[error("{action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl SocketError {
    /// For `map_err`: what was to be done to which path.
    fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source: source.into() }
    }

    /// Whether a file is missing that was there before.
    fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The file of a socket that this process listens on. Dropping it removes the file, if that still is the same.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Opened with `O_PATH`: names the inode and keeps its number from being given away.
    inode: OwnedFd,
    removed: bool,
}

impl SocketFile {
    /// Where the socket is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file now, and reports a failure instead of logging it. A file that took the name since is left alone.
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
            tracing::warn!(%error, "a socket stays behind");
        }
    }
}

/// Fails if somebody listens at a path; what a dead process left there is removed.
pub(crate) fn ensure_not_live(path: &Path) -> Result<(), SocketError> {
    match remove_if_dead(path)? {
        Found::Live => Err(SocketError::Live { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Listens on a path that is free, or that a dead process left behind. The socket listens before it can be seen there.
///
/// Blocks, for some system calls on local files and sockets.
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

/// Listens on a path that is free; `None` when another process was faster, or took the staged socket for a dead one.
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
    // A umask may have taken something away.
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

/// Binds a socket that only its owner can connect to, and nobody before it listens.
fn bind(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel makes the file with the mode of the socket, so there is no moment in which it has another.
    rustix::fs::fchmod(&socket, SOCKET_MODE)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Renames without replacing, also on filesystems that cannot do that in one call.
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

/// What was found at a path where a socket may be.
#[derive(Debug)]
pub(super) enum Found {
    /// No file, or one that another process has just removed or replaced.
    Nothing,
    /// A socket that refused a connection; it is gone now.
    Removed,
    /// A socket that somebody listens on.
    Live,
    /// A file of another kind.
    Other(FileType),
}

/// Removes a socket that refuses connections, and nothing else.
pub(super) fn remove_if_dead(path: &Path) -> Result<Found, SocketError> {
    let kind = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        other => other.map_err(SocketError::io("look at", path))?.file_type(),
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
        // Nobody listens: the process that bound it is dead, since nobody binds under this name without listening.
        Err(Errno::CONNREFUSED) => Ok(if unlink_if(path, &inode)? { Found::Removed } else { Found::Nothing }),
        // A full queue, or a socket of another type: somebody has it.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(Found::Live),
        Err(error) => Err(SocketError::io("connect to", path)(error)),
    }
}

/// Connects and hangs up, without ever waiting.
fn connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn open_inode(path: &Path) -> Result<OwnedFd, SocketError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(SocketError::io("open", path))
}

/// Removes a file if it is this inode; says whether it was.
fn unlink_if(path: &Path, inode: &OwnedFd) -> Result<bool, SocketError> {
    let ours = rustix::fs::fstat(inode).map_err(SocketError::io("look at", path))?;
    let found = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        other => other.map_err(SocketError::io("look at", path))?,
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
    fn a_socket_listens_for_its_owner_alone_and_goes_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dra.sock");
        let (_listener, file) = listen(&path, &driver()).unwrap();
        assert_eq!(names_in(directory.path()), ["dra.sock"]);
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(file.path()).unwrap();
        file.remove().unwrap();
        assert!(names_in(directory.path()).is_empty());
    }

    /// Whatever the umask: the mode is that of the first moment, and until the socket listens nobody gets through.
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

    /// G8: what a dead process left is removed.
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

    /// G8: a live socket is not stolen, whether or not it has room in its queue, and whatever its type.
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

    /// G8: a live process that is too busy to accept is alive.
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

    /// G7: an old instance that ends late leaves the new instance's socket alone.
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
        // A path that leads through a file: also root gets an error.
        fs::rename(&inner, directory.path().join("moved")).unwrap();
        fs::write(&inner, "").unwrap();
        let error = file.remove().unwrap_err();
        assert!(error.to_string().contains("inner/dra.sock: Not a directory"), "{error}");
    }

    /// G5: an attempt that fails leaves nothing behind.
    #[test]
    fn a_directory_that_is_missing_is_an_error_that_names_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/dra.sock");
        let error = listen(&path, &driver()).unwrap_err();
        assert!(error.to_string().contains(&format!("{}: No such file", path.display())), "{error}");
        assert!(names_in(directory.path()).is_empty());
    }

    /// Two instances that start at once: one gets the name, the other an error, and neither loses its socket.
    #[test]
    fn of_many_that_start_at_once_exactly_one_gets_the_name() {
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
    fn a_socket_appears_under_its_name_when_it_already_listens() {
        let directory = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(&[directory.path()]);
        let (_listener, file) = listen(&directory.path().join("gpu.example.com@reg.sock"), &driver()).unwrap();
        assert_eq!(
            watch.events(),
            ["create .staged", "move-from .staged", "move-to gpu.example.com@reg.sock"],
            "it is bound, and listens, under another name"
        );
        drop(file);
        assert_eq!(watch.events(), ["delete gpu.example.com@reg.sock"]);
    }

    /// G8: between the look at a name and the renaming somebody else may have taken it. Also where the filesystem cannot
    /// rename without replacing.
    #[test]
    fn renaming_replaces_nothing() {
        for rename in [rename_if_free, link_and_unlink] {
            let directory = tempfile::tempdir().unwrap();
            let (staged, path) = (directory.path().join(".staged"), directory.path().join("dra.sock"));
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
