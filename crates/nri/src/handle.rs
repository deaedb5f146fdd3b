//! A running plugin: the state of its connection, its counters, and its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::adjust::{ContainerUpdate, Updates};
use crate::context::Context;
use crate::counters::Counters;
use crate::error::{ConnectionError, UpdateError};
use crate::runtime::Runtime;
use crate::updater::Updater;

/// How long handlers may go on after the plugin was stopped.
const HANDLERS_GRACE: Duration = Duration::from_secs(30);
/// How long handlers may take to be cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// The state of the connection to the runtime.
#[derive(Debug, Clone)]
pub enum State {
    /// Not connected: pods start and stop without the plugin.
    Disconnected {
        /// Since when.
        since: Instant,
        /// Why. `None` before the first attempt.
        error: Option<Arc<ConnectionError>>,
    },
    /// Connected and registered. The runtime synchronizes when it has finished what it is doing, which can take as long as the
    /// grace period of a pod that is being stopped.
    Registered,
    /// Connected and synchronized: events arrive.
    Synchronized {
        /// The runtime.
        runtime: Arc<Runtime>,
    },
}

impl State {
    /// Returns whether events arrive.
    pub fn is_synchronized(&self) -> bool {
        matches!(self, Self::Synchronized { .. })
    }
}

/// A running plugin. Dropping it closes the connection.
#[derive(Debug)]
pub struct Handle {
    pub(crate) context: Arc<Context>,
    pub(crate) task: Option<JoinHandle<()>>,
}

impl Handle {
    /// Returns the state of the connection, to read and to wait for.
    ///
    /// ```no_run
    /// # async fn wait(handle: drakkar_nri::Handle) {
    /// let mut state = handle.state();
    /// let _ = state.wait_for(drakkar_nri::State::is_synchronized).await;
    /// # }
    /// ```
    pub fn state(&self) -> watch::Receiver<State> {
        self.context.state.subscribe()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.context.metrics.snapshot()
    }

    /// Asks the runtime to update containers. See [`Updater::update_containers`].
    pub async fn update_containers(&self, updates: Updates) -> Result<Vec<ContainerUpdate>, UpdateError> {
        self.context.updater.update_containers(updates).await
    }

    /// Returns what updates containers, to be shared.
    pub fn updater(&self) -> Updater {
        self.context.updater.clone()
    }

    /// Waits until the plugin has ended: it was stopped, or it was launched by a runtime that closed its connection.
    pub async fn ended(&self) {
        self.context.ended.cancelled().await;
    }

    /// Ends the connection, after calls in progress were answered. Then waits for handlers that were abandoned, up to 30 s, and
    /// cancels those that still run.
    pub async fn stop(mut self) {
        self.context.stop.cancel();
        if let Some(task) = self.task.take() {
            // It ends on its own; a panic in it was logged where it happened.
            let _ = task.await;
        }
        self.context.handlers.close();
        if tokio::time::timeout(HANDLERS_GRACE, self.context.handlers.wait()).await.is_err() {
            tracing::warn!(handlers = self.context.handlers.len(), "handlers cancelled");
            self.context.cancel_handlers.cancel();
            // One that blocks its thread cannot be cancelled.
            let _ = tokio::time::timeout(CANCEL_GRACE, self.context.handlers.wait()).await;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}
