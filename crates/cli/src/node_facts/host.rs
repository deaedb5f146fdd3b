//! Access to the files of a host, whose names and contents may be hostile.
//!
//! - Configured paths are resolved below the host's root: a symbolic link on the way never leads out of it.
//! - Below a directory that is opened here, no symbolic link is followed at all.
//! - Only regular files are read, and up to a limit; opening never blocks.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatVfs, StatxFlags, fstatvfs, openat, openat2, statx,
};

/// The largest number of entries that are looked at in a directory.
const MAX_ENTRIES: usize = 20_000;

/// The root of a host's file system.
#[derive(Debug)]
pub(crate) struct Host {
    root: OwnedFd,
}

/// An open directory, with its path on the host.
#[derive(Debug)]
pub(crate) struct Directory {
    handle: OwnedFd,
    path: PathBuf,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) status: Status,
}

/// What the file system says about a file.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) kind: FileType,
    /// The permission bits.
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) modified: SystemTime,
    /// Not every file system knows it.
    pub(crate) created: Option<SystemTime>,
}

impl Status {
    pub(crate) fn is_world_writable(&self) -> bool {
        self.mode & 0o002 != 0 && self.kind != FileType::Symlink
    }

    /// Returns the kind in words.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            FileType::RegularFile => "a file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a symbolic link",
            FileType::Socket => "a socket",
            FileType::Fifo => "a pipe",
            _ => "a device",
        }
    }
}

impl Host {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: openat(CWD, root, flags, Mode::empty())? })
    }

    /// Opens a directory by its path on the host.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<Directory> {
        let handle = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        Ok(Directory { handle, path: path.to_owned() })
    }

    /// Reads a regular file by its path on the host.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_regular(self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?, limit)
    }

    /// Returns a path by which this process connects to a socket of the host, with the handle that keeps it valid.
    pub(crate) fn socket(&self, path: &Path) -> io::Result<(PathBuf, OwnedFd)> {
        let handle = self.resolve(path, OFlags::PATH)?;
        Ok((through(&handle), handle))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }
}

impl Directory {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path by which this process sees the directory, while it is open.
    pub(crate) fn through(&self) -> PathBuf {
        through(&self.handle)
    }

    /// Returns the entries by name. Names that are not Unicode are left out: no driver writes such files.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == MAX_ENTRIES {
                return Err(io::Error::other(format!("more than {MAX_ENTRIES} entries")));
            }
            // A file that is gone in the meantime is not listed.
            if let Ok(status) = self.status_of(name) {
                entries.push(Entry { name: name.to_owned(), status });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        self.stat("", AtFlags::EMPTY_PATH)
    }

    /// Returns the status of an entry; of a link, not of its target.
    pub(crate) fn status_of(&self, name: &str) -> io::Result<Status> {
        self.stat(single(name)?, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn stat(&self, name: &str, flags: AtFlags) -> io::Result<Status> {
        let found = statx(&self.handle, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let mode = u32::from(found.stx_mode);
        let time = |seconds: i64, nanos: u32| {
            let since = Duration::new(u64::try_from(seconds).unwrap_or_default(), nanos);
            SystemTime::UNIX_EPOCH + since
        };
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Status {
            kind: FileType::from_raw_mode(mode),
            mode: mode & 0o7777,
            owner: found.stx_uid,
            modified: time(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            created: has_birth.then(|| time(found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        })
    }

    /// Opens a directory in this one; a link is an error.
    pub(crate) fn open(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let handle = openat(&self.handle, single(name)?, flags, Mode::empty())?;
        Ok(Self { handle, path: self.path.join(name) })
    }

    /// Reads a regular file in this directory; a link is an error.
    pub(crate) fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        read_regular(openat(&self.handle, single(name)?, flags, Mode::empty())?, limit)
    }

    /// Returns a path by which this process connects to a socket in this directory, with the handle that keeps it valid.
    pub(crate) fn socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(&self.handle, single(name)?, flags, Mode::empty())?;
        Ok((through(&handle), handle))
    }

    /// Returns the space and the inodes of the file system.
    pub(crate) fn space(&self) -> io::Result<StatVfs> {
        Ok(fstatvfs(&self.handle)?)
    }
}

/// The path of an open file in `/proc`, which is also short enough for a socket's address.
fn through(handle: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// Checks that a name is a single entry of a directory.
fn single(name: &str) -> io::Result<&str> {
    let is_single = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if is_single { Ok(name) } else { Err(io::ErrorKind::InvalidFilename.into()) }
}

fn read_regular(handle: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::from(handle);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_leads_out_of_the_root_and_none_below_a_directory_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        std::fs::create_dir_all(root.path().join("run/cdi")).unwrap();
        std::fs::create_dir(root.path().join("var")).unwrap();
        symlink("/run", root.path().join("var/run")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("run/cdi/link.json")).unwrap();
        std::fs::write(root.path().join("run/cdi/file.json"), "0123456789").unwrap();

        let host = Host::open(root.path()).unwrap();
        let cdi = host.directory(Path::new("/var/run/cdi")).unwrap();
        assert_eq!(cdi.path(), Path::new("/var/run/cdi"), "paths are those on the host");
        assert_eq!(cdi.read("file.json", 10).unwrap(), b"0123456789");
        assert_eq!(cdi.read("file.json", 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        cdi.read("link.json", 10).unwrap_err();
        cdi.read("../../run/cdi/file.json", 10).unwrap_err();
        host.directory(Path::new("/out")).unwrap_err();
        host.read(Path::new("/out/secret"), 10).unwrap_err();
        let kinds: Vec<&str> = cdi.entries().unwrap().iter().map(|entry| entry.status.kind_name()).collect();
        assert_eq!(kinds, ["a file", "a symbolic link"]);
    }
}
