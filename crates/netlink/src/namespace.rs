//! Network namespaces: opened by path, entered only by short-lived threads.
//!
//! A thread's namespace is never changed and changed back: the thread that enters one ends there. So no error can leave a
//! thread of the caller, or of an async runtime, in the wrong namespace. A socket stays in the namespace in which it was
//! opened, which is why nearly nothing has to run inside.
//!
//! **A [`Namespace`] is an open file and keeps the kernel's namespace alive**, with every interface in it, even after its
//! path is gone and its last process has ended. Whoever waits for the kernel to give interfaces back (a driver does) opens
//! one for an operation and drops it; it keeps the path and the [`NamespaceId`] instead.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use rustix::fs::{CWD, Mode, OFlags, fstat, fstatfs, openat, stat};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The file system type of namespace files (`NSFS_MAGIC`).
const NSFS_MAGIC: u64 = 0x6e73_6673;
/// The namespace of the thread that opens it.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// The directory of the kernel's settings; what is below `net` is of the namespace of the thread that opens it.
const SETTINGS: &str = "/proc/sys";

/// The identity of a network namespace while it exists. A number can be used again after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespaceId {
    /// The device number of the namespace file system.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net:[{}]", self.inode)
    }
}

/// An open network namespace. Keeps the kernel's namespace alive until it is dropped.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    path: PathBuf,
    id: NamespaceId,
    settings: PathBuf,
}

impl Namespace {
    /// Opens the namespace at a path, such as `/var/run/netns/cni-…` or `/proc/1/ns/net`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let (namespace, ()) = Self::open_and_run(path, || ())?;
        Ok(namespace)
    }

    /// Opens the namespace at a path and [runs](Self::run) a function inside, in one visit.
    pub fn open_and_run<T: Send>(path: impl Into<PathBuf>, function: impl FnOnce() -> T + Send) -> Result<(Self, T)> {
        let namespace = Self::open_file(path.into())?;
        // Other kinds of namespaces are in the same file system. Entering checks the kind.
        match namespace.run(function) {
            Ok(result) => Ok((namespace, result)),
            Err(error) if error.errno() == Some(Errno::INVAL) => Err(Error::NotANamespace { path: namespace.path }),
            Err(error) => Err(error),
        }
    }

    /// Opens the namespace at a path if it is the one with this identity, without a visit: whatever kind of namespace is at
    /// the path, its identity is of no other. `None` if something else is there, or nothing.
    pub fn open_identified(path: impl Into<PathBuf>, id: NamespaceId) -> Result<Option<Self>> {
        match Self::open_file(path.into()) {
            Ok(namespace) => Ok(Some(namespace).filter(|namespace| namespace.id == id)),
            Err(Error::NotANamespace { .. }) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open(CURRENT)
    }

    /// Makes a namespace with nothing but a loopback interface, which exists as long as this value or a process in it.
    ///
    /// Needs `CAP_SYS_ADMIN`.
    pub fn unshared() -> Result<Self> {
        let path = PathBuf::from(CURRENT);
        let make = || -> io::Result<OwnedFd> {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(File::open(CURRENT)?.into())
        };
        let file = on_a_thread(make).and_then(|file| file);
        match file {
            Ok(file) => Self::from_file(file, PathBuf::from("(unshared)")),
            Err(source) => Err(Error::Namespace { path, operation: "make a new one", source }),
        }
    }

    /// Opens the same namespace once more.
    pub fn try_clone(&self) -> Result<Self> {
        match self.file.try_clone() {
            Ok(file) => Ok(Self { file, path: self.path.clone(), id: self.id, settings: self.settings.clone() }),
            Err(source) => Err(Error::Namespace { path: self.path.clone(), operation: "open once more", source }),
        }
    }

    /// Opens a namespace of any kind.
    fn open_file(path: PathBuf) -> Result<Self> {
        // Not blocking: a FIFO in its place must not stop the caller.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match openat(CWD, &path, flags, Mode::empty()) {
            Ok(file) => Self::from_file(file, path),
            // A socket, which cannot be opened.
            Err(Errno::NXIO) => Err(Error::NotANamespace { path }),
            Err(errno) => Err(Error::Namespace { path, operation: "open", source: errno.into() }),
        }
    }

    fn from_file(file: OwnedFd, path: PathBuf) -> Result<Self> {
        let magic = fstatfs(&file).map(|stat| stat.f_type as u64);
        let id = fstat(&file).map(|stat| NamespaceId { device: stat.st_dev, inode: stat.st_ino });
        match (magic, id) {
            (Ok(NSFS_MAGIC), Ok(id)) => Ok(Self { file, path, id, settings: SETTINGS.into() }),
            (Ok(_), Ok(_)) => Err(Error::NotANamespace { path }),
            (Err(errno), _) | (_, Err(errno)) => {
                Err(Error::Namespace { path, operation: "identify", source: errno.into() })
            }
        }
    }

    /// Sets where the kernel's settings are, `/proc/sys` by default. That of a container is read-only, so the host's, or its directory
    /// `net`, is mounted elsewhere.
    #[must_use]
    pub fn with_settings(self, directory: impl Into<PathBuf>) -> Self {
        Self { settings: directory.into(), ..self }
    }

    /// Returns the path that it was opened by. Only for messages: something else can be there by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Returns the identity of what is at a path, without opening it; `None` if there is nothing.
    pub fn identify(path: &Path) -> Result<Option<NamespaceId>> {
        match stat(path) {
            Ok(stat) => Ok(Some(NamespaceId { device: stat.st_dev, inode: stat.st_ino })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(Error::Namespace { path: path.to_owned(), operation: "identify", source: errno.into() }),
        }
    }

    /// Returns whether there is a network namespace at a path. Everything else that is there counts as none.
    pub fn exists(path: impl Into<PathBuf>) -> bool {
        Self::open(path).is_ok()
    }

    /// Runs a function inside the namespace, on a thread of its own that ends with it.
    ///
    /// For what belongs to the namespace of the thread, such as opening sockets and `/proc/sys/net`.
    pub fn run<T: Send>(&self, function: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || -> io::Result<T> {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(function())
        };
        let result = on_a_thread(inside).and_then(|result| result);
        result.map_err(|source| Error::Namespace { path: self.path.clone(), operation: "enter", source })
    }
}

