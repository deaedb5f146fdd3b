//! A call of the runtime, as its handler sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::runtime::Runtime;
use crate::updater::Updater;

/// A call of the runtime: how long it waits, and whether it still does.
#[derive(Debug, Clone)]
pub struct Call(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    deadline: tokio::time::Instant,
    budget: Duration,
    runtime: Arc<Runtime>,
    abandoned: watch::Sender<Option<Abandoned>>,
    updater: Updater,
}

/// Why the runtime no longer waits for a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abandoned {
    /// The deadline passed, and the runtime was answered with an error: the pod or container fails, and the runtime undoes it.
    Deadline,
    /// The connection was lost. The pod or container may go on without the plugin's answer.
    Disconnected,
}

impl Call {
    pub(crate) fn new(budget: Duration, runtime: Arc<Runtime>, updater: Updater) -> Self {
        let deadline = tokio::time::Instant::now() + budget;
        Self(Arc::new(Inner { deadline, budget, runtime, abandoned: watch::Sender::new(None), updater }))
    }

    /// Returns when the runtime is answered with an error.
    pub fn deadline(&self) -> Instant {
        self.0.deadline.into_std()
    }

    /// Returns what is left until the deadline.
    pub fn remaining(&self) -> Duration {
        self.0.deadline.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Returns the runtime that calls.
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// Returns whether the runtime no longer waits, and why.
    pub fn abandonment(&self) -> Option<Abandoned> {
        *self.0.abandoned.borrow()
    }

    /// Waits until the runtime no longer waits. For `select!` beside the work of a handler that can roll back.
    pub async fn abandoned(&self) -> Abandoned {
        let mut abandoned = self.0.abandoned.subscribe();
        loop {
            if let Some(reason) = *abandoned.borrow_and_update() {
                return reason;
            }
            if abandoned.changed().await.is_err() {
                // Not reached: the sender is in `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns what updates containers outside of an event. Not in a handler, but in a task that it spawns.
    pub fn updater(&self) -> Updater {
        self.0.updater.clone()
    }

    pub(crate) fn abandon(&self, reason: Abandoned) {
        self.0.abandoned.send_replace(Some(reason));
    }

    pub(crate) fn budget(&self) -> Duration {
        self.0.budget
    }

    pub(crate) fn expires(&self) -> tokio::time::Sleep {
        tokio::time::sleep_until(self.0.deadline)
    }
}
