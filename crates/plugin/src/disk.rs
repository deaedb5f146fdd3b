//! Where file work runs: on threads of its own, for which the runtime's thread waits a moment and no longer.
//!
//! Nothing on the way of a call syncs, so the files of a claim are a few system calls into the page cache. But any of them can
//! wait for a disk for as long as that takes, or for a lock that a container holds, and most drivers have one thread for
//! everything. So work is handed to a [`worker`]. The thread that asks waits for it at most [`WAIT`], which is cheaper
//! than to be woken through the runtime, and then goes on with other tasks until the work is done.
//!
//! Where all files are in memory (tmpfs) there is no disk to wait for, and work that takes no lock is done right where it is
//! asked for ([`Disk::run_brief`]), which saves the way to another thread.
//!
//! While a piece of work is late, and for [`DISTRUST`] after one that had to wait, the disk is not trusted: work is handed
//! over without any waiting. Each piece has a thread for itself, up to [`THREADS`], so none is behind one that hangs.

mod medium;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub(crate) use self::medium::Medium;
use self::worker::{Work, Workers};
use crate::driver::Panicked;

/// The longest time for which the thread that asks stands still: ten times what the files of a claim need.
const WAIT: Duration = Duration::from_millis(1);
/// How long the disk is not trusted after a piece of work that had to wait for longer than that.
const DISTRUST: Duration = Duration::from_secs(2);
/// The number of pieces of work that run, or hang, at once. More wait for their turn.
const THREADS: usize = 32;
/// The standing still that uses up one of the 128 units of a task's budget, after which others have their turn.
const BUDGET_UNIT: Duration = Duration::from_micros(16);

/// Runs file work.
#[derive(Debug)]
pub(crate) struct Disk {
    medium: Medium,
    workers: Workers,
    threads: Arc<Semaphore>,
    trust: Arc<Trust>,
}

/// File work did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("file work of the claim panicked: {0}")]
    Panicked(#[source] Panicked),
    #[error("hand file work of the claim to a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("file work of the claim was given up")]
    GivenUp,
}

impl Default for Disk {
    fn default() -> Self {
        Self::on(Medium::Disk)
    }
}

impl Disk {
    /// For files on a medium.
    pub(crate) fn on(medium: Medium) -> Self {
        Self { medium, workers: Workers::default(), threads: Arc::new(Semaphore::new(THREADS)), trust: Arc::default() }
    }

    /// Runs work that takes no lock which a container may hold; at once and on this thread, if all files are in memory.
    pub(crate) async fn run_brief<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskError> {
        if self.medium == Medium::Disk || !self.trust.is_given(Instant::now()) {
            return self.run(work).await;
        }
        let done = self.trust.watch(work);
        // Many claims in one call do not keep everybody else waiting.
        tokio::task::consume_budget().await;
        done
    }

    /// Runs work to its end, also if the caller goes away after it has begun.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskError> {
        // Many claims in one call do not keep everybody else waiting.
        tokio::task::consume_budget().await;
        let thread = match self.threads.clone().try_acquire_owned() {
            Ok(thread) => thread,
            // The semaphore is never closed.
            Err(_all_work) => self.threads.clone().acquire_owned().await.map_err(|_closed| DiskError::GivenUp)?,
        };
        let (done, mut outcome) = oneshot::channel();
        let piece = Piece { work: Some(work), outcome: None, done, trust: self.trust.clone(), thread: Some(thread) };
        let worker = self.workers.take().map_err(DiskError::Thread)?;
        let begun = Instant::now();
        if !self.trust.is_given(begun) {
            worker.run(Box::new(piece), self.trust.late()).map_err(DiskError::Thread)?;
        } else if let Some(worker) =
            worker.run_within(Box::new(piece), WAIT, || self.trust.late()).map_err(DiskError::Thread)?
        {
            self.workers.give_back(worker);
            let finished = outcome.try_recv();
            for _ in 0..begun.elapsed().as_micros() / BUDGET_UNIT.as_micros() {
                tokio::task::consume_budget().await;
            }
            return finished.unwrap_or(Err(DiskError::GivenUp));
        }
        outcome.await.unwrap_or(Err(DiskError::GivenUp))
    }
}

/// A piece of work, and who is to have its outcome.
struct Piece<W, T> {
    work: Option<W>,
    outcome: Option<Result<T, DiskError>>,
    done: oneshot::Sender<Result<T, DiskError>>,
    trust: Arc<Trust>,
    /// The permit for the thread that it runs on.
    thread: Option<OwnedSemaphorePermit>,
}

impl<T: Send, W: FnOnce() -> T + Send> Work for Piece<W, T> {
    fn run(&mut self) {
        self.outcome = self.work.take().map(|work| self.trust.watch(work));
        self.thread = None;
    }

    fn deliver(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            // Nobody may be there any more.
            self.done.send(outcome).ok();
        }
    }
}

/// Whether the disk can be expected to answer at once.
#[derive(Debug)]
struct Trust {
    since: Instant,
    /// Until when it is not trusted, in milliseconds after `since`.
    distrusted_until: AtomicU64,
    /// The number of pieces of work that run and that no thread waits for.
    late: AtomicUsize,
}

/// A piece of work that runs and that no thread waits for.
#[derive(Debug)]
struct Late(Arc<Trust>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self { since: Instant::now(), distrusted_until: AtomicU64::new(0), late: AtomicUsize::new(0) }
    }
}

impl Trust {
    fn is_given(&self, now: Instant) -> bool {
        self.late.load(Ordering::Relaxed) == 0 && self.millis(now) >= self.distrusted_until.load(Ordering::Relaxed)
    }

    fn late(self: &Arc<Self>) -> Late {
        self.late.fetch_add(1, Ordering::Relaxed);
        Late(self.clone())
    }

    /// Does work, and looks whether it had to wait. Work that only took long because others had the processor had not.
    fn watch<T>(&self, work: impl FnOnce() -> T) -> Result<T, DiskError> {
        let begun = Instant::now();
        let waits_before = waits();
        let done = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| DiskError::Panicked(Panicked::from(&*panic)));
        let took = begun.elapsed();
        if took > WAIT && waits() != waits_before {
            self.distrust(took);
        }
        done
    }

    fn distrust(&self, took: Duration) {
        let now = Instant::now();
        let until = self.millis(now + DISTRUST);
        if self.distrusted_until.fetch_max(until, Ordering::Relaxed) <= self.millis(now) {
            let millis = took.as_millis();
            tracing::debug!(millis, "file work waited, not waiting for more of it for a while");
        }
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from((at - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

/// How often this thread has waited for something. The call cannot fail on Linux; if it did, nothing would be seen to wait.
fn waits() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}
