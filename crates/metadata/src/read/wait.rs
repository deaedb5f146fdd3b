//! Waiting for metadata that is still to come.
//!
//! The order is: watch, look, sleep. A change after the look wakes the sleeper because the watch was there before the
//! look; a change before the look is seen by it. Watches are on the files themselves, because a file that is mounted
//! into a container gets no event through the directory it is mounted in, on the directories that hold them, and, on
//! the way there, on the deepest directory that exists.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, read};

use super::find::{Directories, is_metadata_file};
use super::query::{ClaimSelector, Query};
use super::root::ListError;
use super::snapshot::Patience;
use super::{ReadError, Reader, RequestMetadata};
use crate::path::KEP_DIR;

/// How often to look where the kernel gives no watch, because it has no more or none at all.
const UNWATCHED: Duration = Duration::from_millis(100);
/// How many things are watched. A user's watches are few, and shared with whoever else needs them.
const MAX_WATCHES: usize = 256;
/// How much of what happened is read at once; the rest is one more look.
const MAX_READS: usize = 64;

impl Reader {
    /// Waits until a request's metadata is there, whole, and `ready`; at most `timeout`.
    ///
    /// Whole means that at least one file exists and none is unwritten or broken: a driver that is still to write
    /// its part is waited for, and so is one whose file is broken, because it may yet mend it. When time runs out,
    /// the error says what was missing to the last. The time holds whatever is on disk: a look that would take longer is
    /// cut short, though never to less than a second.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use drakkar_metadata::{Query, Reader};
    ///
    /// let query: Query = "net/eth".parse()?;
    /// let has_address = |device: &drakkar_metadata::Device| !device.ips().is_empty();
    /// let request = Reader::new().wait(&query, Duration::from_secs(30), |found| found.devices().all(has_address))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(
        &self,
        query: &Query,
        timeout: Duration,
        mut ready: impl FnMut(&RequestMetadata) -> bool,
    ) -> Result<RequestMetadata, ReadError> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout);
        let mut watches = Watches::new();
        loop {
            // A deadline that no clock reaches is none.
            let patience = deadline.map_or_else(Patience::default, Patience::until);
            watches.cover(self, query, patience.walk_until());
            let missing = match self.read_within(query, patience).and_then(RequestMetadata::complete) {
                Ok(request) if ready(&request) => return Ok(request),
                Ok(_) => ReadError::NotReady { query: Box::new(query.clone()) },
                // More time does not make that clearer.
                Err(error @ ReadError::Ambiguous { .. }) => return Err(error),
                Err(error) => error,
            };
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(ReadError::TimedOut { waited, last: Box::new(missing) });
            };
            watches.sleep(left.min(self.recheck));
        }
    }
}

/// The kernel's watches, or the lack of them.
struct Watches {
    inotify: Option<rustix::fd::OwnedFd>,
    /// Something could not be watched: look often instead.
    unwatched: bool,
    /// How many things have been watched in this round.
    targets: usize,
}

impl Watches {
    fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { unwatched: inotify.is_none(), inotify, targets: 0 }
    }

    /// Watches all that could make a difference to the query. Watching again what is watched already is harmless.
    /// What there is no time or no watch left for is looked at more often instead.
    fn cover(&mut self, reader: &Reader, query: &Query, until: Instant) {
        self.unwatched = self.inotify.is_none();
        self.targets = 0;
        for directory in Directories::of(query).all() {
            self.cover_directory(reader, directory, until);
        }
        // Which claim of the KEP's layout is meant by a pod claim's name, only its files say.
        if !matches!(query.claim, ClaimSelector::Claim(_)) {
            self.cover_directory(reader, Path::new(KEP_DIR), until);
            for claim in self.list(reader, Path::new(KEP_DIR), until) {
                self.cover_directory(reader, &Path::new(KEP_DIR).join(claim).join(query.request.as_str()), until);
            }
        }
    }

    /// The entries of a directory, if they are no more than can be watched.
    fn list(&mut self, reader: &Reader, directory: &Path, until: Instant) -> Vec<OsString> {
        match reader.root.list(directory, MAX_WATCHES, until) {
            Ok(names) => names,
            // Not there, or cannot be read: the look says so.
            Err(ListError::Io(_)) => Vec::new(),
            Err(ListError::TooMany | ListError::OutOfTime) => {
                self.unwatched = true;
                Vec::new()
            }
        }
    }

    /// Watches a directory and the files in it or, where it is not there, the deepest one above it that is.
    fn cover_directory(&mut self, reader: &Reader, directory: &Path, until: Instant) {
        if self.targets >= MAX_WATCHES || Instant::now() >= until {
            self.unwatched = true;
            return;
        }
        let mut levels: Vec<&Path> = directory.ancestors().collect();
        levels.reverse();
        // A directory that appears between the look for it and the watch on the one above it is found by the second look.
        for (level, below) in levels.iter().zip(levels.iter().skip(1)) {
            if !reader.root.exists(below) {
                self.watch(reader, level);
                if !reader.root.exists(below) {
                    return;
                }
            }
        }
        self.watch(reader, directory);
        for name in self.list(reader, directory, until) {
            if is_metadata_file(&name) {
                self.watch(reader, &directory.join(name));
            }
        }
    }

    fn watch(&mut self, reader: &Reader, path: &Path) {
        let Some(inotify) = &self.inotify else { return };
        if self.targets >= MAX_WATCHES {
            self.unwatched = true;
            return;
        }
        self.targets += 1;
        let changes = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let target = match reader.root.watch_target(path) {
            Ok(target) => target,
            // Gone again: the watch above it tells when it comes back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => {
                self.unwatched = true;
                return;
            }
        };
        if inotify::add_watch(inotify, target.path(), changes).is_err() {
            self.unwatched = true;
        }
    }

    /// Sleeps until something changes or the time is over.
    fn sleep(&self, time: Duration) {
        let time = if self.unwatched { time.min(UNWATCHED) } else { time };
        let Some(inotify) = &self.inotify else { return std::thread::sleep(time) };
        let mut fds = [PollFd::new(inotify, PollFlags::IN)];
        // A time that does not fit is longer than anybody waits.
        let timespec = Timespec::try_from(time).ok();
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return std::thread::sleep(time.min(UNWATCHED)),
        }
        // What happened does not matter, only that it did: the next look sees all of it.
        let mut events = [0_u8; 4096];
        for _ in 0..MAX_READS {
            if !matches!(read(inotify, &mut events), Ok(1..) | Err(Errno::INTR)) {
                break;
            }
        }
    }
}
