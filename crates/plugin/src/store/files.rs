//! The interface between the store and the file system, through which tests make any call fail or be the last one.
//!
//! Every call takes a directory and the name of one entry in it, and does not follow a symbolic link at that name. A name is
//! checked to be a single entry: no name from the API can reach another directory, and no link that is planted in our
//! directories is followed out of them.
//!
//! A [`Directory`] is open, or a path below an open one, which saves opening and closing it. Nothing below the driver's own
//! directory is opened through a link: the kernel refuses links anywhere in such a path (`RESOLVE_NO_SYMLINKS`).

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, chmodat, fchmod, fstat, mkdirat, openat, openat2,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::lock_budget::LockBudget;

/// The maximum size of a file that the store reads; its own files have a few kilobytes.
const MAX_SIZE: u64 = 8 * 1024 * 1024;
/// The mode of a file that containers read.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// The mode of a directory above such a file, and of the CDI directory, which programs without root privileges read too.
pub(crate) const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
/// The mode of the driver's own directory, with its sockets, locks and records. The container runtime, which mounts from it,
/// runs as root or as the same user.
pub(crate) const PLUGIN_DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o750);

/// A directory: an open one, or a path below one.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    /// `None` for a configured path, on which links are followed.
    open: Option<Arc<OwnedFd>>,
    /// The directory above the open one: what is opened is looked up by name, so that it is where others find it, also if
    /// another directory has taken the place of the open one.
    parent: Option<Arc<OwnedFd>>,
    /// The path below the parent if there is one, or else below the open directory.
    path: PathBuf,
    /// The number of bytes of `path` before the part that is below the open directory.
    above: usize,
}

impl Directory {
    fn open(handle: OwnedFd) -> Self {
        Self { open: Some(Arc::new(handle)), parent: None, path: PathBuf::new(), above: 0 }
    }

    /// Returns this directory for keeping it open, as the one that has this name in its parent.
    pub(crate) fn named(self, parent: &Self, name: Entry<'_>) -> Self {
        let Some(parent) = parent.open.clone() else { return self };
        Self { open: self.open, parent: Some(parent), path: name.0.into(), above: name.0.len() }
    }

