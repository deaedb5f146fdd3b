//! A test double of the file system that injects one fault.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::store::files::{Directory, Entry, Files, SystemFiles};
use crate::store::lock_budget::LockBudget;

/// A fault at the call with a given number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// The call fails with this error; all others work.
    Fail(usize, Errno),
    /// The call fails; a write is half done. All others work.
    FailHalf(usize, Errno),
    /// The call and the next one fail; a write is half done. All others work.
    FailTwice(usize, Errno),
    /// The process dies before the call.
    Die(usize),
    /// The process dies during the call; a write is half done.
    DieHalfWritten(usize),
}

/// The real file system, with one fault.
#[derive(Debug, Clone)]
pub(super) struct FaultyFiles {
    fault: Fault,
    calls: Arc<AtomicUsize>,
}

impl FaultyFiles {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, calls: Arc::default() }
    }

    /// Returns the number of calls so far.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn call<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::Fail(at, errno) | Fault::FailHalf(at, errno) if number == at => Err(errno.into()),
            Fault::FailTwice(at, errno) if number == at || number == at + 1 => Err(errno.into()),
            Fault::Die(at) | Fault::DieHalfWritten(at) if number >= at => Err(io::Error::other("the process is dead")),
            _ => work(),
        }
    }
}

impl Files for FaultyFiles {
    fn open_root(&self, path: &Path) -> io::Result<Directory> {
        self.call(|| SystemFiles.open_root(path))
    }
    fn make_root(&self, path: &Path) -> io::Result<()> {
        self.call(|| SystemFiles.make_root(path))
    }
    fn open_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Directory> {
        self.call(|| SystemFiles.open_directory(parent, name))
    }
    fn make_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool> {
        self.call(|| SystemFiles.make_directory(parent, name))
    }
    fn read(&self, parent: &Directory, name: Entry<'_>) -> io::Result<Vec<u8>> {
        self.call(|| SystemFiles.read(parent, name))
    }
    fn create(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File> {
        self.call(|| SystemFiles.create(parent, name))
    }
    fn check_mode(&self, file: &File) -> io::Result<()> {
        self.call(|| SystemFiles.check_mode(file))
    }
    fn open_for_update(&self, parent: &Directory, name: Entry<'_>) -> io::Result<File> {
        self.call(|| SystemFiles.open_for_update(parent, name))
    }
    fn lock(&self, file: &File, lock_budget: &LockBudget) -> io::Result<()> {
        self.call(|| SystemFiles.lock(file, lock_budget))
    }
    fn write(&self, file: &File, content: &[u8]) -> io::Result<()> {
        let half = match self.fault {
            Fault::DieHalfWritten(at) | Fault::FailTwice(at, _) | Fault::FailHalf(at, _) => self.calls() == at,
            Fault::Fail(..) | Fault::Die(_) => false,
        };
        if half {
            SystemFiles.write(file, &content[..content.len() / 2])?;
        }
        self.call(|| SystemFiles.write(file, content))
    }
    fn rename(&self, parent: &Directory, from: Entry<'_>, to: Entry<'_>) -> io::Result<()> {
        self.call(|| SystemFiles.rename(parent, from, to))
    }
    fn remove_file(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        self.call(|| SystemFiles.remove_file(parent, name))
    }
    fn remove_directory(&self, parent: &Directory, name: Entry<'_>) -> io::Result<()> {
        self.call(|| SystemFiles.remove_directory(parent, name))
    }
    fn list(&self, directory: &Directory) -> io::Result<Vec<String>> {
        self.call(|| SystemFiles.list(directory))
    }
    fn exists(&self, parent: &Directory, name: Entry<'_>) -> io::Result<bool> {
        self.call(|| SystemFiles.exists(parent, name))
    }
}
