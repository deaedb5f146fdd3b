//! Watching directories with one inotify instance for the whole process.
//!
//! The kernel limits the instances per user (`fs.inotify.max_user_instances`, usually 128), and other programs need some,
//! but it allows very many watches. So one instance is opened on first use and kept, with a thread that waits for events,
//! which works with any async runtime and without one.
//!
//! Several subscriptions may watch the same directory. The kernel has one watch for it with the union of their flags; here
//! each subscription gets what it asked for. [`Subscription::drain`] returns everything that happened before the call,
//! because events are read and delivered under one lock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::Notify;

/// The most events that are queued for a subscription, as many as the kernel queues by default. An overflow is reported.
const MAX_QUEUED_EVENTS: usize = 16_384;

/// The id of a subscription's watch. Unlike the kernel's watch descriptors, ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WatchId(u64);

/// An event in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// The watch; `None` with `QUEUE_OVERFLOW`, when events were lost.
    pub(crate) watch: Option<WatchId>,
    /// What happened. `IGNORED` ends the watch.
    pub(crate) flags: ReadFlags,
    /// The name of the directory entry; `None` if it happened to the directory itself.
    pub(crate) name: Option<Vec<u8>>,
}

/// A subscription to events of directories. Dropping it ends its watches.
#[derive(Debug)]
pub(crate) struct Subscription {
    instance: Arc<Instance>,
    id: u64,
    arrived: Arc<Notify>,
}

/// Creates a subscription on the process-wide instance.
pub(crate) fn subscribe() -> io::Result<Subscription> {
    static SHARED: Mutex<Option<Arc<Instance>>> = Mutex::new(None);
    // Nothing panics while it is locked.
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let instance = match &*shared {
        Some(instance) => Arc::clone(instance),
        None => Arc::clone(shared.insert(Instance::open()?)),
    };
    drop(shared);
    Ok(instance.subscribe())
}

#[derive(Debug)]
struct Instance {
    file: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The watches of subscriptions by watch descriptor.
    watches: HashMap<i32, Vec<Watch>>,
    queues: HashMap<u64, EventQueue>,
    /// The last id that was assigned, to a subscription or a watch.
    last_id: u64,
    /// The error after which no more events arrive.
    failed: Option<Errno>,
}

#[derive(Debug)]
struct Watch {
    id: WatchId,
    subscription: u64,
    mask: ReadFlags,
}

#[derive(Debug)]
struct EventQueue {
    events: VecDeque<Event>,
    arrived: Arc<Notify>,
}

impl Instance {
    fn open() -> io::Result<Arc<Self>> {
        let file = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| match errno {
            Errno::MFILE => io::Error::other(format!(
                "open an inotify instance: {errno}: programs of this user have too many: raise the sysctl \
                 fs.inotify.max_user_instances (or, if this process has too many files open, its limit: ulimit -n)"
            )),
            errno => errno.into(),
        })?;
        let instance = Arc::new(Self { file, state: Mutex::default() });
        let polled = Arc::clone(&instance);
        std::thread::Builder::new().name("inotify".to_owned()).spawn(move || polled.poll_events())?;
        Ok(instance)
    }

    /// Delivers events as they arrive, which wakes the subscriptions that wait. Runs on a thread of its own.
    fn poll_events(&self) {
        loop {
            let outcome = match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], None) {
                Ok(_) => self.lock().read(&self.file),
                Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(self.lock().fail(errno)),
            };
            if let Err(errno) = outcome {
                tracing::error!(error = %errno, "inotify failed, directories are no longer watched");
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(self: Arc<Self>) -> Subscription {
        let arrived = Arc::new(Notify::new());
        let id = {
            let mut state = self.lock();
            let id = state.next_id();
            state.queues.insert(id, EventQueue { events: VecDeque::new(), arrived: Arc::clone(&arrived) });
            id
        };
        Subscription { instance: self, id, arrived }
    }
}

