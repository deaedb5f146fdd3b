//! The registration sockets: a watch of the plugin registry, as a kubelet has it.
//!
//! Only the creation and the removal of a name count. A rename into the registry is a creation; a rename out of it is
//! ignored, so the socket stays known. Every creation is a new version of the socket.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{ReadFlags, WatchFlags};

use crate::inotify::{Event, Subscription, WatchId, subscribe};

/// A version of a socket: each creation has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Version(u64);

/// The sockets to register. Clones share the list.
#[derive(Debug, Clone, Default)]
pub(super) struct Sockets(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    sockets: HashMap<PathBuf, Version>,
    last: u64,
}

impl Sockets {
    pub(super) fn snapshot(&self) -> HashMap<PathBuf, Version> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sockets.clone()
    }

    fn created(&self, path: PathBuf) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.last += 1;
        let version = Version(state.last);
        state.sockets.insert(path, version);
    }

    fn removed(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sockets.remove(path);
    }
}

/// Watches the registry. Keeps [`Sockets`] up to date for as long as [`run`](Self::run) is polled.
#[derive(Debug)]
pub(super) struct Watcher {
    events: Subscription,
    directories: HashMap<WatchId, PathBuf>,
    sockets: Sockets,
}

impl Watcher {
    /// Watches a directory, creating it if necessary, and finds the sockets in it.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        create_directory(directory)?;
        let mut watcher = Self { events: subscribe()?, directories: HashMap::new(), sockets: Sockets::default() };
        watcher.traverse(directory)?;
        Ok(watcher)
    }

    pub(super) fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Handles events until the watch fails.
    pub(super) async fn run(mut self) -> io::Result<()> {
        loop {
            for event in self.events.next().await? {
                self.handle(&event);
            }
        }
    }

    fn handle(&mut self, event: &Event) {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            tracing::error!("kubelet: registry events were lost, new sockets may be missed");
        }
        let Some(watch) = event.watch else { return };
        if event.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&watch);
        }
        let (Some(directory), Some(name)) = (self.directories.get(&watch), &event.name) else { return };
        let path = directory.join(std::ffi::OsStr::from_bytes(name));
        if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.handle_created(&path);
        } else if event.flags.contains(ReadFlags::DELETE) {
            self.sockets.removed(&path);
        }
    }

    fn handle_created(&mut self, path: &Path) {
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) {
            return;
        }
        let kind = match std::fs::metadata(path) {
            Ok(metadata) => metadata.file_type(),
            // Removed again since the event.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "kubelet: reading the type of a new registry file failed");
                return;
            }
        };
        if kind.is_socket() {
            self.sockets.created(path.to_owned());
        } else if kind.is_dir()
            && let Err(error) = self.traverse(path)
        {
            tracing::error!(path = %path.display(), %error, "kubelet: watching a new registry directory failed");
        }
    }

    /// Watches a directory and everything below it, and handles the sockets in it as created.
    fn traverse(&mut self, directory: &Path) -> io::Result<()> {
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watch = self.events.watch(directory, flags)?;
        self.directories.insert(watch, directory.to_owned());
        let mut entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if let Err(error) = self.traverse(&path) {
                    tracing::error!(path = %path.display(), %error, "kubelet: watching a registry directory failed");
                }
            } else if std::fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
                self.handle_created(&path);
            }
        }
        Ok(())
    }
}

/// Creates a directory of the kubelet, readable by all.
pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o755).create(directory)
}

#[cfg(test)]
mod tests;