    /// Returns the directory at a configured path, without opening it: it may be replaced at any time.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { open: None, parent: None, path, above: 0 }
    }

    /// Returns a directory in this one, without opening it. Makes no system call: whether it exists, and is no link, is found
    /// out when something in it is opened.
    pub(crate) fn join(&self, name: Entry<'_>) -> Self {
        let Self { open, parent, path, above } = self;
        let joined = join(path, name).as_path().to_owned();
        // The separator is not part of what is below.
        let above = above + usize::from(*above > 0 && *above == path.as_os_str().len());
        Self { open: open.clone(), parent: parent.clone(), path: joined, above }
    }

    /// Returns the path below the open directory; empty for that directory itself.
    fn below(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path.as_os_str().as_bytes()[self.above..]))
    }

    fn handle(&self) -> BorrowedFd<'_> {
        self.open.as_ref().map_or(CWD, |open| open.as_fd())
    }

    /// Returns the path of an entry, relative to [`Self::handle`].
    fn entry(&self, name: Entry<'_>) -> ShortPath {
        join(self.below(), name)
    }

    /// Opens an entry. Follows no link: not at its name, and below an open directory nowhere.
    fn open_entry(&self, name: Entry<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (handle, path) = match &self.parent {
            Some(parent) => (parent.as_fd(), join(&self.path, name)),
            None if self.open.is_none() || self.path.as_os_str().is_empty() => {
                return openat(self.handle(), self.entry(name).as_path(), flags, mode);
            }
            None => (self.handle(), self.entry(name)),
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(handle, path.as_path(), flags, mode, resolve) {
            // Linux before 5.6, or a seccomp filter that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => openat(self.walk()?, name.0, flags, mode),
            opened => opened,
        }
    }

    /// Opens the directory one component after the other.
    fn walk(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = self.parent.as_ref().map_or_else(|| self.handle(), |parent| parent.as_fd());
        let mut at = openat(handle, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for component in &self.path {
            at = openat(&at, component, flags, Mode::empty())?;
        }
        Ok(at)
    }
}

/// A path that is passed to the kernel: on the stack, unless it is long.
struct ShortPath(SmallVec<[u8; 192]>);

impl ShortPath {
    fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

/// Returns the path of an entry of a directory.
fn join(directory: &Path, name: Entry<'_>) -> ShortPath {
    let mut path = SmallVec::from_slice(directory.as_os_str().as_bytes());
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name.0.as_bytes());
    ShortPath(path)
}

/// The name of a single entry of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a>(&'a str);

impl<'a> Entry<'a> {
    /// Fails for a name that is empty, is not a single path component, or refers to another directory.
    pub(crate) fn new(name: &'a str) -> io::Result<Self> {
        let is_entry = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
        if is_entry { Ok(Self(name)) } else { Err(io::Error::from(io::ErrorKind::InvalidFilename)) }
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The file system operations that the store uses. Each method makes at most one system call that changes something.
pub(crate) trait Files: Send + Sync + 'static {
    /// Opens a directory at a configured path, and follows links on the way.
    fn open_root(&self, path: &Path) -> io::Result<Directory>;
    /// Creates a directory and its parents at a configured path.
    fn make_root(&self, path: &Path) -> io::Result<()>;
    /// Opens a directory in a directory.
    fn open_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Directory>;
    /// Creates a directory, and returns whether it is new. An existing directory is not an error.
    fn make_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool>;
    /// Reads a whole file.
    fn read(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Vec<u8>>;
    /// Creates a world-readable file; fails if it exists.
    fn create(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File>;
    /// Makes sure that a new file is world-readable, even if the process has changed its umask.
    fn check_mode(&self, file: &File) -> io::Result<()>;
    /// Opens an existing file for writing.
    fn open_for_update(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File>;
    /// Locks a file against readers while it is open. Continues without the lock when the budget is spent.
    fn lock(&self, file: &File, lock_budget: &LockBudget) -> io::Result<()>;
    /// Writes at the start of a file, with a single system call if it is not cut short.
    fn write(&self, file: &File, content: &[u8]) -> io::Result<()>;
    /// Renames an entry within its directory, and replaces an existing entry of that name.
    fn rename(&self, parent: &Directory, from: Entry<'_>, to: Entry<'_>) -> io::Result<()>;
    /// Removes a file. A missing file is not an error.
    fn remove_file(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()>;
    /// Removes an empty directory. A missing directory is not an error.
    fn remove_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()>;
    /// Returns the entries of a directory in lexical order, without those whose names are not Unicode: none of them is ours.
    fn list(&self, directory: &Directory) -> io::Result<Vec<String>>;
    /// Whether an entry exists, of whatever type.
    fn exists(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool>;
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SystemFiles;

impl Files for SystemFiles {
    fn open_root(&self, path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory::open(openat(CWD, path, flags, Mode::empty())?))
    }

    fn make_root(&self, path: &Path) -> io::Result<()> {
        make_directories(path, DIRECTORY_MODE)
    }

    fn open_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(Directory::open(parent.open_entry(name, flags, Mode::empty())?))
    }

    fn make_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool> {
        Ok(make_directory(parent.handle(), parent.entry(name).as_path(), DIRECTORY_MODE)?)
    }

    fn read(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Vec<u8>> {
        let (file, size) = open_file(parent, name, OFlags::RDONLY)?;
        if u64::try_from(size).unwrap_or(u64::MAX) > MAX_SIZE {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let size = usize::try_from(size).unwrap_or_default();
        // One byte more than the file has: a read that does not fill the buffer has reached the end of the file, without
        // another system call to find out.
        let mut content = vec![0; size + 1];
        let length = io::Read::read(&mut &file, &mut content)?;
        content.truncate(length);
        if length > 0 && length != size {
            let rest = MAX_SIZE.saturating_sub(length as u64);
            io::Read::read_to_end(&mut io::Read::take(&file, rest), &mut content)?;
        }
        Ok(content)
    }

    fn create(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = parent.open_entry(name, flags, FILE_MODE)?;
        if umask().intersects(FILE_MODE) {
            fchmod(&file, FILE_MODE)?;
        }
        Ok(File::from(file))
    }

    fn check_mode(&self, file: &File) -> io::Result<()> {
        // Reading the mode is much cheaper than setting it.
        if Mode::from_raw_mode(fstat(file)?.st_mode) != FILE_MODE {
            UMASK.store(ALL_PERMISSIONS, Ordering::Relaxed);
            fchmod(file, FILE_MODE)?;
        }
        Ok(())
    }

    fn open_for_update(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File> {
        open_file(parent, name, OFlags::WRONLY).map(|(file, _)| file)
    }

    fn lock(&self, file: &File, lock_budget: &LockBudget) -> io::Result<()> {
        // Any other error means that the file system has no locks, and then readers take none either.
        lock_budget.poll_until(|| !matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        Ok(())
    }

    fn write(&self, file: &File, content: &[u8]) -> io::Result<()> {
        file.write_all_at(content, 0)
    }

    fn rename(&self, parent: &Directory, from: Entry<'_>, to: Entry<'_>) -> io::Result<()> {
        let parent_handle = parent.handle();
        Ok(renameat(parent_handle, parent.entry(from).as_path(), parent_handle, parent.entry(to).as_path())?)
    }

    fn remove_file(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        absent_is_fine(unlinkat(parent.handle(), parent.entry(name).as_path(), AtFlags::empty()))
    }

    fn remove_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        absent_is_fine(unlinkat(parent.handle(), parent.entry(name).as_path(), AtFlags::REMOVEDIR))
    }

    fn list(&self, directory: &Directory) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let opened;
        let handle = if directory.below().as_os_str().is_empty() {
            directory.handle()
        } else {
            opened = directory.walk()?;
            opened.as_fd()
        };
        for entry in Dir::read_from(handle)? {
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool> {
        match statat(parent.handle(), parent.entry(name).as_path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Opens a regular file, and returns it with its size. Refuses anything else: opening a pipe or a device may block or have side
/// effects.
fn open_file(parent: &Directory, name: Entry<'_>, access: OFlags) -> io::Result<(File, i64)> {
    let file = parent.open_entry(name, access | OFlags::NONBLOCK, Mode::empty())?;
    let status = fstat(&file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok((File::from(file), status.st_size)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Creates a directory and its parents, with a mode that does not depend on the umask. Existing directories keep their mode.
pub(crate) fn make_directories(path: &Path, mode: Mode) -> io::Result<()> {
    match make_directory(CWD, path, mode) {
        Ok(_) if path.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(Errno::NOENT) => {
            let parent = path.parent().ok_or(io::ErrorKind::NotFound)?;
            make_directories(parent, mode)?;
            make_directory(CWD, path, mode)?;
            Ok(())
        }
        // The directory exists, so it does not matter why it cannot be created.
        Err(_) if path.is_dir() => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Creates a directory with this mode, and returns whether it is new.
fn make_directory(parent: impl AsFd, name: &Path, mode: Mode) -> Result<bool, Errno> {
    match mkdirat(&parent, name, mode) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    if umask().intersects(mode) {
        chmodat(&parent, name, mode, AtFlags::empty())?;
    }
    Ok(true)
}

/// The process's umask as of the first call; [`UNKNOWN`] before. It is cached because reading it takes system calls.
static UMASK: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = u32::MAX;
/// A umask that removes all permissions: every mode is set explicitly.
const ALL_PERMISSIONS: u32 = 0o777;

fn umask() -> Mode {
    let known = UMASK.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return Mode::from_raw_mode(known);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let bits = digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
    let bits = bits.unwrap_or(ALL_PERMISSIONS);
    UMASK.store(bits, Ordering::Relaxed);
    Mode::from_raw_mode(bits)
}

fn absent_is_fine(outcome: Result<(), Errno>) -> io::Result<()> {
    match outcome {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
