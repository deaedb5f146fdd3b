//! Notices driver code that blocks a thread of the runtime.
//!
//! A driver's methods run on the threads of the runtime. While one of them blocks its thread (sleeps, waits for a lock, reads from
//! a slow device), other tasks of that thread do not run: on a runtime with one thread the driver stands still, and after ten
//! seconds its liveness probe fails. So every poll of driver code is recorded with the name of the call, and a thread of its own
//! warns about those that last for more than a second. The thread sleeps while no driver code runs; it is not woken by every call,
//! but looks a few times a second as long as there are any.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long driver code may keep a thread of the runtime.
const LIMIT: Duration = Duration::from_secs(1);

/// What is noticed about driver code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It has not returned for this long.
    Blocks { call: &'static str, elapsed: Duration },
    /// It has returned after this long.
    Returned { call: &'static str, elapsed: Duration },
}

/// Watches driver code. Clones share the watch; its thread ends with the last of them.
#[derive(Clone)]
pub(crate) struct CallWatch(Arc<Owner>);

impl fmt::Debug for CallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallWatch").field(&self.blocking()).finish()
    }
}

/// Ends the thread when it is dropped.
struct Owner(Arc<Shared>);

struct Shared {
    limit: Duration,
    notify: Box<dyn Fn(Notice) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    polls: Vec<Poll>,
    next_id: u64,
    /// Whether the thread waits for the next poll without a time limit.
    is_idle: bool,
    is_closed: bool,
}

/// Driver code that is running.
struct Poll {
    id: u64,
    call: &'static str,
    started: Instant,
    is_reported: bool,
}

/// Driver code that is running, until this is dropped.
pub(crate) struct Running<'a> {
    shared: &'a Shared,
    id: u64,
}

impl CallWatch {
    /// Starts a watch that logs.
    pub(crate) fn start() -> io::Result<Self> {
        Self::with(LIMIT, log)
    }

    pub(crate) fn with(limit: Duration, notify: impl Fn(Notice) + Send + Sync + 'static) -> io::Result<Self> {
        let notify = Box::new(notify);
        let shared = Arc::new(Shared { limit, notify, state: Mutex::default(), changed: Condvar::new() });
        let watched = shared.clone();
        thread::Builder::new().name("drakkar-watch".to_owned()).spawn(move || watched.run())?;
        Ok(Self(Arc::new(Owner(shared))))
    }

    /// Records that driver code runs on this thread, until the guard is dropped.
    pub(crate) fn enter(&self, call: &'static str) -> Running<'_> {
        let shared = &*self.0.0;
        let mut state = shared.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.polls.push(Poll { id, call, started: Instant::now(), is_reported: false });
        if std::mem::take(&mut state.is_idle) {
            shared.changed.notify_one();
        }
        Running { shared, id }
    }

    /// Runs a future of the driver, and records each of its polls.
    pub(crate) async fn watch<F: Future>(&self, call: &'static str, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let _running = self.enter(call);
            future.as_mut().poll(context)
        })
        .await
    }

    /// Returns the call that has blocked a thread for longest, if one has for too long.
    pub(crate) fn blocking(&self) -> Option<&'static str> {
        let shared = &*self.0.0;
        let state = shared.lock();
        let longest = state.polls.iter().min_by_key(|poll| poll.started)?;
        (longest.started.elapsed() >= shared.limit).then_some(longest.call)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(index) = state.polls.iter().position(|poll| poll.id == self.id) else { return };
        let Poll { call, started, is_reported, .. } = state.polls.swap_remove(index);
        drop(state);
        let elapsed = started.elapsed();
        if is_reported {
            (self.shared.notify)(Notice::Returned { call, elapsed });
        } else if elapsed >= self.shared.limit {
            (self.shared.notify)(Notice::Blocks { call, elapsed });
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at running code several times within the limit, until the watch is closed.
    fn run(&self) {
        let mut state = self.lock();
        let mut seen = state.next_id;
        while !state.is_closed {
            let overdue = |poll: &&mut Poll| !poll.is_reported && poll.started.elapsed() >= self.limit;
            if let Some(poll) = state.polls.iter_mut().find(overdue) {
                poll.is_reported = true;
                let notice = Notice::Blocks { call: poll.call, elapsed: poll.started.elapsed() };
                drop(state);
                (self.notify)(notice);
                state = self.lock();
            } else if state.polls.is_empty() && state.next_id == seen {
                state.is_idle = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.is_idle = false;
            } else {
                seen = state.next_id;
                let waited = self.changed.wait_timeout(state, self.limit / 4);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn log(notice: Notice) {
    match notice {
        Notice::Blocks { call, elapsed } => tracing::warn!(
            call,
            seconds = elapsed.as_secs(),
            "driver code blocks a thread of the runtime; use tokio::task::spawn_blocking for what waits"
        ),
        Notice::Returned { call, elapsed } => {
            tracing::info!(call, seconds = elapsed.as_secs(), "driver code has returned");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn start(limit: Duration) -> (CallWatch, mpsc::Receiver<Notice>) {
        let (sender, notices) = mpsc::channel();
        let watch = CallWatch::with(limit, move |notice| sender.send(notice).unwrap()).unwrap();
        (watch, notices)
    }

    /// The code blocks until the warning is there: a warning that came afterwards would hang the test.
    #[test]
    fn code_that_blocks_is_named_while_it_blocks_and_when_it_returns() {
        let (watch, notices) = start(SHORT);
        let running = watch.enter("prepare");
        let notice = notices.recv().unwrap();
        assert!(matches!(notice, Notice::Blocks { call: "prepare", elapsed } if elapsed >= SHORT), "{notice:?}");
        assert_eq!(watch.blocking(), Some("prepare"));
        drop(running);
        let notice = notices.recv().unwrap();
        assert!(matches!(notice, Notice::Returned { call: "prepare", elapsed } if elapsed >= SHORT), "{notice:?}");
        assert_eq!(watch.blocking(), None);
        // The thread is idle by now, or about to be: the next call wakes it.
        let _running = watch.enter("unprepare");
        assert!(matches!(notices.recv().unwrap(), Notice::Blocks { call: "unprepare", .. }));
    }

    #[tokio::test]
    async fn a_future_that_waits_does_not_block() {
        let (watch, notices) = start(Duration::from_secs(3600));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waiting = watch.watch("prepare", receiver);
        let polled = async {
            assert!(watch.0.0.lock().polls.is_empty(), "it waits, and its thread is free");
            sender.send(7).unwrap();
        };
        let (received, ()) = tokio::join!(waiting, polled);
        assert_eq!(received, Ok(7));
        assert!(watch.0.0.lock().polls.is_empty());
        drop(watch);
        assert_eq!(notices.recv(), Err(mpsc::RecvError), "nothing was noticed, and the thread has ended");
    }

    /// Waking the thread would cost more than most calls do.
    #[test]
    fn only_the_first_of_many_calls_wakes_the_thread() {
        let (watch, _notices) = start(Duration::from_secs(3600));
        let is_idle = || watch.0.0.lock().is_idle;
        while !is_idle() {
            thread::yield_now();
        }
        drop(watch.enter("prepare"));
        for _ in 0..100 {
            drop(watch.enter("unprepare"));
            assert!(!is_idle());
        }
    }
}
