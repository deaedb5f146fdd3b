//! Whether the runtime that the driver runs on still runs tasks.
//!
//! The endpoint has a thread of its own, so an answer alone does not tell that the driver works. Whenever somebody asks, and at
//! most once a second, a task is given to the driver's runtime; while one has not been run for long, the driver is not alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The time between two tasks.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a task may wait to be run. A driver whose code blocks its thread for some seconds is slow and not dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks a runtime whether it runs tasks. A clone asks for the same.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    runtime: Handle,
    period: Duration,
    patience: Duration,
    last: Arc<Mutex<Last>>,
}

/// The last task that was given to the runtime.
#[derive(Debug)]
struct Last {
    asked: Instant,
    task: Option<JoinHandle<()>>,
}

impl Pulse {
    /// Of this runtime.
    pub(crate) fn of(runtime: Handle) -> Self {
        Self::with(runtime, PERIOD, PATIENCE)
    }

    pub(super) fn with(runtime: Handle, period: Duration, patience: Duration) -> Self {
        Self { runtime, period, patience, last: Arc::new(Mutex::new(Last { asked: Instant::now(), task: None })) }
    }

    /// Fails with the reason if the runtime has stood still for too long.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = last.asked.elapsed();
        let is_waiting = last.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_waiting && waited > self.patience {
            return Err(format!("the driver's runtime has run no task for {} s", waited.as_secs()));
        }
        if !is_waiting && waited >= self.period {
            *last = Last { asked: Instant::now(), task: Some(self.runtime.spawn(async {})) };
        }
        Ok(())
    }
}
