//! The file system of a [`Reader`](super::Reader), and the only module in which it opens files.
//!
//! It makes two promises:
//!
//! - Nothing outside the root is reached. Below a root other than `/` the kernel resolves every path, symbolic links
//!   included, as after `chroot`, so a hostile container that an operator inspects through `/proc/PID/root` cannot point
//!   the reader at the host. The path of the root itself must not have symbolic links other than those of procfs, because
//!   the container may control part of it.
//! - Opening never blocks or has side effects. Anything but a regular file, and any file on a pseudo file system
//!   ([`filesystem`]), is refused before it is opened for reading. Below another root, the checked file is then reopened
//!   by its handle through `/proc`, so that it cannot be replaced in between.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use super::filesystem;

/// The maximum number of entries in a directory.
const MAX_ENTRIES: usize = 10_000;
/// The number of entries between two checks of the deadline.
const ENTRIES_AT_ONCE: usize = 1024;

/// The directory that paths are relative to.
#[derive(Debug)]
pub(super) enum Root {
    /// The root of the process.
    Own,
    /// Another directory, which no path can leave.
    Confined { directory: OwnedFd, path: PathBuf },
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) identity: Identity,
    pub(super) size: u64,
}

/// The identity of a file, the same for two mounts of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

#[derive(Debug)]
pub(super) enum OpenError {
    Io(io::Error),
    NotAFile(&'static str),
}

/// An error in listing a directory.
#[derive(Debug)]
pub(super) enum ListError {
    Io(io::Error),
    /// It has more entries than the caller's limit.
    TooMany,
    /// The caller's deadline has passed.
    OutOfTime,
}

impl From<Errno> for ListError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Root {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        if path == Path::new("/") {
            return Ok(Self::Own);
        }
        let directory = open_root(path)?;
        Ok(Self::Confined { directory, path: path.to_owned() })
    }

    /// Returns the path as seen from outside the root, for messages.
    pub(super) fn outside(&self, path: &Path) -> PathBuf {
        match self {
            Self::Own => path.to_owned(),
            Self::Confined { path: root, .. } => root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    pub(super) fn open_file(&self, path: &Path) -> Result<OpenFile, OpenError> {
        // Opening anything but a regular file can have side effects: a FIFO blocks, /dev/watchdog reboots the machine.
        let checked = self.open(path, OFlags::PATH)?;
        expect_file(&fstat(&checked)?)?;
        if filesystem::is_pseudo(&checked)? {
            return Err(OpenError::NotAFile("on a pseudo file system"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match self {
            Self::Own => self.open(path, flags)?,
            // The container may have replaced the file since: this opens the one that was checked.
            Self::Confined { .. } => openat(CWD, handle_path(&checked), flags | OFlags::CLOEXEC, Mode::empty())?,
        };
        let stat = fstat(&opened)?;
        expect_file(&stat)?;
        Ok(OpenFile {
            file: File::from(opened),
            identity: Identity { device: stat.st_dev, inode: stat.st_ino },
            size: u64::try_from(stat.st_size).unwrap_or_default(),
        })
    }

    /// Returns the entries of a directory in lexical order, without `.` and `..`; at most `limit`.
    pub(super) fn list(&self, path: &Path, limit: usize, until: Instant) -> Result<Vec<OsString>, ListError> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        if matches!(self, Self::Confined { .. }) && filesystem::is_pseudo(&directory)? {
            let problem = "is on a pseudo file system, not a directory of metadata";
            return Err(ListError::Io(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        let mut names = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(std::os::unix::ffi::OsStringExt::from_vec(name.to_vec()));
            }
            if names.len() > MAX_ENTRIES {
                let problem = format!("more than {MAX_ENTRIES} entries, which no metadata directory has");
                return Err(ListError::Io(io::Error::new(io::ErrorKind::InvalidData, problem)));
            }
            if names.len() > limit {
                return Err(ListError::TooMany);
            }
            if names.len().is_multiple_of(ENTRIES_AT_ONCE) && Instant::now() >= until {
                return Err(ListError::OutOfTime);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }

    /// Returns a handle or path to watch for changes of a path.
    pub(super) fn watch_target(&self, path: &Path) -> io::Result<WatchTarget> {
        let handle = self.open(path, OFlags::PATH)?;
        Ok(match self {
            Self::Own => WatchTarget::Path(path.to_owned()),
            Self::Confined { .. } => WatchTarget::Handle(handle),
        })
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        match self {
            Self::Own => openat(CWD, path, flags, Mode::empty()),
            Self::Confined { directory, .. } => {
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                // The kernel returns EAGAIN if a concurrent rename kept it from deciding whether the path stays inside.
                const TRIES: usize = 16;
                let mut outcome = Err(Errno::AGAIN);
                for _ in 0..TRIES {
                    outcome = openat2(directory, path, flags, Mode::empty(), resolve);
                    if !matches!(outcome, Err(Errno::AGAIN)) {
                        break;
                    }
                }
                outcome
            }
        }
    }
}

/// Opens the root directory, and follows no symbolic link on the way but those of procfs.
///
/// `/proc/PID/root` is such a link, and the kernel resolves it. The container could have made any other, to lead anywhere
/// on the host.
fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let start = if path.is_absolute() { "/" } else { "." };
    let mut directory = openat(CWD, start, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut so_far = PathBuf::new();
    for component in path.components() {
        so_far.push(component);
        let name = match component {
            Component::Normal(name) => name,
            Component::ParentDir => "..".as_ref(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => continue,
        };
        let mut next = openat(&directory, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&next)?.st_mode) == FileType::Symlink {
            if !filesystem::is_proc(&next)? {
                let problem = format!(
                    "{} is a symbolic link, which a container may have made; if you trust it, resolve it first with \
                     `readlink -f`",
                    so_far.display()
                );
                return Err(io::Error::other(problem));
            }
            next = openat(&directory, name, flags, Mode::empty())?;
        }
        directory = next;
    }
    if FileType::from_raw_mode(fstat(&directory)?.st_mode) == FileType::Directory {
        Ok(directory)
    } else {
        Err(Errno::NOTDIR.into())
    }
}

/// An existing file or directory to watch. inotify takes only paths.
pub(super) enum WatchTarget {
    /// Its own path. It needs no `/proc`, which not every container has.
    Path(PathBuf),
    /// A handle, so that the watch is on the file that was found inside the root.
    Handle(OwnedFd),
}

impl WatchTarget {
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Handle(handle) => handle_path(handle),
        }
    }
}

/// Returns the path of an open file in `/proc`, which does not depend on the file's name.
fn handle_path(handle: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn expect_file(stat: &Stat) -> Result<(), OpenError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a symbolic link",
        FileType::Unknown => "of an unknown type",
    };
    Err(OpenError::NotAFile(kind))
}
