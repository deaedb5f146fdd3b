//! The places of connections: a bounded number, and who leaves when all are taken.
//!
//! A connection with a request keeps its place. Of the others, one that never had a request leaves before one that had,
//! and the longest without a request first: the API server's connections, which are used, are the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The wait for a connection to leave, after which another one has to.
const LEAVE_WAIT: Duration = Duration::from_millis(250);

/// All places.
#[derive(Debug, Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    taken: Mutex<Taken>,
    /// A connection has finished a request and can be made to leave.
    became_idle: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    /// Grows with each event, so a smaller value is longer ago.
    clock: u64,
    next: u64,
    states: HashMap<u64, State>,
}

#[derive(Debug)]
struct State {
    has_request: bool,
    has_served: bool,
    since: u64,
    leave: CancellationToken,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), shared: Arc::default() }
    }

    /// Takes a free place, or makes an idle connection leave, or waits.
    pub(super) async fn acquire(&self) -> Place {
        let mut place = std::pin::pin!(self.free.clone().acquire_owned());
        loop {
            let became_idle = self.shared.became_idle.notified();
            tokio::select! {
                biased;
                permit = place.as_mut() => return self.take(permit.ok()),
                // Only if there is no free place.
                () = async {
                    if self.shared.taken().make_one_leave() {
                        // It leaves sooner, unless a request came in the same moment.
                        tokio::time::sleep(LEAVE_WAIT).await;
                    } else {
                        became_idle.await;
                    }
                } => {}
            }
        }
    }

    /// The permit is `None` only if the semaphore were closed, which it never is.
    fn take(&self, permit: Option<OwnedSemaphorePermit>) -> Place {
        let leave = CancellationToken::new();
        let mut taken = self.shared.taken();
        let since = taken.tick();
        let id = taken.next;
        taken.next += 1;
        taken.states.insert(id, State { has_request: false, has_served: false, since, leave: leave.clone() });
        drop(taken);
        Place { id, leave, shared: self.shared.clone(), _permit: permit }
    }
}

impl Shared {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn make_one_leave(&mut self) -> bool {
        let idle = self.states.values().filter(|state| !state.has_request && !state.leave.is_cancelled());
        match idle.min_by_key(|state| (state.has_served, state.since)) {
            Some(state) => {
                state.leave.cancel();
                true
            }
            None => false,
        }
    }
}

/// The place of one connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    leave: CancellationToken,
    shared: Arc<Shared>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Waits until the connection has to leave. Only connections without a request are chosen.
    pub(super) async fn must_leave(&self) {
        self.leave.cancelled().await;
    }

    /// Whether the connection has, or has had, a request.
    pub(super) fn has_served(&self) -> bool {
        self.shared.taken().states.get(&self.id).is_some_and(|state| state.has_served)
    }

    /// Whether the connection has a request.
    pub(super) fn has_request(&self) -> bool {
        self.shared.taken().states.get(&self.id).is_some_and(|state| state.has_request)
    }

    /// Keeps the place until the result is dropped.
    pub(super) fn begin_request(&self) -> impl Drop + use<'_> {
        self.set_request(true);
        OpenRequest(self)
    }

    fn set_request(&self, has_request: bool) {
        let mut taken = self.shared.taken();
        let since = taken.tick();
        if let Some(state) = taken.states.get_mut(&self.id) {
            *state = State { has_request, has_served: true, since, leave: state.leave.clone() };
        }
    }
}

struct OpenRequest<'a>(&'a Place);

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.set_request(false);
        self.0.shared.became_idle.notify_waiters();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.taken().states.remove(&self.id);
    }
}
