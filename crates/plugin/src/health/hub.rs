//! The hub: starts the monitor when a kubelet first asks, starts it again when it fails, and ends it.
//!
//! Two tasks at most: the hub's own, which watches over leases and the monitor, and the monitor's, which is the driver's
//! code and may block. The first owns the second, and the hub owns the first: dropping the hub ends both.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drakkar_client::Backoff;
use futures::future::BoxFuture;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::board::{Board, End, Office};
use super::{HealthReporter, HealthSummary, Subscription};
use crate::driver::{BackgroundError, BoxError, Panicked};

/// Delays before a failed monitor is started again.
const RESTART: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.5, 1.0);
/// A monitor that ran for longer than this has recovered from earlier failures.
const RECOVERED: Duration = Duration::from_secs(30);

/// The driver's `watch_health`.
type Monitor = dyn Fn(HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync;

/// The hub is stopped, or being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver is shutting down")]
pub(crate) struct Stopped;

/// The monitor was still running at the deadline. It is left to itself, and dropped when it next awaits something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the health monitor did not end in time")]
pub(crate) struct MonitorStuck;

/// All that is known of the health of a driver's devices, and who finds it out.
pub(crate) struct HealthHub {
    shared: Arc<Shared>,
}

struct Shared {
    monitor: Box<Monitor>,
    office: Arc<Office>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    /// `None` before the first stream, and after a monitor that had nothing more to say.
    life: Option<Life>,
}

/// A monitor with its failures and new starts, until it has nothing more to say.
struct Life {
    board: Arc<Board>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl HealthHub {
    /// A hub whose monitor is not started yet. `on_error` is told of all that goes wrong, and is expected not to block.
    pub(crate) fn new(
        monitor: impl Fn(HealthReporter) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + 'static,
        on_error: impl Fn(BackgroundError) + Send + Sync + 'static,
    ) -> Self {
        let office = Arc::new(Office::new(on_error));
        Self { shared: Arc::new(Shared { monitor: Box::new(monitor), office, state: Mutex::default() }) }
    }

    /// Opens a stream, and starts the monitor if it does not run. Must be called in a tokio runtime.
    pub(crate) fn subscribe(&self) -> Result<Subscription, Stopped> {
        let mut state = self.shared.state();
        if state.is_stopped {
            return Err(Stopped);
        }
        let life = state.life.get_or_insert_with(|| self.shared.begin());
        Ok(Subscription::new(life.board.clone()))
    }

    /// Ends all streams at once and the monitor by the deadline. Later streams are refused.
    pub(crate) async fn stop(&self, deadline: Instant) -> Result<(), MonitorStuck> {
        // A caller that does not wait leaves a task that is on its way out.
        let Some(mut life) = self.end() else { return Ok(()) };
        match timeout_at(deadline, &mut life.task).await {
            Ok(_) => Ok(()),
            Err(_) => {
                life.task.abort();
                Err(MonitorStuck)
            }
        }
    }

    /// Figures for the metrics.
    pub(crate) fn summary(&self) -> HealthSummary {
        let board = self.shared.state().life.as_ref().map(|life| life.board.clone());
        self.shared.office.count(board.map(|board| board.summary()).unwrap_or_default())
    }

    fn end(&self) -> Option<Life> {
        let mut state = self.shared.state();
        state.is_stopped = true;
        let life = state.life.take()?;
        life.board.end(End::Stopped);
        life.stop.cancel();
        Some(life)
    }
}

impl Drop for HealthHub {
    fn drop(&mut self) {
        if let Some(life) = self.end() {
            life.task.abort();
        }
    }
}

impl fmt::Debug for HealthHub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HealthHub").field("summary", &self.summary()).finish_non_exhaustive()
    }
}

impl Shared {
    fn begin(self: &Arc<Self>) -> Life {
        let board = Arc::new(Board::new(self.office.clone()));
        let stop = CancellationToken::new();
        let task = tokio::spawn(self.clone().live(board.clone(), stop.clone()));
        Life { board, stop, task }
    }

    async fn live(self: Arc<Self>, board: Arc<Board>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.watch(&board, &mut tasks) => {}
            never = board.keep_leases() => match never {},
        }
        // The end of the monitor, however slow, is what `HealthHub::stop` waits for.
        tasks.shutdown().await;
    }

    /// Runs the monitor until it has nothing more to say.
    async fn watch(self: &Arc<Self>, board: &Arc<Board>, tasks: &mut JoinSet<Result<(), BoxError>>) {
        let mut failures = 0;
        loop {
            board.wanted().await;
            let started = Instant::now();
            let reporter = HealthReporter::new(board);
            let closed = reporter.token().clone();
            // Whatever ends this function closes the reporter.
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
                    self.forget(board);
                    board.finish(&closed);
                    return;
                }
            };
            board.fail(error, &closed);
            failures = if started.elapsed() >= RECOVERED { 1 } else { failures + 1 };
            sleep(RESTART.delay(failures)).await;
        }
    }

    /// From here on a new stream begins a new life.
    fn forget(&self, board: &Arc<Board>) {
        let mut state = self.state();
        if state.life.as_ref().is_some_and(|life| Arc::ptr_eq(&life.board, board)) {
            state.life = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
