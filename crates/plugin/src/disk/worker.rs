//! Threads for file work, each with a slot for one job.
//!
//! A worker is woken through one pipe and signals completion through another. The kernel takes a write into a pipe as a hint that
//! the writer is about to sleep, and runs the reader on the writer's CPU: that is the cheapest way to another thread and back,
//! at about half the cost of a condition variable. When the handle of a worker is dropped, its pipe is closed and its thread ends.

use std::io::{self, Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::OwnedSemaphorePermit;

use super::Late;

/// The maximum number of idle threads. While the disk is fast, one is enough for a runtime with one thread.
const MAX_IDLE: usize = 4;

/// A unit of work.
pub(super) trait Work: Send {
    /// Keeps the permit for its thread until the work has run.
    fn set_thread(&mut self, thread: OwnedSemaphorePermit);
    /// Runs the work, and stores the outcome.
    fn run(&mut self);
    /// Sends the outcome to the caller.
    fn deliver(self: Box<Self>);
}

/// The idle threads. They end when this is dropped; busy threads end after their work.
#[derive(Debug, Default)]
pub(super) struct Workers(Arc<Mutex<Vec<Worker>>>);

/// The handle of a thread, which allows its owner to run one job on it.
#[derive(Debug)]
pub(super) struct Worker {
    slot: Arc<Mutex<Slot>>,
    wake: io::PipeWriter,
    done: io::PipeReader,
}

/// The state shared between a thread and the owner of its handle.
#[derive(Default)]
struct Slot {
    work: Option<Box<dyn Work>>,
    waiter: Waiter,
}

/// What waits for the completion of a job.
#[derive(Default)]
enum Waiter {
    /// Nothing: there is no job.
    #[default]
    None,
    /// A blocked thread, which keeps the handle.
    Thread,
    /// A task. The worker thread owns its own handle, and returns it to the idle ones when the job is done.
    Task(Worker, Late),
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

impl Workers {
    /// Returns an idle thread, or starts one.
    pub(super) fn take(&self) -> io::Result<Worker> {
        let idle = lock(&self.0).pop();
        idle.map_or_else(|| Worker::start(Arc::downgrade(&self.0)), Ok)
    }

    /// Returns a thread to the idle ones.
    pub(super) fn give_back(&self, worker: Worker) {
        give_back(&self.0, worker);
    }
}

impl Worker {
    fn start(idle: Weak<Mutex<Vec<Self>>>) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let (done, signal_done) = io::pipe()?;
        let slot = Arc::new(Mutex::new(Slot::default()));
        let of_thread = slot.clone();
        // Never joined: work that hangs must not delay the shutdown of the driver.
        thread::Builder::new()
            .name("drakkar-files".to_owned())
            .spawn(move || work(&of_thread, woken, signal_done, &idle))?;
        Ok(Self { slot, wake, done })
    }

    /// Starts work and blocks until it completes or a timeout passes. Returns the handle if the work completed; otherwise a task
    /// waits for the work from now on.
    pub(super) fn run_within(
        self,
        work: Box<dyn Work>,
        timeout: Duration,
        late: impl FnOnce() -> Late,
    ) -> io::Result<Option<Self>> {
        *lock(&self.slot) = Slot { work: Some(work), waiter: Waiter::Thread };
        (&self.wake).write_all(&[0])?;
        if !is_readable(&self.done, Instant::now() + timeout)? {
            let shared = self.slot.clone();
            let mut slot = lock(&shared);
            if let Waiter::Thread = slot.waiter {
                slot.waiter = Waiter::Task(self, late());
                return Ok(None);
            }
        }
        (&self.done).read_exact(&mut [0])?;
        Ok(Some(self))
    }

    /// Starts work that a task waits for.
    pub(super) fn run(self, work: Box<dyn Work>, late: Late) -> io::Result<()> {
        let shared = self.slot.clone();
        let mut slot = lock(&shared);
        slot.work = Some(work);
        (&self.wake).write_all(&[0])?;
        // The thread reads this only after the work is done, and with the lock held.
        slot.waiter = Waiter::Task(self, late);
        Ok(())
    }
}

/// Runs the jobs of a worker until its handle is dropped.
fn work(
    slot: &Mutex<Slot>,
    mut woken: io::PipeReader,
    mut signal_done: io::PipeWriter,
    idle: &Weak<Mutex<Vec<Worker>>>,
) {
    while woken.read_exact(&mut [0]).is_ok() {
        let Some(mut work) = lock(slot).work.take() else { continue };
        work.run();
        let mut shared = lock(slot);
        match std::mem::take(&mut shared.waiter) {
            Waiter::Thread => {
                work.deliver();
                if signal_done.write_all(&[0]).is_err() {
                    return;
                }
            }
            Waiter::Task(worker, late) => {
                drop(shared);
                // Before the outcome is delivered, so that its receiver sees the current state.
                drop(late);
                if let Some(idle) = idle.upgrade() {
                    give_back(&idle, worker);
                }
                work.deliver();
            }
            Waiter::None => {}
        }
    }
}

fn give_back(idle: &Mutex<Vec<Worker>>, worker: Worker) {
    let mut idle = lock(idle);
    if idle.len() < MAX_IDLE {
        idle.push(worker);
    }
}

/// Waits until the pipe is readable, and returns whether it is.
fn is_readable(pipe: &io::PipeReader, deadline: Instant) -> io::Result<bool> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: remaining.subsec_nanos().into() };
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Locks a mutex, and ignores poisoning: nothing panics while it holds one of these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
