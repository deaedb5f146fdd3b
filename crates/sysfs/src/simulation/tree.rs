//! Files below the directory of a simulation.
//!
//! Everything appears and disappears in one step, as in the kernel: it is made in a directory of its own and renamed to its
//! place. A reader never sees an empty attribute or half of a device.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::device_lock::{is_fifo, kept, open_fifo};

/// The directory of a simulation, with `sys`, `dev` and `proc`. Paths are relative to it.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    staged: AtomicU64,
}

/// Where things are made.
const STAGING: &str = ".staging";

impl Tree {
    /// Opens a directory, which is made if there is none.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root.join(STAGING))?;
        Ok(Self { root: root.canonicalize()?, staged: AtomicU64::new(0) })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// Resolves all links of an absolute path, and returns it relative to the tree. A path that leads out of it is refused.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let resolved = path.canonicalize()?;
        resolved.strip_prefix(&self.root).map(Path::to_owned).map_err(|_outside| io::ErrorKind::PermissionDenied.into())
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// Reads an attribute without its newline.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.content(path.as_ref()))?.trim_end_matches('\n').to_owned())
    }

    /// Returns where the content of a file is: elsewhere while a write that hangs has the device's lock.
    fn content(&self, path: &Path) -> PathBuf {
        let own = self.path(path);
        if is_fifo(&own) { kept(self, path) } else { own }
    }

    /// Replaces a file by a FIFO, and opens it.
    pub(super) fn make_fifo(&self, path: &Path) -> io::Result<fs::File> {
        let staged = self.staged();
        rustix::fs::mknodat(rustix::fs::CWD, &staged, rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
        let fifo = open_fifo(&staged)?;
        self.place(&staged, path)?;
        Ok(fifo)
    }

    /// Returns the last component of a link's target.
    pub(super) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the names in a directory in lexical order, or none if there is no directory.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Makes a directory and those above it.
    pub(super) fn make(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::create_dir_all(self.path(path))
    }

    /// Sets the content of a file.
    pub(super) fn set(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        let staged = self.staged();
        fs::write(&staged, content)?;
        self.place(&staged, &self.content(path.as_ref()))
    }

    /// Makes or replaces a link to another path of the tree, relative as the kernel's are.
    pub(super) fn link(&self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let from: Vec<Component<'_>> = path.parent().unwrap_or(Path::new("")).components().collect();
        let to: Vec<Component<'_>> = target.as_ref().components().collect();
        let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        let mut relative: PathBuf = from[shared..].iter().map(|_| "..").collect();
        relative.extend(&to[shared..]);
        self.raw_link(path, &relative)
    }

    /// Makes or replaces a link with this target.
    pub(super) fn raw_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let staged = self.staged();
        symlink(target, &staged)?;
        self.place(&staged, path)
    }

    /// Removes a file, a link, or a directory with all that is in it. What is missing is not an error.
    pub(super) fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = self.path(path);
        match path.symlink_metadata() {
            Ok(status) if status.is_dir() => {
                let staged = self.staged();
                fs::rename(&path, &staged)?;
                fs::remove_dir_all(&staged)
            }
            Ok(_) => fs::remove_file(&path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory with files, which appears with all of them.
    pub(super) fn make_with(&self, path: impl AsRef<Path>, files: &[(String, Vec<u8>)]) -> io::Result<()> {
        let staged = self.staged();
        fs::create_dir_all(&staged)?;
        for (name, content) in files {
            fs::write(staged.join(name), content)?;
        }
        self.place(&staged, path.as_ref())
    }

    fn place(&self, staged: &Path, path: &Path) -> io::Result<()> {
        let path = self.path(path);
        if let Some(parent) = path.parent()
            && !parent.is_dir()
        {
            fs::create_dir_all(parent)?;
        }
        fs::rename(staged, path)
    }

    fn staged(&self) -> PathBuf {
        // Another process may have the same tree open.
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        self.root.join(STAGING).join(format!("{}-{number}", std::process::id()))
    }
}