impl Subscription {
    /// Watches a directory. If this subscription already watches it, adds these flags to that watch.
    pub(crate) fn watch(&self, directory: &Path, flags: WatchFlags) -> io::Result<WatchId> {
        let Instance { file, .. } = &*self.instance;
        let mut state = self.instance.lock();
        // Delivers earlier events first: they are not for this watch, even if another subscription watches the same directory.
        state.read(file)?;
        let descriptor =
            inotify::add_watch(file, directory, flags | WatchFlags::MASK_ADD).map_err(|errno| match errno {
                Errno::NOSPC => io::Error::other(
                    "programs of this user watch too many directories: raise the sysctl fs.inotify.max_user_watches",
                ),
                errno => errno.into(),
            })?;
        let mask = ReadFlags::from_bits_truncate(flags.bits());
        let new_id = WatchId(state.next_id());
        let watches = state.watches.entry(descriptor).or_default();
        if let Some(watch) = watches.iter_mut().find(|watch| watch.subscription == self.id) {
            watch.mask |= mask;
            return Ok(watch.id);
        }
        watches.push(Watch { id: new_id, subscription: self.id, mask });
        Ok(new_id)
    }

    /// Returns all events since the last call, in order. Does not wait.
    pub(crate) fn drain(&self) -> io::Result<Vec<Event>> {
        let mut state = self.instance.lock();
        let read = state.read(&self.instance.file);
        let queue = state.queues.get_mut(&self.id);
        let events: Vec<Event> = queue.map(|queue| queue.events.drain(..).collect()).unwrap_or_default();
        // Events from before a failure are returned before the failure.
        if events.is_empty() {
            read?;
        }
        Ok(events)
    }

    /// Waits for events and returns them in order. For one task at a time; cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Vec<Event>> {
        loop {
            let events = self.drain()?;
            if !events.is_empty() {
                return Ok(events);
            }
            // An event that arrives after `drain` has left a permit, so this returns at once.
            self.arrived.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Instance { file, .. } = &*self.instance;
        let mut state = self.instance.lock();
        state.queues.remove(&self.id);
        let mut unused = Vec::new();
        state.watches.retain(|descriptor, watches| {
            watches.retain(|watch| watch.subscription != self.id);
            if watches.is_empty() {
                unused.push(*descriptor);
            }
            !watches.is_empty()
        });
        for descriptor in unused {
            match inotify::remove_watch(file, descriptor) {
                // The directory is gone, and its watch with it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => tracing::warn!(error = %errno, "removing an inotify watch failed"),
            }
        }
        // Reads the remaining events of these watches now, so that they are not delivered to later watches. A failure is
        // stored, and reported to the subscriptions that wait.
        let _ = state.read(file);
    }
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Reads and delivers all available events.
    fn read(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        let mut buffer = [MaybeUninit::uninit(); 4 << 10];
        let mut reader = Reader::new(file, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    self.deliver(event.wd(), event.events(), name.as_deref());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(self.fail(errno)),
            }
        }
    }

    fn deliver(&mut self, descriptor: i32, flags: ReadFlags, name: Option<&[u8]>) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            for queue in self.queues.values_mut() {
                queue.push(Event { watch: None, flags, name: None });
            }
            return;
        }
        let always = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        // A watch that was removed still has its `IGNORED` event.
        let watches = self.watches.get(&descriptor).map(Vec::as_slice).unwrap_or_default();
        for watch in watches.iter().filter(|watch| flags.intersects(watch.mask | always)) {
            if let Some(queue) = self.queues.get_mut(&watch.subscription) {
                queue.push(Event { watch: Some(watch.id), flags, name: name.map(<[u8]>::to_vec) });
            }
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.watches.remove(&descriptor);
        }
    }

    fn fail(&mut self, errno: Errno) -> Errno {
        self.failed = Some(errno);
        for queue in self.queues.values() {
            queue.arrived.notify_one();
        }
        errno
    }
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        // The kernel, too, merges equal events in a row.
        if self.events.back() == Some(&event) {
            return;
        }
        if self.events.len() < MAX_QUEUED_EVENTS {
            self.events.push_back(event);
        } else {
            let lost = Event { watch: None, flags: ReadFlags::QUEUE_OVERFLOW, name: None };
            // One overflow event is enough: it stays the last until the queue is drained.
            if self.events.back() != Some(&lost) {
                self.events.push_back(lost);
            }
        }
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests;
