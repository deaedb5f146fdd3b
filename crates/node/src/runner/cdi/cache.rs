//! The specs as container runtimes know them, which is not always what is in the directories.
//!
//! containerd and CRI-O read the directories when they start, and again when inotify reports some changes, though not all.
//! A driver must not rely on a change that runtimes do not notice, so it is not noticed here either.
//!
//! | change | noticed |
//! |---|---|
//! | a file is renamed within the directory, moved out of it, or removed | yes |
//! | a `.json` or `.yaml` file is written to | yes |
//! | a directory appears | yes, at the next container |
//! | a file is moved in from another directory, or linked | **no** |
//! | an empty file is created | no |
//!
//! A noticed change rereads everything, so an unnoticed one is found with the next change of anything.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{ReadFlags, WatchFlags};

use super::{Edits, InjectError, SpecProblem, Specs, scan};
use crate::inotify::{Subscription, WatchId, subscribe};

/// The spec directories as a runtime knows them.
#[derive(Debug)]
pub struct Cache {
    directories: Vec<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// `None` if inotify is not available: then the directories are read every time.
    events: Option<Subscription>,
    /// The watch of each directory that exists.
    watches: Vec<Option<Watched>>,
    specs: Arc<Specs>,
}

/// A watched directory.
#[derive(Debug, Clone, Copy)]
struct Watched {
    id: WatchId,
    identity: Identity,
}

/// Device and inode, which distinguish a directory from another of the same name.
type Identity = (u64, u64);

impl Cache {
    /// Reads the directories; later ones have priority. Blocks.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        let events = subscribe();
        if let Err(error) = &events {
            tracing::warn!(%error, "watching CDI directories failed, reading them for every container");
        }
        let watches = vec![None; directories.len()];
        let mut known = Known { events: events.ok(), watches, specs: Arc::default() };
        known.watch(&directories);
        known.read(&directories);
        Self { directories, known: Mutex::new(known) }
    }

    /// Returns all specs that a runtime knows now. Blocks.
    pub fn specs(&self) -> Arc<Specs> {
        // Nothing panics while it is locked.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Both calls are needed, whatever the first returns.
        let changed = known.has_changed();
        if known.watch(&self.directories) || changed || known.events.is_none() {
            known.read(&self.directories);
        }
        Arc::clone(&known.specs)
    }

    /// Applies devices to a container's edits like [`Specs::inject`], with the specs that a runtime knows. The error points out
    /// devices in files that runtimes have not noticed. Blocks.
    pub fn inject(&self, devices: &[String], edits: &mut Edits) -> Result<(), InjectError> {
        let mut result = self.specs().inject(devices, edits);
        if let Err(InjectError::Unresolvable { devices, problems }) = &mut result {
            let current = scan(&self.directories);
            let unnoticed = devices.iter().filter_map(|name| Some((name, current.device(name)?.0)));
            problems.extend(unnoticed.map(|(name, file)| SpecProblem {
                path: file.path.clone(),
                problem: format!(
                        "has {name}, but was added in a way that container runtimes do not notice: write a temporary file in the \
                         same directory and rename it"
                ),
            }));
        }
        result
    }
}

impl Known {
    fn read(&mut self, directories: &[PathBuf]) {
        let specs = scan(directories);
        for problem in specs.problems() {
            tracing::warn!(%problem, "invalid CDI spec");
        }
        self.specs = Arc::new(specs);
    }

    /// Watches directories that are not watched yet; returns whether a watch was added.
    fn watch(&mut self, directories: &[PathBuf]) -> bool {
        let Some(events) = &self.events else { return false };
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF;
        let mut new = false;
        for (directory, watch) in directories.iter().zip(&mut self.watches) {
            // A missing directory is tried again at the next container.
            let identity = fs::metadata(directory).ok().map(|found| (found.dev(), found.ino()));
            // The identity is compared, because the kernel does not report the removal of a directory while any process has
            // it open, for example a child that was just forked.
            let is_watched = watch.is_some_and(|watched| Some(watched.identity) == identity);
            if !is_watched && let Some(identity) = identity {
                *watch = events.watch(directory, flags).ok().map(|id| Watched { id, identity });
                new |= watch.is_some();
            }
        }
        new
    }

    /// Reads the events; returns whether a runtime would read the directories again.
    fn has_changed(&mut self) -> bool {
        let Some(events) = &self.events else { return true };
        let events = match events.drain() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "reading changes of CDI directories failed");
                return true;
            }
        };
        let mut changed = false;
        for event in events {
            let gone = ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF | ReadFlags::DELETE | ReadFlags::DELETE_SELF;
            let name = event.name.as_deref().unwrap_or_default();
            let spec = name.ends_with(b".json") || name.ends_with(b".yaml");
            changed |= event.flags.intersects(gone | ReadFlags::QUEUE_OVERFLOW);
            changed |= event.flags.contains(ReadFlags::MODIFY) && spec;
            if event.flags.contains(ReadFlags::IGNORED) {
                // The directory is gone; one that replaces it needs a new watch.
                let is_of = |watch: &Option<Watched>| watch.map(|watched| watched.id) == event.watch;
                let watches = self.watches.iter_mut().filter(|watch| is_of(watch));
                watches.for_each(|watch| *watch = None);
            }
        }
        changed
    }
}