impl Namespace {
    /// Reads a setting of the namespace, by its path below `/proc/sys` such as `net/ipv4/conf/eth0/rp_filter`.
    pub fn setting(&self, path: &str) -> Result<String> {
        self.run(|| self.read_setting(path))?
    }

    /// Reads settings of the namespace in one visit, each by its path below `/proc/sys`. The first error ends it.
    pub fn settings<'a>(&self, paths: impl IntoIterator<Item = &'a str> + Send) -> Result<Vec<String>> {
        self.run(|| paths.into_iter().map(|path| self.read_setting(path)).collect())?
    }

    fn read_setting(&self, path: &str) -> Result<String> {
        let content = std::fs::read_to_string(self.settings.join(path));
        let content = content.map_err(|source| self.setting_error(path, source))?;
        Ok(content.trim_end().to_owned())
    }

    /// Writes settings of the namespace in turn, each by its path below `/proc/sys`. The first error ends it.
    pub fn set_settings<'a>(&self, settings: impl IntoIterator<Item = (&'a str, &'a str)> + Send) -> Result<()> {
        self.run(|| {
            for (path, value) in settings {
                let written = std::fs::write(self.settings.join(path), value);
                written.map_err(|source| self.setting_error(path, source))?;
            }
            Ok(())
        })?
    }

    fn setting_error(&self, path: &str, source: io::Error) -> Error {
        Error::Setting { path: path.to_owned(), namespace: self.path.clone(), source }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs a function on a thread of its own.
fn on_a_thread<T: Send>(function: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, function)?;
        // A panic of the function is the caller's.
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
