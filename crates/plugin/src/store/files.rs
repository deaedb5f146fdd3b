//! The interface between the store and the file system, through which tests make any call fail or be the last one.
//!
//! Every call takes an open directory and the name of one entry in it, and does not follow a symbolic link at that name. A name
//! is checked to be a single entry: no name from the API can reach another directory, and no link that is planted in our
//! directories is followed out of them.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, fchmod, fstat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

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

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

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
        Ok(Directory(openat(CWD, path, flags, Mode::empty())?))
    }

    fn make_root(&self, path: &Path) -> io::Result<()> {
        make_directories(path, DIRECTORY_MODE)
    }

    fn open_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Directory(openat(&parent.0, name.0, flags, Mode::empty())?))
    }

    fn make_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool> {
        Ok(make_directory(&parent.0, name.0.as_ref(), DIRECTORY_MODE)?)
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
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&parent.0, name.0, flags, FILE_MODE)?;
        // The umask may have removed permissions that containers need. Reading the mode is much cheaper than setting it.
        if Mode::from_raw_mode(fstat(&file)?.st_mode) != FILE_MODE {
            fchmod(&file, FILE_MODE)?;
        }
        Ok(File::from(file))
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
        Ok(renameat(&parent.0, from.0, &parent.0, to.0)?)
    }

    fn remove_file(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        absent_is_fine(unlinkat(&parent.0, name.0, AtFlags::empty()))
    }

    fn remove_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        absent_is_fine(unlinkat(&parent.0, name.0, AtFlags::REMOVEDIR))
    }

    fn list(&self, directory: &Directory) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory.0.as_fd())? {
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
        match statat(&parent.0, name.0, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Opens a regular file, and returns it with its size. Refuses anything else: opening a pipe or a device may block or have side
/// effects.
fn open_file(parent: &Directory, name: Entry<'_>, access: OFlags) -> io::Result<(File, i64)> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&parent.0, name.0, flags, Mode::empty())?;
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

/// Returns the process's umask as of the first call. It is cached because reading it takes a system call.
fn umask() -> Mode {
    static UMASK: OnceLock<Mode> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let bits = digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok());
        // If it cannot be read, assume that it removes all permissions.
        bits.map_or(Mode::RWXU | Mode::RWXG | Mode::RWXO, Mode::from_raw_mode)
    })
}

fn absent_is_fine(outcome: Result<(), Errno>) -> io::Result<()> {
    match outcome {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
