//! A queue of brief file work, for calls that are in flight at the same time.
//!
//! One thread takes the work in turn while the runtime's thread goes on with other calls. That uses two processors, and a thread
//! that is busy need not be woken for each piece. A piece that hangs delays those behind it by two ticks at most: when there is
//! work and none has been started for a whole [`TICK`], another thread is started, as long as the limit of all file work allows
//! it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::worker::lock;

/// How often progress is checked while there is work.
const TICK: Duration = Duration::from_millis(1);

/// A piece of work, which delivers its outcome itself and does not panic.
pub(super) type Piece = Box<dyn FnOnce() + Send>;

/// The queue. When it is dropped, its threads end after the work that they have.
pub(super) struct Queue {
    shared: Arc<Shared>,
    /// Checks progress while there is work.
    monitor: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The limit of threads, those of other file work included.
    threads: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    threads: usize,
    /// How many of the threads wait for work.
    idle: usize,
    /// Whether an idle thread has been notified and has not come yet.
    is_notified: bool,
    /// Whether a piece has been queued since the last tick.
    has_grown: bool,
    /// Whether a piece has been started since the last tick.
    has_progressed: bool,
    is_monitored: bool,
    /// Whether a thread may hang: work has waited for a whole tick, and some thread has not come back since.
    has_stalled: bool,
    is_closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    /// Creates a queue without threads, whose number `threads` limits.
    pub(super) fn new(threads: Arc<Semaphore>) -> Self {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), threads };
        Self { shared: Arc::new(shared), monitor: Mutex::default() }
    }

    /// Queues a piece. Must be called within a runtime.
    pub(super) fn push(&self, piece: Piece) -> io::Result<()> {
        let mut state = lock(&self.shared.state);
        if state.threads == 0
            && let Ok(permit) = self.shared.threads.clone().try_acquire_owned()
        {
            self.shared.start_thread(&mut state, permit)?;
        }
        state.pieces.push_back(piece);
        state.has_grown = true;
        // A thread that is not idle takes the piece after its own, unless it hangs.
        let is_waited_for = state.idle == state.threads || state.has_stalled;
        let notifies = state.idle > 0 && is_waited_for && !state.is_notified;
        state.is_notified |= notifies;
        let starts_monitor = !std::mem::replace(&mut state.is_monitored, true);
        drop(state);
        if notifies {
            self.shared.changed.notify_one();
        }
        if starts_monitor {
            let monitor = tokio::spawn(monitor(Arc::downgrade(&self.shared)));
            *lock(&self.monitor) = Some(AbortOnDropHandle::new(monitor));
        }
        Ok(())
    }
}

#[cfg(test)]
impl Queue {
    /// Whether a thread may hang.
    pub(super) fn has_stalled(&self) -> bool {
        lock(&self.shared.state).has_stalled
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        lock(&self.shared.state).is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn start_thread(self: &Arc<Self>, state: &mut State, permit: OwnedSemaphorePermit) -> io::Result<()> {
        let shared = self.clone();
        // Never joined: work that hangs must not delay the shutdown of the driver.
        thread::Builder::new().name("drakkar-files".to_owned()).spawn(move || {
            shared.work();
            drop(permit);
        })?;
        state.threads += 1;
        Ok(())
    }

    /// Runs pieces. One thread waits for more, the others end when there are none.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(piece) = state.pieces.pop_front() {
                state.has_progressed = true;
                drop(state);
                piece();
                state = lock(&self.state);
                continue;
            }
            if state.threads - state.idle == 1 {
                state.has_stalled = false;
            }
            if state.is_closed || state.idle > 0 {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            state.is_notified = false;
        }
    }

    /// Starts or wakes a thread if work has waited for a whole tick. Returns whether there is anything left to check.
    fn check(self: &Arc<Self>) -> bool {
        let mut state = lock(&self.state);
        let is_stalled = !std::mem::take(&mut state.has_progressed) && !state.pieces.is_empty();
        let has_grown = std::mem::take(&mut state.has_grown);
        if !is_stalled {
            state.is_monitored = has_grown || !state.pieces.is_empty();
            return state.is_monitored;
        }
        let was_stalled = std::mem::replace(&mut state.has_stalled, true);
        if state.idle > 0 {
            self.changed.notify_one();
        } else if let Ok(permit) = self.threads.clone().try_acquire_owned()
            && let Err(error) = self.start_thread(&mut state, permit)
            && !was_stalled
        {
            tracing::warn!(%error, "starting another thread for files failed, retrying");
        }
        true
    }
}

/// Checks progress until there is no work.
async fn monitor(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(TICK).await;
        if !shared.upgrade().is_some_and(|shared| shared.check()) {
            return;
        }
    }
}
