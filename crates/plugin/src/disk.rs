//! Runs file work on its own threads, and blocks the runtime's thread only for a moment.
//!
//! No call syncs files, so the files of a claim take a few system calls into the page cache. But any of these can block on a
//! disk for an unlimited time, or on a lock that a container holds, and most drivers have a single runtime thread. So work is
//! passed to a [`worker`]. The calling thread blocks for at most [`MAX_BLOCKING_WAIT`], which is cheaper than being woken through
//! the runtime, and then runs other tasks until the work is done.
//!
//! If all files are in memory (tmpfs) there is no disk to wait for, and work that takes no lock runs directly on the calling
//! thread ([`Disk::run_brief`]), without the cost of switching threads.
//!
//! While several calls are in flight, brief work goes into a [`queue`] instead, whatever the files are on: a thread takes it in turn
//! while this one goes on with other calls. On two processors that is half as many claims again.
//!
//! While a job is late, and for [`SLOW_PERIOD`] after a job that blocked, the disk counts as slow: work is passed on without
//! blocking at all. Each job has its own thread, up to [`MAX_THREADS`], so no job queues behind one that hangs.

mod medium;
mod queue;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::Either;
use nix::sys::resource::{UsageWho, getrusage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub(crate) use self::medium::Medium;
use self::queue::Queue;
use self::worker::{Work, Workers};
use crate::error::Panicked;

/// The maximum time for which the calling thread blocks: ten times what the files of a claim take.
const MAX_BLOCKING_WAIT: Duration = Duration::from_millis(1);
/// How long the disk counts as slow after a job that blocked for longer than [`MAX_BLOCKING_WAIT`].
const SLOW_PERIOD: Duration = Duration::from_secs(2);
/// How long brief work is examined for whether it blocks, after some that took longer than [`MAX_BLOCKING_WAIT`].
const EXAMINED_PERIOD: Duration = Duration::from_secs(60);
/// The maximum number of jobs that run, or hang, concurrently. Further jobs wait.
const MAX_THREADS: usize = 32;
/// The number of calls in flight from which on brief work is queued. With fewer, the thread would be woken for nearly every piece.
const CONCURRENT_CALLS: usize = 3;
/// The blocking time that is charged as one of the 128 units of a task's cooperative budget.
const BUDGET_UNIT: Duration = Duration::from_micros(16);

/// Runs file work on worker threads.
#[derive(Debug)]
pub(crate) struct Disk {
    medium: Medium,
    workers: Workers,
    threads: Arc<Semaphore>,
    latency: Arc<LatencyMonitor>,
    queue: Queue,
    /// The number of calls in flight.
    calls: AtomicUsize,
}

/// A call in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct CallInFlight<'a>(&'a AtomicUsize);

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// File work that did not complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    #[error("file work of the claim panicked: {0}")]
    Panicked(#[source] Panicked),
    #[error("pass file work of the claim to a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("file work of the claim was dropped")]
    Dropped,
}

impl Default for Disk {
    fn default() -> Self {
        Self::on(Medium::Disk)
    }
}

impl Disk {
    /// Creates a runner for files on a medium.
    pub(crate) fn on(medium: Medium) -> Self {
        let threads = Arc::new(Semaphore::new(MAX_THREADS));
        let queue = Queue::new(threads.clone());
        Self {
            medium,
            workers: Workers::default(),
            threads,
            latency: Arc::default(),
            queue,
            calls: AtomicUsize::new(0),
        }
    }

    /// Counts a call that will have file work.
    pub(crate) fn count_call(&self) -> CallInFlight<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        CallInFlight(&self.calls)
    }

    /// Runs work that takes no lock that a container may hold. While few calls are in flight it runs directly on this thread if
    /// all files are in memory.
    pub(crate) fn run_brief<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, DiskError>> + Send {
        // Not an `async fn`, which has its arguments twice: callers move these futures, and the work is large.
        let is_fast = self.latency.is_fast(Instant::now());
        if is_fast && self.calls.load(Ordering::Relaxed) >= CONCURRENT_CALLS {
            return Either::Left(Either::Left(self.queue(work)));
        }
        if self.medium == Medium::Disk || !is_fast {
            return Either::Left(Either::Right(self.run(work)));
        }
        Either::Right(async move {
            let done = self.latency.measure_brief(work);
            // A call with many claims must not starve other tasks.
            tokio::task::consume_budget().await;
            done
        })
    }

    /// Queues work, which is completed even if the returned future is dropped.
    fn queue<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, DiskError>> + Send {
        let (done, outcome) = oneshot::channel();
        let latency = self.latency.clone();
        let medium = self.medium;
        let queued = self.queue.push(Box::new(move || {
            let finished = match medium {
                Medium::Disk => latency.measure(work),
                Medium::Memory => latency.measure_brief(work),
            };
            // The caller may be gone.
            done.send(finished).ok();
        }));
        async move {
            queued.map_err(DiskError::Thread)?;
            outcome.await.unwrap_or(Err(DiskError::Dropped))
        }
    }

    /// Runs work to completion, even if the returned future is dropped after the work has started.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, DiskError>> + Send {
        let (done, outcome) = oneshot::channel();
        let job = Job { work: Some(work), outcome: None, done, latency: self.latency.clone(), thread: None };
        self.pass_on(Box::new(job), outcome)
    }

    /// Passes a job to a thread, and waits until it is done.
    async fn pass_on<T: Send + 'static>(
        &self,
        mut job: Box<dyn Work>,
        mut outcome: oneshot::Receiver<Result<T, DiskError>>,
    ) -> Result<T, DiskError> {
        // A call with many claims must not starve other tasks.
        tokio::task::consume_budget().await;
        let thread = match self.threads.clone().try_acquire_owned() {
            Ok(thread) => thread,
            // The semaphore is never closed.
            Err(_all_work) => self.threads.clone().acquire_owned().await.map_err(|_closed| DiskError::Dropped)?,
        };
        job.set_thread(thread);
        let worker = self.workers.take().map_err(DiskError::Thread)?;
        let started = Instant::now();
        if !self.latency.is_fast(started) {
            worker.run(job, self.latency.mark_late()).map_err(DiskError::Thread)?;
        } else if let Some(worker) =
            worker.run_within(job, MAX_BLOCKING_WAIT, || self.latency.mark_late()).map_err(DiskError::Thread)?
        {
            self.workers.give_back(worker);
            let finished = outcome.try_recv();
            for _ in 0..started.elapsed().as_micros() / BUDGET_UNIT.as_micros() {
                tokio::task::consume_budget().await;
            }
            return finished.unwrap_or(Err(DiskError::Dropped));
        }
        outcome.await.unwrap_or(Err(DiskError::Dropped))
    }
}

