//! The hub: starts the monitor with the first stream, restarts it when it fails, and stops it.
//!
//! It has at most two tasks: its own, which watches the leases and supervises the monitor, and the monitor's, which is the
//! driver's code and may block. The first owns the second, and the hub owns the first: dropping the hub ends both.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_client::Backoff;
use futures::future::BoxFuture;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::shared_table::{HubContext, SharedTable, StreamEnd};
use super::table::DeviceState;
use super::{HealthReporter, HealthSummary, Subscription};
use crate::background::BackgroundError;
use crate::error::{BoxError, Panicked};

/// The delays before a failed monitor is restarted.
const RESTART: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.5, 1.0);
/// The backoff starts over after a monitor has run for this long.
const BACKOFF_RESET: Duration = Duration::from_secs(30);

/// The driver's health monitor.
type Monitor = dyn Fn(HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync;

/// The hub is stopped or stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver is shutting down")]
pub(crate) struct Stopped;

/// The monitor was still running at the deadline. It is aborted, which takes effect when it next awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the health monitor did not end in time")]
pub(crate) struct StopTimeout;

/// The health of a driver's devices, and the monitor that reports it.
pub(crate) struct HealthHub {
    shared: Arc<Shared>,
}

struct Shared {
    monitor: Box<Monitor>,
    context: Arc<HubContext>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    /// `None` before the first stream, and after the monitor returned.
    run: Option<MonitorRun>,
}

/// A run of the monitor, from its first start until it returns, restarts after failures included.
struct MonitorRun {
    table: Arc<SharedTable>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl HealthHub {
    /// Creates a hub. Its monitor starts with the first stream. `on_error` gets all errors and must not block.
    pub(crate) fn new(
        monitor: impl Fn(HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static,
        on_error: impl Fn(BackgroundError) + Send + Sync + 'static,
    ) -> Self {
        let context = Arc::new(HubContext::new(on_error));
        Self { shared: Arc::new(Shared { monitor: Box::new(monitor), context, state: Mutex::default() }) }
    }

    /// Opens a stream and starts the monitor unless it is running. Must be called within a tokio runtime.
    pub(crate) fn subscribe(&self) -> Result<Subscription, Stopped> {
        let mut state = self.shared.state();
        if state.is_stopped {
            return Err(Stopped);
        }
        let run = state.run.get_or_insert_with(|| self.shared.start_run());
        Ok(Subscription::new(run.table.clone()))
    }

    /// Ends all streams at once and the monitor by the deadline. Later streams are refused.
    pub(crate) async fn stop(&self, deadline: Instant) -> Result<(), StopTimeout> {
        // If this future is dropped early, the task still ends by itself: its token is cancelled.
        let Some(mut run) = self.end_run() else { return Ok(()) };
        match timeout_at(deadline, &mut run.task).await {
            Ok(_) => Ok(()),
            Err(_elapsed) => {
                run.task.abort();
                Err(StopTimeout)
            }
        }
    }

    /// Returns the figures for the metrics.
    pub(crate) fn summary(&self) -> HealthSummary {
        let table = self.shared.state().run.as_ref().map(|run| run.table.clone());
        self.shared.context.add_counters(table.map(|table| table.summary()).unwrap_or_default())
    }

    /// Returns the devices that are not healthy, at most `limit`, in the order of their names, and their number.
    pub(crate) fn not_healthy(&self, limit: usize) -> (Vec<DeviceState>, usize) {
        let table = self.shared.state().run.as_ref().map(|run| run.table.clone());
        let (mut devices, total) = table.map(|table| table.not_healthy(limit)).unwrap_or_default();
        devices.sort_by(|a, b| (&a.pool_name, &a.device_name).cmp(&(&b.pool_name, &b.device_name)));
        (devices, total)
    }

    fn end_run(&self) -> Option<MonitorRun> {
        let mut state = self.shared.state();
        state.is_stopped = true;
        let run = state.run.take()?;
        run.table.end_streams(StreamEnd::Stopped);
        run.stop.cancel();
        Some(run)
    }
}

impl Drop for HealthHub {
    fn drop(&mut self) {
        if let Some(run) = self.end_run() {
            run.task.abort();
        }
    }
}

impl fmt::Debug for HealthHub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HealthHub").field("summary", &self.summary()).finish_non_exhaustive()
    }
}

impl Shared {
    fn start_run(self: &Arc<Self>) -> MonitorRun {
        let table = Arc::new(SharedTable::new(self.context.clone()));
        let stop = CancellationToken::new();
        let task = tokio::spawn(self.clone().run(table.clone(), stop.clone()));
        MonitorRun { table, stop, task }
    }

    /// The hub's task: supervises the monitor and watches the leases until the monitor returns or the hub stops.
    async fn run(self: Arc<Self>, table: Arc<SharedTable>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.supervise(&table, &mut tasks) => {}
            never = table.watch_leases() => match never {},
        }
        // `HealthHub::stop` waits for the end of the monitor's task.
        tasks.shutdown().await;
    }

    /// Runs the monitor until it returns, and restarts it with backoff when it fails or panics.
    async fn supervise(self: &Arc<Self>, table: &Arc<SharedTable>, tasks: &mut JoinSet<Result<(), BoxError>>) {
        let mut failures = 0;
        loop {
            table.wait_for_stream().await;
            let started = Instant::now();
            let reporter = HealthReporter::new(table);
            let closed = reporter.token().clone();
            // Closes the reporter also when this future is dropped.
            let _closed = closed.clone().drop_guard();
            let shared = self.clone();
            tasks.spawn(async move { (shared.monitor)(reporter).await });
            let error = match tasks.join_next().await {
                Some(Ok(Err(error))) => error,
                Some(Err(error)) => match error.try_into_panic() {
                    Ok(panic) => Panicked::from(&*panic).into(),
                    Err(error) => error.into(),
                },
                Some(Ok(Ok(()))) | None => {
                    self.clear_run(table);
                    table.finish(&closed);
                    return;
                }
            };
            table.fail(error, &closed);
            failures = if started.elapsed() >= BACKOFF_RESET { 1 } else { failures + 1 };
            sleep(RESTART.delay(failures)).await;
        }
    }

    /// Clears a finished run, so that the next stream starts a new one.
    fn clear_run(&self, table: &Arc<SharedTable>) {
        let mut state = self.state();
        if state.run.as_ref().is_some_and(|run| Arc::ptr_eq(&run.table, table)) {
            state.run = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
