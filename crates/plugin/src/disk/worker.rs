//! Threads for file work, each with a slot for one piece of it.
//!
//! A worker is woken through a pipe and answers through another. The kernel takes a write into a pipe as a sign that its writer
//! is about to sleep, and lets the reader run where the writer was: that is the cheapest way to another thread and back, about
//! half of what a condition variable costs. A worker that nobody keeps has the end of its pipe, and its thread ends.

use std::io::{self, Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Late;

/// The number of threads that are kept for the next work. While the disk is well, one is enough for a runtime of one thread.
const KEPT: usize = 4;

/// A piece of work.
pub(super) trait Work: Send {
    /// Does it, and keeps the outcome.
    fn run(&mut self);
    /// Gives the outcome to whoever asked for it.
    fn deliver(self: Box<Self>);
}

/// The threads that have nothing to do. They end when this is dropped; those that work end after that.
#[derive(Debug, Default)]
pub(super) struct Workers(Arc<Mutex<Vec<Worker>>>);

/// The handle of a thread. Whoever has it may use the thread for one piece of work.
#[derive(Debug)]
pub(super) struct Worker {
    slot: Arc<Mutex<Slot>>,
    wake: io::PipeWriter,
    answered: io::PipeReader,
}

/// What a thread and its user share.
#[derive(Default)]
struct Slot {
    work: Option<Box<dyn Work>>,
    user: User,
}

/// Who learns of the end of a piece of work.
#[derive(Default)]
enum User {
    /// Nobody: it has ended.
    #[default]
    None,
    /// A thread that stands still meanwhile, and keeps the handle.
    Waits,
    /// A task. The thread has its own handle, to give it back.
    Left(Worker, Late),
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Workers {
    /// A thread with nothing to do.
    pub(super) fn take(&self) -> io::Result<Worker> {
        let idle = lock(&self.0).pop();
        idle.map_or_else(|| Worker::start(Arc::downgrade(&self.0)), Ok)
    }

    /// Keeps a thread for the next work.
    pub(super) fn give_back(&self, worker: Worker) {
        give_back(&self.0, worker);
    }
}

impl Worker {
    fn start(idle: Weak<Mutex<Vec<Self>>>) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let (answered, answer) = io::pipe()?;
        let slot = Arc::new(Mutex::new(Slot::default()));
        let of_thread = slot.clone();
        // It is not joined: work that hangs must not hold up the end of the driver.
        thread::Builder::new()
            .name("drakkar-files".to_owned())
            .spawn(move || work(&of_thread, woken, answer, &idle))?;
        Ok(Self { slot, wake, answered })
    }

    /// Hands work over and waits for its end so long. Gives the handle back if that came, and leaves the work to a task if not.
    pub(super) fn run_within(
        self,
        work: Box<dyn Work>,
        time: Duration,
        late: impl FnOnce() -> Late,
    ) -> io::Result<Option<Self>> {
        *lock(&self.slot) = Slot { work: Some(work), user: User::Waits };
        (&self.wake).write_all(&[0])?;
        if !is_readable(&self.answered, Instant::now() + time)? {
            let shared = self.slot.clone();
            let mut slot = lock(&shared);
            if let User::Waits = slot.user {
                slot.user = User::Left(self, late());
                return Ok(None);
            }
        }
        (&self.answered).read_exact(&mut [0])?;
        Ok(Some(self))
    }

    /// Hands work over and leaves it to a task.
    pub(super) fn run(self, work: Box<dyn Work>, late: Late) -> io::Result<()> {
        let shared = self.slot.clone();
        let mut slot = lock(&shared);
        slot.work = Some(work);
        (&self.wake).write_all(&[0])?;
        // The thread does not look at this before the work is done, nor without the lock.
        slot.user = User::Left(self, late);
        Ok(())
    }
}

/// What a thread does until its handle is gone.
fn work(slot: &Mutex<Slot>, mut woken: io::PipeReader, mut answer: io::PipeWriter, idle: &Weak<Mutex<Vec<Worker>>>) {
    while woken.read_exact(&mut [0]).is_ok() {
        let Some(mut work) = lock(slot).work.take() else { continue };
        work.run();
        let mut shared = lock(slot);
        match std::mem::take(&mut shared.user) {
            User::Waits => {
                work.deliver();
                if answer.write_all(&[0]).is_err() {
                    return;
                }
            }
            User::Left(worker, late) => {
                drop(shared);
                // Before the outcome is known: whoever has it finds things as they are now.
                drop(late);
                if let Some(idle) = idle.upgrade() {
                    give_back(&idle, worker);
                }
                work.deliver();
            }
            User::None => {}
        }
    }
}

fn give_back(idle: &Mutex<Vec<Worker>>, worker: Worker) {
    let mut idle = lock(idle);
    if idle.len() < KEPT {
        idle.push(worker);
    }
}

/// Waits until there is something to read.
fn is_readable(pipe: &io::PipeReader, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Nothing panics while it has one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