/// A unit of work with the channel for its outcome.
struct Job<W, T> {
    work: Option<W>,
    outcome: Option<Result<T, DiskError>>,
    done: oneshot::Sender<Result<T, DiskError>>,
    latency: Arc<LatencyMonitor>,
    /// The permit for its thread, once it has one.
    thread: Option<OwnedSemaphorePermit>,
}

impl<T: Send, W: FnOnce() -> T + Send> Work for Job<W, T> {
    fn set_thread(&mut self, thread: OwnedSemaphorePermit) {
        self.thread = Some(thread);
    }

    fn run(&mut self) {
        self.outcome = self.work.take().map(|work| self.latency.measure(work));
        self.thread = None;
    }

    fn deliver(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            // The caller may be gone.
            self.done.send(outcome).ok();
        }
    }
}

/// Tracks whether file work can be expected to complete without blocking.
#[derive(Debug)]
struct LatencyMonitor {
    since: Instant,
    /// Until when the disk counts as slow, in milliseconds after `since`.
    slow_until: AtomicU64,
    /// Until when brief work is examined for whether it blocks, in milliseconds after `since`.
    examined_until: AtomicU64,
    /// The number of running jobs that no thread is blocked on.
    late: AtomicUsize,
}

/// A running job that no thread is blocked on.
#[derive(Debug)]
struct Late(Arc<LatencyMonitor>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for LatencyMonitor {
    fn default() -> Self {
        let [slow_until, examined_until] = [0, 0].map(AtomicU64::new);
        Self { since: Instant::now(), slow_until, examined_until, late: AtomicUsize::new(0) }
    }
}

impl LatencyMonitor {
    fn is_fast(&self, now: Instant) -> bool {
        self.late.load(Ordering::Relaxed) == 0 && self.millis(now) >= self.slow_until.load(Ordering::Relaxed)
    }

    fn mark_late(self: &Arc<Self>) -> Late {
        self.late.fetch_add(1, Ordering::Relaxed);
        Late(self.clone())
    }

    /// Runs work, and marks the disk as slow if the work blocked. Work that was only slow because the CPU was busy does not
    /// count.
    fn measure<T>(&self, work: impl FnOnce() -> T) -> Result<T, DiskError> {
        let waits_before = waits();
        let (done, took) = timed(work);
        if took > MAX_BLOCKING_WAIT && waits() != waits_before {
            self.mark_slow(took);
        }
        done
    }

    /// Runs work that is not expected to block. Whether work blocked costs two system calls to find out, which are only made for a
    /// while after work that took long: usually other processes had the CPU.
    fn measure_brief<T>(&self, work: impl FnOnce() -> T) -> Result<T, DiskError> {
        let now = self.millis(Instant::now());
        if now < self.examined_until.load(Ordering::Relaxed) {
            return self.measure(work);
        }
        let (done, took) = timed(work);
        if took > MAX_BLOCKING_WAIT {
            let period = u64::try_from(EXAMINED_PERIOD.as_millis()).unwrap_or(u64::MAX);
            self.examined_until.fetch_max(now.saturating_add(period), Ordering::Relaxed);
        }
        done
    }

    fn mark_slow(&self, took: Duration) {
        let now = Instant::now();
        let until = self.millis(now + SLOW_PERIOD);
        if self.slow_until.fetch_max(until, Ordering::Relaxed) <= self.millis(now) {
            let millis = took.as_millis();
            tracing::debug!(millis, "file work blocked, the disk counts as slow");
        }
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from((at - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Runs work, turns a panic into an error, and returns how long it took.
fn timed<T>(work: impl FnOnce() -> T) -> (Result<T, DiskError>, Duration) {
    let started = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| DiskError::Panicked(Panicked::from(&*panic)));
    (done, started.elapsed())
}

/// Returns how often this thread has blocked. The call cannot fail on Linux; if it did, work would never count as blocked.
fn waits() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}
