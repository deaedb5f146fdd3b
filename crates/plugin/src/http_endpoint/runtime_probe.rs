//! A check whether the driver's runtime still runs tasks.
//!
//! The endpoint has its own thread, so a response alone does not prove that the driver works. Each health check spawns a
//! task on the driver's runtime, at most once a second. If it does not run in time, the driver is not alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::call_watch::CallWatch;

/// The minimum interval between two tasks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a task may wait to run. A driver that blocks its threads for some seconds is slow, not dead.
const TASK_TIMEOUT: Duration = Duration::from_secs(10);

/// A runtime has not run a task in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver's runtime has run no task for {} s{}", .elapsed.as_secs(), culprit(*.call))]
pub(super) struct RuntimeBlocked {
    elapsed: Duration,
    /// The call of the driver that blocks a thread.
    call: Option<&'static str>,
}

fn culprit(call: Option<&'static str>) -> String {
    call.map_or_else(String::new, |call| format!(": the driver's {call} blocks a thread"))
}

impl RuntimeBlocked {
    /// Names the call that blocks the runtime, if it is known.
    pub(super) fn by(self, calls: Option<&CallWatch>) -> Self {
        Self { call: calls.and_then(CallWatch::blocking), ..self }
    }
}

/// Checks whether a runtime runs tasks. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeProbe {
    runtime: Handle,
    interval: Duration,
    timeout: Duration,
    last: Arc<Mutex<LastTask>>,
}

/// The last task that was spawned on the runtime.
#[derive(Debug)]
struct LastTask {
    spawned: Instant,
    task: Option<JoinHandle<()>>,
}

impl RuntimeProbe {
    /// Creates a probe of a runtime.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self::with_timeout(runtime, INTERVAL, TASK_TIMEOUT)
    }

    pub(super) fn with_timeout(runtime: Handle, interval: Duration, timeout: Duration) -> Self {
        let last = LastTask { spawned: Instant::now(), task: None };
        Self { runtime, interval, timeout, last: Arc::new(Mutex::new(last)) }
    }

    /// Fails if the last task did not run in time.
    pub(super) fn check(&self) -> Result<(), RuntimeBlocked> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = last.spawned.elapsed();
        let is_pending = last.task.as_ref().is_some_and(|task| !task.is_finished());
        if is_pending && elapsed > self.timeout {
            return Err(RuntimeBlocked { elapsed, call: None });
        }
        if !is_pending && elapsed >= self.interval {
            *last = LastTask { spawned: Instant::now(), task: Some(self.runtime.spawn(async {})) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_blocks_the_runtime_is_named() {
        let blocked = RuntimeBlocked { elapsed: Duration::from_secs(12), call: None };
        let text = "the driver's runtime has run no task for 12 s";
        let watch = CallWatch::with(Duration::ZERO, |_| {}).unwrap();
        assert_eq!(blocked.by(Some(&watch)).to_string(), text, "no code of the driver runs");
        let _running = watch.enter("prepare");
        assert_eq!(blocked.by(Some(&watch)).to_string(), format!("{text}: the driver's prepare blocks a thread"));
        assert_eq!(blocked.by(None).to_string(), text);
    }
}
