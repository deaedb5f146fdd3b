//! What all connections of a plugin share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::counters::Metrics;
use crate::event::Events;
use crate::handle::State;
use crate::handler::Handler;
use crate::slots::Slots;
use crate::updater::Updater;

/// What all connections of a plugin share.
pub(crate) struct Context {
    pub(crate) name: String,
    /// Two digits.
    pub(crate) index: String,
    pub(crate) events: Events,
    pub(crate) registration_timeout: Duration,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) updater: Updater,
    pub(crate) slots: Slots,
    pub(crate) state: watch::Sender<State>,
    /// The handlers that run, also those of connections that were lost.
    pub(crate) handlers: TaskTracker,
    pub(crate) cancel_handlers: CancellationToken,
    /// The plugin is to end.
    pub(crate) stop: CancellationToken,
    /// The plugin has ended.
    pub(crate) ended: CancellationToken,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("index", &self.index).finish_non_exhaustive()
    }
}
