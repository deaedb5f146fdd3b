//! Which registration sockets there are: a watch of the registry directory, as a kubelet has it.
//!
//! Only that a name appears and that a name is removed counts. A rename into place is an appearance; a rename away is
//! nothing, so what was renamed away stays. Every appearance is a new version of the socket, told by a number.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Which appearance of a socket is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Version(u64);

/// The sockets that are to be registered. A clone is the same list.
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

    fn appeared(&self, path: PathBuf) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.last += 1;
        let version = Version(state.last);
        state.sockets.insert(path, version);
    }

    fn removed(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sockets.remove(path);
    }
}

/// The watch. It keeps [`Sockets`] up to date for as long as [`run`](Self::run) is polled.
#[derive(Debug)]
pub(super) struct Watcher {
    inotify: AsyncFd<OwnedFd>,
    directories: HashMap<i32, PathBuf>,
    sockets: Sockets,
}

impl Watcher {
    /// Watches a directory, which is created if it is missing, and finds what is there already.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        create_directory(directory)?;
        #[allow(deprecated, reason = "unsound for types whose descriptor changes, which an OwnedFd's does not")]
        let inotify = AsyncFd::new(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?)?;
        let mut watcher = Self { inotify, directories: HashMap::new(), sockets: Sockets::default() };
        watcher.traverse(directory)?;
        Ok(watcher)
    }

    pub(super) fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// Follows what happens, until the watch itself breaks.
    pub(super) async fn run(mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let events = match pending(ready.get_inner()) {
                Ok(events) => events,
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            drop(ready);
            for event in events {
                self.handle(&event);
            }
        }
    }

    fn handle(&mut self, event: &Seen) {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            tracing::error!("registry: events were lost: sockets that were created just now may not be seen");
        }
        if event.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&event.watch);
        }
        let (Some(directory), Some(name)) = (self.directories.get(&event.watch), &event.name) else { return };
        let path = directory.join(std::ffi::OsStr::from_bytes(name));
        if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.created(&path);
        } else if event.flags.contains(ReadFlags::DELETE) {
            self.sockets.removed(&path);
        }
    }

    fn created(&mut self, path: &Path) {
        if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) {
            return;
        }
        let kind = match std::fs::metadata(path) {
            Ok(metadata) => metadata.file_type(),
            // Gone again before anybody could look.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "registry: cannot look at a new file");
                return;
            }
        };
        if kind.is_socket() {
            self.sockets.appeared(path.to_owned());
        } else if kind.is_dir()
            && let Err(error) = self.traverse(path)
        {
            tracing::error!(path = %path.display(), %error, "registry: cannot watch a new directory");
        }
    }

    /// Watches a directory and all below it, and takes the sockets in them as created.
    fn traverse(&mut self, directory: &Path) -> io::Result<()> {
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(self.inotify.get_ref(), directory, wanted)?;
        self.directories.insert(watch, directory.to_owned());
        let mut entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if let Err(error) = self.traverse(&path) {
                    tracing::error!(path = %path.display(), %error, "registry: cannot watch a directory");
                }
            } else if std::fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
                self.created(&path);
            }
        }
        Ok(())
    }
}

/// Makes a directory of the kubelet, readable by all.
pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o755).create(directory)
}

/// An event, out of the buffer that it came in.
#[derive(Debug)]
struct Seen {
    watch: i32,
    flags: ReadFlags,
    name: Option<Vec<u8>>,
}

/// All events that are there. An error if there is none.
fn pending(inotify: &OwnedFd) -> Result<Vec<Seen>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) if !events.is_empty() => return Ok(events),
            Err(error) => return Err(error),
        };
        let name = event.file_name().map(|name| name.to_bytes().to_vec());
        events.push(Seen { watch: event.wd(), flags: event.events(), name });
    }
}

#[cfg(test)]
mod tests;
