//! Waits for metadata that is not written yet, and for changes.
//!
//! The order is: watch, read, sleep. A change after the read wakes the sleeper because the watch precedes the read; an
//! earlier change is in the read. There are watches on the files themselves, because the directory of a bind-mounted file
//! has no events for it, on their directories, and, if those do not exist, on the deepest existing directory above them.

use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, read};

use super::directories::{Directories, Wanted};
use super::find::{Discovery, is_metadata_file};
use super::query::{ClaimSelector, Query};
use super::root::ListError;
use super::selection::Selection;
use super::snapshot::Deadlines;
use super::{ReadError, Reader, RequestMetadata};
use crate::path::{CLAIMS_SUBDIR, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};

/// The polling interval if something cannot be watched.
const UNWATCHED_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of watches. A user's watches are limited, and other programs need them too.
const MAX_WATCHES: usize = 256;
/// The maximum number of reads of inotify events at a time; remaining events cause another read of the files.
const MAX_READS: usize = 64;

impl Reader {
    /// Waits until a request's metadata is complete and `ready` returns true, for at most `timeout`.
    ///
    /// It is complete if at least one file exists and none is empty or broken: a driver may still write or repair its
    /// file. On a timeout, the error has the last problem. The timeout also limits the search of directories, to no less
    /// than a second.
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
        let mut last = None;
        let selection = Selection::Request(query.clone());
        let outcome = self.follow(&selection, timeout, &mut |deadlines| {
            let missing = match self.read_within(query, deadlines).and_then(RequestMetadata::complete) {
                Ok(request) if ready(&request) => return ControlFlow::Break(Ok(request)),
                Ok(_) => ReadError::NotReady { query: Box::new(query.clone()) },
                // Waiting does not resolve an ambiguity.
                Err(error @ ReadError::Ambiguous { .. }) => return ControlFlow::Break(Err(error)),
                Err(error) => error,
            };
            last = Some(missing);
            ControlFlow::Continue(())
        });
        match (outcome, last) {
            (Ok(outcome), _) => outcome,
            (Err(waited), Some(last)) => Err(ReadError::TimedOut { waited, last: Box::new(last) }),
            // The first attempt comes before the first look at the clock.
            (Err(_), None) => Err(ReadError::NotReady { query: Box::new(query.clone()) }),
        }
    }

    /// Calls `visit` with the files of a selection, now and again whenever one may have changed, until it breaks with a
    /// value or `timeout` has passed. Returns the value, or the time waited.
    ///
    /// `visit` can be called without a change: at least once per [polling interval](Reader::recheck_every).
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// use drakkar_metadata::Reader;
    /// use drakkar_metadata::read::Selection;
    ///
    /// let written = Reader::new().watch(&Selection::All, Duration::from_secs(30), |found| match found {
    ///     Ok(found) if found.files.iter().all(|file| file.content.is_ok()) => ControlFlow::Break(found.files.len()),
    ///     _ => ControlFlow::Continue(()),
    /// });
    /// ```
    pub fn watch<T>(
        &self,
        selection: &Selection,
        timeout: Duration,
        mut visit: impl FnMut(Result<Discovery, ReadError>) -> ControlFlow<T>,
    ) -> Result<T, Duration> {
        self.follow(selection, timeout, &mut |deadlines| visit(self.select_within(selection, deadlines)))
    }

    fn follow<T>(
        &self,
        selection: &Selection,
        timeout: Duration,
        attempt: &mut dyn FnMut(Deadlines) -> ControlFlow<T>,
    ) -> Result<T, Duration> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout);
        let mut watches = Watches::new();
        loop {
            // A timeout beyond the clock's range is no deadline.
            let deadlines = deadline.map_or_else(Deadlines::default, Deadlines::until);
            watches.cover(self, selection, deadlines.search_until());
            if let ControlFlow::Break(value) = attempt(deadlines) {
                return Ok(value);
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else { return Err(waited) };
            watches.sleep(left.min(self.recheck));
        }
    }
}

