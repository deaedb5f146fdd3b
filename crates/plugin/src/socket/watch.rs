//! An inotify watch of directories for tests, like the kubelet's watch of its registry.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A watch of directories that returns all events in order.
pub(crate) struct DirectoryWatch(OwnedFd);

impl DirectoryWatch {
    pub(crate) fn new(directories: &[&Path]) -> Self {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        for directory in directories {
            inotify::add_watch(&watch, *directory, WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::DELETE).unwrap();
        }
        Self(watch)
    }

    /// Returns the events since the last call: `create`, `delete`, `move-from` or `move-to`, and the name. Staged sockets
    /// are called `.staged`.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut events = vec![];
        loop {
            let event = match reader.next() {
                Err(Errno::AGAIN) => return events,
                event => event.unwrap(),
            };
            let what = match event.events() {
                ReadFlags::CREATE => "create",
                ReadFlags::DELETE => "delete",
                ReadFlags::MOVED_FROM => "move-from",
                ReadFlags::MOVED_TO => "move-to",
                other => panic!("{other:?}"),
            };
            let name = event.file_name().unwrap().to_str().unwrap();
            let name = if name.starts_with('.') { ".staged" } else { name };
            events.push(format!("{what} {name}"));
        }
    }
}
