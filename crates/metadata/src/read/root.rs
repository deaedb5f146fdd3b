//! The file system that a [`Reader`](super::Reader) looks at, and the only place where it opens anything.
//!
//! Two promises. Nothing outside the root is reached: below another root than `/` every path is resolved by the
//! kernel as after `chroot`, symbolic links included, so a hostile container whose files an operator looks at through
//! `/proc/PID/root` cannot point the reader at the host. The way to the root itself has no symbolic link but those of
//! procfs, because part of it may be in a container's hands. And opening never hangs or has effects: what is not a
//! regular file, or is on a file system of the kernel's own ([`filesystem`]), is refused before it is opened for
//! reading. Below another root, what was looked at is then opened by its handle, through `/proc`, so that nothing can
//! take its place in between.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use super::filesystem;

/// How many entries a directory may have.
const MAX_ENTRIES: usize = 10_000;
/// How many entries are read between two looks at the clock.
const ENTRIES_AT_ONCE: usize = 1024;

/// Where paths start.
#[derive(Debug)]
pub(super) enum Root {
    /// The root of the process: paths are taken as they are.
    Own,
    /// Another directory, which no path leaves.
    Confined { directory: OwnedFd, path: PathBuf },
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) identity: Identity,
    pub(super) size: u64,
}

/// Which file it is: two mounts of one file have the same.
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

/// Why a directory could not be listed.
#[derive(Debug)]
pub(super) enum ListError {
    Io(io::Error),
    /// It has more entries than the caller takes.
    TooMany,
    /// The caller's time is over.
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

    /// The path as somebody outside the root would write it, for messages.
    pub(super) fn outside(&self, path: &Path) -> PathBuf {
        match self {
            Self::Own => path.to_owned(),
            Self::Confined { path: root, .. } => root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    pub(super) fn open_file(&self, path: &Path) -> Result<OpenFile, OpenError> {
        // Opening alone can have effects on what is not a file: a FIFO blocks, /dev/watchdog reboots the machine.
        let looked_at = self.open(path, OFlags::PATH)?;
        expect_file(&fstat(&looked_at)?)?;
        if filesystem::is_of_the_kernel(&looked_at)? {
            return Err(OpenError::NotAFile("on one of the kernel's own file systems"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match self {
            Self::Own => self.open(path, flags)?,
            // Somebody else's directory: another thing may have taken its name meanwhile. This is what was looked at.
            Self::Confined { .. } => openat(CWD, handle_path(&looked_at), flags | OFlags::CLOEXEC, Mode::empty())?,
        };
        let stat = fstat(&opened)?;
        expect_file(&stat)?;
        Ok(OpenFile {
            file: File::from(opened),
            identity: Identity { device: stat.st_dev, inode: stat.st_ino },
            size: u64::try_from(stat.st_size).unwrap_or_default(),
        })
    }

    /// The entries of a directory in lexical order, without `.` and `..`; at most `limit`.
    pub(super) fn list(&self, path: &Path, limit: usize, until: Instant) -> Result<Vec<OsString>, ListError> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        if matches!(self, Self::Confined { .. }) && filesystem::is_of_the_kernel(&directory)? {
            let problem = "is on one of the kernel's own file systems, not a directory of metadata";
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

    /// What to watch in order to watch this path.
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
                // The kernel answers EAGAIN when a rename elsewhere kept it from telling whether a path stays inside.
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

/// Opens the directory that is to be the root, and follows no symbolic link on the way but those of procfs.
///
/// `/proc/PID/root` is such a link, and the kernel itself resolves it. Any other may have been made by the container
/// that is to be looked at, and lead anywhere on the host.
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
                    "{} is a symbolic link, which a container may have made; if it can be trusted, resolve it first, \
                     with `readlink -f`",
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

/// Something that is there, and can be watched. The kernel takes paths only.
pub(super) enum WatchTarget {
    /// By its own path, which needs no `/proc`: there is none in every container.
    Path(PathBuf),
    /// Held open, so that the watch is put on just what was found inside the root.
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

/// A path to what is open, whatever has become of its name.
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
