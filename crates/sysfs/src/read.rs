//! Reading sysfs: directories by descriptor, files of a limited size, and what goes wrong as problems of a device.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::{Problem, Sysfs};

/// The limit for a file. Those of sysfs have 4 KiB at most.
const MAX_FILE: usize = 64 * 1024;
/// What one call reads. A file of sysfs is smaller, so a second call is not needed to see that it ends.
const READ: usize = 4097;

/// A directory that files are opened relative to, so that the kernel does not walk the whole path for each of them.
#[derive(Debug)]
pub(crate) struct Dir<'a> {
    sysfs: &'a Sysfs,
    fd: OwnedFd,
    path: PathBuf,
}

impl<'a> Dir<'a> {
    /// Opens a directory. `None` if there is none.
    pub(crate) fn open(sysfs: &'a Sysfs, path: PathBuf) -> io::Result<Option<Self>> {
        sysfs.count_open();
        let fd = present(rustix::fs::openat(CWD, &path, directory(), Mode::empty()))?;
        Ok(fd.map(|fd| Self { sysfs, fd, path }))
    }

    /// Opens a directory below this one. `None` if there is none.
    pub(crate) fn dir(&self, name: &str) -> io::Result<Option<Self>> {
        self.sysfs.count_open();
        let fd = present(rustix::fs::openat(&self.fd, name, directory(), Mode::empty()))?;
        Ok(fd.map(|fd| Self { sysfs: self.sysfs, fd, path: self.path.join(name) }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all entries, in the kernel's order.
    pub(crate) fn names(&self) -> io::Result<Vec<Result<String, Problem>>> {
        let mut names = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(std::str::from_utf8(name).map(str::to_owned).map_err(|error| Problem {
                    path: self.path.join(OsStr::from_bytes(name)),
                    message: format!("the name is not text: {error}"),
                }));
            }
        }
        Ok(names)
    }

    /// Reads at most 64 KiB of a file. `None` if there is no such file.
    pub(crate) fn bytes(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.bytes_up_to(name, MAX_FILE)
    }

    /// Reads the beginning of a file.
    pub(crate) fn beginning(&self, name: &str, length: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let mut bytes = vec![0; length];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes))?;
        bytes.truncate(read);
        Ok(Some(bytes))
    }

    fn bytes_up_to(&self, name: &str, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let mut buffer = [0; READ];
        let mut bytes = Vec::new();
        loop {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
            bytes.extend_from_slice(&buffer[..read]);
            if bytes.len() > limit {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("has more than {limit} bytes")));
            }
            if read < READ {
                return Ok(Some(bytes));
            }
        }
    }

    fn file(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        self.sysfs.count_open();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        present(rustix::fs::openat(&self.fd, name, flags, Mode::empty()))
    }

    /// Returns whether there is such an entry.
    pub(crate) fn exists(&self, name: &str) -> bool {
        rustix::fs::accessat(&self.fd, name, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty()).is_ok()
    }

    /// Returns the target of a link as it stands. `None` if there is no such link.
    pub(crate) fn target(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let target = present(rustix::fs::readlinkat(&self.fd, name, Vec::with_capacity(256)))?;
        Ok(target.map(|target| PathBuf::from(OsStr::from_bytes(target.as_bytes()))))
    }

    /// Returns the path of a link's target below sysfs, such as `devices/pci0000:00/0000:00:02.0`, without access to the
    /// files on the way. `None` if there is no such link.
    pub(crate) fn target_below_sys(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let Some(target) = self.target(name)? else { return Ok(None) };
        let sys = &self.sysfs.roots().sys;
        let absolute = resolve(&self.path, &target);
        match absolute.strip_prefix(sys) {
            Ok(relative) => Ok(Some(relative.to_owned())),
            Err(_) => Err(io::Error::other(format!("points to {}, out of {}", absolute.display(), sys.display()))),
        }
    }
}

/// Resolves the target of a link lexically, without access to the file system, so that a test's tree can be anywhere.
pub(crate) fn resolve(directory: &Path, target: &Path) -> PathBuf {
    let mut path = directory.to_owned();
    for component in target.components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            component => path.push(component),
        }
    }
    path
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Tells what is not there from what cannot be read. A device that is removed meanwhile is not there.
fn present<T>(result: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The files of one device, with what is wrong with them.
pub(crate) struct Fields<'a> {
    pub(crate) dir: &'a Dir<'a>,
    pub(crate) problems: Vec<Problem>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(dir: &'a Dir<'a>) -> Self {
        Self { dir, problems: Vec::new() }
    }

    pub(crate) fn problem(&mut self, name: &str, message: impl Into<String>) {
        self.problems.push(Problem { path: self.dir.path().join(name), message: message.into() });
    }

    /// Takes a value, or records why there is none.
    pub(crate) fn take<T>(&mut self, name: &str, result: io::Result<Option<T>>) -> Option<T> {
        match result {
            Ok(value) => value,
            Err(error) => {
                self.problem(name, error.to_string());
                None
            }
        }
    }

    /// Returns the trimmed text of a file, if it exists.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let bytes = self.dir.bytes(name);
        let bytes = self.take(name, bytes)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) => {
                self.problem(name, format!("is not text: {error}"));
                None
            }
        }
    }

    /// Returns the text of a file that every device has.
    fn required(&mut self, name: &str) -> Option<String> {
        let before = self.problems.len();
        let text = self.text(name);
        if text.is_none() && self.problems.len() == before {
            self.problem(name, "there is no such file");
        }
        text
    }

    /// Returns the number in a file such as `0x8086` that every device has, or 0.
    pub(crate) fn hex(&mut self, name: &str, max: u32) -> u32 {
        let Some(text) = self.required(name) else { return 0 };
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u32::from_str_radix(digits, 16) {
            Ok(number) if is_number && number <= max => number,
            _ => {
                self.problem(name, format!("{text:?} is not a hexadecimal number of at most {max:#x}"));
                0
            }
        }
    }

    /// Returns the decimal number in a file, if it exists.
    pub(crate) fn number<T: FromStr>(&mut self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.problem(name, format!("{text:?} is not a number in range"));
        }
        number
    }

    /// Returns the last component of a link's target, if it exists.
    pub(crate) fn link(&mut self, name: &str) -> Option<String> {
        let target = self.dir.target(name);
        let target = self.take(name, target)?;
        let last = target.file_name().and_then(OsStr::to_str).map(str::to_owned);
        if last.is_none() {
            self.problem(name, format!("points to {}, which has no name", target.display()));
        }
        last
    }

    /// Returns the last component of a link's target as a value, if it exists.
    pub(crate) fn link_to<T: FromStr>(&mut self, name: &str, expected: &str) -> Option<T> {
        let last = self.link(name)?;
        let value = last.parse().ok();
        if value.is_none() {
            self.problem(name, format!("points to {last:?}, which is not {expected}"));
        }
        value
    }

    /// Returns the name of the VFIO character device, if it has a device node: the directory exists also in kernels without
    /// these nodes, and only `dev` shows that there is one.
    pub(crate) fn vfio_cdev(&mut self) -> Option<String> {
        let dir = self.dir.dir("vfio-dev");
        let dir = self.take("vfio-dev", dir)?;
        let names = dir.names().map(Some);
        let names = self.take("vfio-dev", names)?;
        let names = names.into_iter().filter_map(Result::ok).filter(|name| name.starts_with("vfio"));
        names.into_iter().find(|name| dir.exists(&format!("{name}/dev")))
    }
}