/// The inotify watches of a wait.
struct Watches {
    inotify: Option<rustix::fd::OwnedFd>,
    /// Whether something could not be watched, so that polling is needed.
    unwatched: bool,
    /// The number of watches in this round.
    targets: usize,
}

impl Watches {
    fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { unwatched: inotify.is_none(), inotify, targets: 0 }
    }

    /// Watches all directories and files that can affect the selection. Adding a watch again is harmless.
    ///
    /// If the deadline or the limit of watches is reached, the wait polls instead.
    fn cover(&mut self, reader: &Reader, selection: &Selection, until: Instant) {
        self.unwatched = self.inotify.is_none();
        self.targets = 0;
        let wanted = match selection {
            Selection::All => {
                for claims in [CLAIMS_SUBDIR, TEMPLATES_SUBDIR] {
                    self.cover_tree(reader, &Path::new(KUBERNETES_DIR).join(claims), 2, until);
                }
                return self.cover_tree(reader, Path::new(KEP_DIR), 2, until);
            }
            Selection::Claim { claim, driver } => Wanted::claim(claim, driver.as_ref()),
            Selection::Request(query) => Wanted::request(query),
        };
        let levels = usize::from(wanted.query.is_none());
        for directory in Directories::of(&wanted).all() {
            self.cover_tree(reader, directory, levels, until);
        }
        // In the KEP's layout only the files have the name of the pod claim.
        if !matches!(wanted.claim, ClaimSelector::Claim(_)) {
            self.cover_directory(reader, Path::new(KEP_DIR), until);
            for claim in self.list(reader, Path::new(KEP_DIR), until) {
                let directory = Path::new(KEP_DIR).join(claim);
                match wanted.query {
                    Some(query) => self.cover_directory(reader, &directory.join(query.request.as_str()), until),
                    None => self.cover_tree(reader, &directory, levels, until),
                }
            }
        }
    }

    /// Watches a directory and the directories this many levels below it.
    fn cover_tree(&mut self, reader: &Reader, directory: &Path, levels: usize, until: Instant) {
        self.cover_directory(reader, directory, until);
        if levels == 0 {
            return;
        }
        if self.targets >= MAX_WATCHES {
            self.unwatched = true;
            return;
        }
        for name in self.list(reader, directory, until) {
            self.cover_tree(reader, &directory.join(name), levels - 1, until);
        }
    }

    /// Lists a directory if its entries do not exceed the limit of watches.
    fn list(&mut self, reader: &Reader, directory: &Path, until: Instant) -> Vec<OsString> {
        match reader.root.list(directory, MAX_WATCHES, until) {
            Ok(names) => names,
            // Reading the files reports the error.
            Err(ListError::Io(_)) => Vec::new(),
            Err(ListError::TooMany | ListError::OutOfTime) => {
                self.unwatched = true;
                Vec::new()
            }
        }
    }

    /// Watches a directory and the files in it or, if it does not exist, the deepest existing directory above it.
    fn cover_directory(&mut self, reader: &Reader, directory: &Path, until: Instant) {
        if self.targets >= MAX_WATCHES || Instant::now() >= until {
            self.unwatched = true;
            return;
        }
        let mut levels: Vec<&Path> = directory.ancestors().collect();
        levels.reverse();
        // The second check finds a directory that was created between the first check and the watch.
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
            // Removed meanwhile: the watch on its parent reports when it is created again.
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

    /// Sleeps until something changes, for at most `time`.
    fn sleep(&self, time: Duration) {
        let time = if self.unwatched { time.min(UNWATCHED_INTERVAL) } else { time };
        let Some(inotify) = &self.inotify else { return std::thread::sleep(time) };
        let mut fds = [PollFd::new(inotify, PollFlags::IN)];
        // A time beyond the range means no timeout.
        let timespec = Timespec::try_from(time).ok();
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return std::thread::sleep(time.min(UNWATCHED_INTERVAL)),
        }
        // The events themselves are not needed: the files are read again.
        let mut events = [0_u8; 4096];
        for _ in 0..MAX_READS {
            if !matches!(read(inotify, &mut events), Ok(1..) | Err(Errno::INTR)) {
                break;
            }
        }
    }
}
