//! The file system calls of journals and CDI specs, through which tests make any of them fail or be the last one ([`Files`]).
//!
//! A name is a single entry of a directory, and a symbolic link at that name is never followed.

#[cfg(feature = "faults")]
pub mod faults;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// The limit for a file that is read; those of a claim have a few kilobytes.
const MAX_SIZE: u64 = 4 * 1024 * 1024;

/// File system operations. Each method makes one change at most.
pub trait Files: Send + Sync + fmt::Debug {
    /// Makes a directory and those above it.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// Reads a regular file. `None` if there is nothing of that name.
    fn read(&self, directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Creates a file with this content. Whatever has that name is removed before.
    fn create(&self, directory: &Path, name: &str, content: &[u8], mode: u32) -> io::Result<()>;
    /// Renames an entry, and replaces what has the new name.
    fn rename(&self, directory: &Path, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file or a link. A missing one is not an error.
    fn remove(&self, directory: &Path, name: &str) -> io::Result<()>;
    /// Returns the names of all entries in lexical order. A missing directory has none.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn read(&self, directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
        let directory = open_directory(directory)?;
        // Not blocking: a FIFO in its place must not stop the driver.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&directory, single(name)?, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(io::Error::other("is a symbolic link, which is not followed")),
            Err(errno) => return Err(errno.into()),
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("is not a regular file"));
        }
        let mut content = Vec::new();
        let length = file.take(MAX_SIZE + 1).read_to_end(&mut content)?;
        if length as u64 > MAX_SIZE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(Some(content)) }
    }

    fn create(&self, directory: &Path, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let directory = open_directory(directory)?;
        let name = single(name)?;
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let mut file = File::from(openat(&directory, name, flags, mode)?);
        // The umask may have removed permissions that a runtime needs.
        fchmod(&file, mode)?;
        file.write_all(content)
    }

    fn rename(&self, directory: &Path, from: &str, to: &str) -> io::Result<()> {
        let directory = open_directory(directory)?;
        Ok(renameat(&directory, single(from)?, &directory, single(to)?)?)
    }

    fn remove(&self, directory: &Path, name: &str) -> io::Result<()> {
        let directory = match open_directory(directory) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        match unlinkat(&directory, single(name)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Writes a file in one step: readers see the old content or the new.
///
/// Nothing is synced to disk. After a power loss the file may be empty or old; its readers detect that.
pub fn write_atomically(files: &dyn Files, directory: &Path, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary_name(name);
    files.create(directory, &temporary, content, mode)?;
    files.rename(directory, &temporary, name).inspect_err(|_| {
        // The error of the rename is the one to report.
        let _ = files.remove(directory, &temporary);
    })
}

/// Returns the name of a file while it is written. Container runtimes do not look at it.
pub fn temporary_name(name: &str) -> String {
    format!(".{name}.tmp")
}

fn open_directory(path: &Path) -> io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn single(name: &str) -> io::Result<&str> {
    let is_single = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if is_single { Ok(name) } else { Err(io::ErrorKind::InvalidFilename.into()) }
}
