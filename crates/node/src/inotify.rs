//! What happens in directories: one inotify instance for the whole process, shared by all who watch.
//!
//! The kernel gives a user few instances (`fs.inotify.max_user_instances` is 128 on most machines) and other programs need
//! some, but it gives very many watches. So there is one instance, opened when the first asks for it and kept, and a
//! thread that waits for events, which works with any runtime and without one.
//!
//! Several may watch the same directory. For the kernel that is one watch with all that any of them wants; here each gets
//! what it asked for. Whoever [drains](Subscription::drain) sees all that happened before the call, because events are read
//! and handed out under one lock.

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

/// How many events wait for one subscriber, at most: as many as the kernel keeps by default. More are lost, which is told.
const QUEUE: usize = 16_384;

/// A watch of a subscription. There is never another with the same number, unlike with those of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WatchId(u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Where; nowhere if events were lost, which is `QUEUE_OVERFLOW`.
    pub(crate) watch: Option<WatchId>,
    /// What. With `IGNORED` the watch is over.
    pub(crate) flags: ReadFlags,
    /// To what in the directory, if it was not the directory itself.
    pub(crate) name: Option<Vec<u8>>,
}

/// One who watches directories. Its watches end when it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    instance: Arc<Instance>,
    id: u64,
    arrived: Arc<Notify>,
}

/// Somebody new, of the instance that all of this process share.
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
    /// Who watches, by the kernel's number of the watch.
    watches: HashMap<i32, Vec<Watch>>,
    inboxes: HashMap<u64, Inbox>,
    /// The last number that was given to anything.
    last: u64,
    /// Why no event comes any more.
    broken: Option<Errno>,
}

#[derive(Debug)]
struct Watch {
    id: WatchId,
    subscription: u64,
    wanted: ReadFlags,
}

#[derive(Debug)]
struct Inbox {
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
        let waiting = Arc::clone(&instance);
        std::thread::Builder::new().name("inotify".to_owned()).spawn(move || waiting.wait())?;
        Ok(instance)
    }

    /// Hands out events as they come, so that those are woken who do not ask. For a thread that does nothing else.
    fn wait(&self) {
        loop {
            let outcome = match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], None) {
                Ok(_) => self.lock().read(&self.file),
                Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(self.lock().broke(errno)),
            };
            if let Err(errno) = outcome {
                tracing::error!(error = %errno, "inotify: directories are not watched any more");
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
            let id = state.number();
            state.inboxes.insert(id, Inbox { events: VecDeque::new(), arrived: Arc::clone(&arrived) });
            id
        };
        Subscription { instance: self, id, arrived }
    }
}

impl Subscription {
    /// Watches a directory. If this subscription does so already, that watch has these flags, too.
    pub(crate) fn watch(&self, directory: &Path, flags: WatchFlags) -> io::Result<WatchId> {
        let Instance { file, .. } = &*self.instance;
        let mut state = self.instance.lock();
        // What happened before is not for this watch, though others may have one of the same directory.
        state.read(file)?;
        let number =
            inotify::add_watch(file, directory, flags | WatchFlags::MASK_ADD).map_err(|errno| match errno {
                Errno::NOSPC => io::Error::other(
                    "programs of this user watch too many directories: raise the sysctl fs.inotify.max_user_watches",
                ),
                errno => errno.into(),
            })?;
        let wanted = ReadFlags::from_bits_truncate(flags.bits());
        let fresh = WatchId(state.number());
        let watches = state.watches.entry(number).or_default();
        if let Some(watch) = watches.iter_mut().find(|watch| watch.subscription == self.id) {
            watch.wanted |= wanted;
            return Ok(watch.id);
        }
        watches.push(Watch { id: fresh, subscription: self.id, wanted });
        Ok(fresh)
    }

    /// All that has happened until now and was not taken before, in order. Does not wait.
    pub(crate) fn drain(&self) -> io::Result<Vec<Event>> {
        let mut state = self.instance.lock();
        let read = state.read(&self.instance.file);
        let inbox = state.inboxes.get_mut(&self.id);
        let events: Vec<Event> = inbox.map(|inbox| inbox.events.drain(..).collect()).unwrap_or_default();
        // What came before it broke comes first.
        if events.is_empty() {
            read?;
        }
        Ok(events)
    }

    /// Waits until something happens; what happened then, in order. For one task at a time; nothing is lost when the
    /// future is dropped.
    pub(crate) async fn next(&self) -> io::Result<Vec<Event>> {
        loop {
            let events = self.drain()?;
            if !events.is_empty() {
                return Ok(events);
            }
            // What came meanwhile is remembered.
            self.arrived.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Instance { file, .. } = &*self.instance;
        let mut state = self.instance.lock();
        state.inboxes.remove(&self.id);
        let mut unused = Vec::new();
        state.watches.retain(|number, watches| {
            watches.retain(|watch| watch.subscription != self.id);
            if watches.is_empty() {
                unused.push(*number);
            }
            !watches.is_empty()
        });
        for number in unused {
            match inotify::remove_watch(file, number) {
                // The directory is gone, and its watch with it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => tracing::warn!(error = %errno, "inotify: a directory is watched for nobody"),
            }
        }
        // What is still told of these watches is read now, so that it is not taken for news of later ones. If this fails,
        // those who wait for news learn it.
        let _ = state.read(file);
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Hands out all events that are there.
    fn read(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some(errno) = self.broken {
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
                Err(errno) => return Err(self.broke(errno)),
            }
        }
    }

    fn deliver(&mut self, number: i32, flags: ReadFlags, name: Option<&[u8]>) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            for inbox in self.inboxes.values_mut() {
                inbox.put(Event { watch: None, flags, name: None });
            }
            return;
        }
        let always = ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        // Of watches that nobody has any more there is at least the news of their end.
        let watches = self.watches.get(&number).map(Vec::as_slice).unwrap_or_default();
        for watch in watches.iter().filter(|watch| flags.intersects(watch.wanted | always)) {
            if let Some(inbox) = self.inboxes.get_mut(&watch.subscription) {
                inbox.put(Event { watch: Some(watch.id), flags, name: name.map(<[u8]>::to_vec) });
            }
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.watches.remove(&number);
        }
    }

    fn broke(&mut self, errno: Errno) -> Errno {
        self.broken = Some(errno);
        for inbox in self.inboxes.values() {
            inbox.arrived.notify_one();
        }
        errno
    }
}

impl Inbox {
    fn put(&mut self, event: Event) {
        // The kernel does not say the same twice in a row, either.
        if self.events.back() == Some(&event) {
            return;
        }
        if self.events.len() < QUEUE {
            self.events.push_back(event);
        } else {
            let lost = Event { watch: None, flags: ReadFlags::QUEUE_OVERFLOW, name: None };
            // Only once: as long as it is not taken it is the last.
            if self.events.back() != Some(&lost) {
                self.events.push_back(lost);
            }
        }
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests;
