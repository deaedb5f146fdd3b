//! A process that dies after a number of steps, for tests of journals: whatever it has written until then is what the next one finds.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Files, SystemFiles};

/// The error of the step at which a process dies.
pub const DYING: &str = "the driver dies";

/// The steps that a process has left. Everything that it changes, in files or elsewhere, is a [`Life::step`].
#[derive(Debug)]
pub struct Life {
    left: AtomicU64,
    used: AtomicU64,
    is_dead: AtomicBool,
}

impl Life {
    /// Returns a life of this many steps.
    pub fn of(steps: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(steps), used: AtomicU64::new(0), is_dead: AtomicBool::new(false) })
    }

    /// Returns a life without end.
    pub fn endless() -> Arc<Self> {
        Self::of(u64::MAX)
    }

    /// Returns the number of steps that were made.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Returns whether the process has tried to make a step after its last.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Makes a step, or fails: the first time with [`DYING`].
    pub fn step(&self) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => {
                self.used.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            Err(_) => {
                let was_dead = self.is_dead.swap(true, Ordering::SeqCst);
                Err(io::Error::other(if was_dead { "the driver is dead" } else { DYING }))
            }
        }
    }
}

/// The file system of a process with a limited life. Every change is a step; the last may leave half a file.
#[derive(Debug)]
pub struct MortalFiles {
    life: Arc<Life>,
}

impl MortalFiles {
    /// Returns the file system of a life.
    pub fn new(life: Arc<Life>) -> Self {
        Self { life }
    }
}

impl Files for MortalFiles {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        SystemFiles.make_directory(path)
    }

    fn read(&self, directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
        SystemFiles.read(directory, name)
    }

    fn create(&self, directory: &Path, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        self.life.step().inspect_err(|error| {
            // It dies while it writes: half of the content is there.
            if error.to_string() == DYING {
                drop(SystemFiles.create(directory, name, &content[..content.len() / 2], mode));
            }
        })?;
        SystemFiles.create(directory, name, content, mode)
    }

    fn rename(&self, directory: &Path, from: &str, to: &str) -> io::Result<()> {
        self.life.step()?;
        SystemFiles.rename(directory, from, to)
    }

    fn remove(&self, directory: &Path, name: &str) -> io::Result<()> {
        // What is not there is not removed: no step.
        if directory.join(name).symlink_metadata().is_err() {
            return Ok(());
        }
        self.life.step()?;
        SystemFiles.remove(directory, name)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(directory)
    }
}
