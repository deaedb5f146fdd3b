//! Between a driver and the task that publishes: what is wanted goes in, how it goes comes out. Nobody waits here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::PublishError;
use super::overview::Facts;
use super::resources::DriverResources;

/// How publishing goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PublishStatus {
    /// The driver has published nothing yet.
    #[default]
    Nothing,
    /// What the driver published last is on its way.
    Pending,
    /// The API server has what the driver published last.
    Published,
    /// Something cannot be published, for this reason; it is tried again.
    Failing(String),
    /// A newer instance of the driver publishes.
    Standby,
}

/// Publishes resources; a clone is another handle to the same. For a task that looks for devices that come and go.
#[derive(Debug, Clone)]
pub struct ResourcePublisher {
    mailbox: Arc<Mailbox>,
    only_pool: Option<Arc<str>>,
}

impl ResourcePublisher {
    pub(super) fn new(mailbox: Arc<Mailbox>, only_pool: Option<&str>) -> Self {
        Self { mailbox, only_pool: only_pool.map(Into::into) }
    }

    /// Makes this what the driver has to offer, in place of what it published before; a pool that is not in it is removed.
    ///
    /// Does not wait. What goes wrong later is told to [`DraPlugin::handle_error`](crate::DraPlugin::handle_error), as a
    /// [`PublishError`]; [`Self::status`] tells how it goes. A pool that is not valid stays as it was, and does not keep the
    /// others from being published. An error here is that a pool is not the one of
    /// [`reconcile_pool_with_name`](crate::PluginBuilder::reconcile_pool_with_name): then nothing changes.
    pub fn publish(&self, resources: DriverResources) -> Result<(), PublishError> {
        if let Some(only) = &self.only_pool
            && let Some(pool) = resources.pools.keys().find(|pool| ***pool != **only)
        {
            return Err(PublishError::OtherPool { pool: pool.clone(), only: only.to_string() });
        }
        self.mailbox.put(resources);
        Ok(())
    }

    /// How publishing goes, and how it goes later.
    pub fn status(&self) -> watch::Receiver<PublishStatus> {
        self.mailbox.status.subscribe()
    }
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    waiting: Mutex<Option<DriverResources>>,
    arrived: Notify,
    status: watch::Sender<PublishStatus>,
    facts: Mutex<Facts>,
}

impl Mailbox {
    fn put(&self, resources: DriverResources) {
        let mut waiting = self.waiting();
        let replaced = waiting.replace(resources);
        self.status.send_replace(PublishStatus::Pending);
        drop(waiting);
        self.arrived.notify_one();
        // Thousands of devices that nobody will see: not under the lock.
        drop(replaced);
    }

    /// What was published since the last time.
    pub(super) async fn next(&self) -> DriverResources {
        loop {
            if let Some(resources) = self.waiting().take() {
                return resources;
            }
            self.arrived.notified().await;
        }
    }

    /// Whether something was published since the last time.
    pub(super) fn is_full(&self) -> bool {
        self.waiting().is_some()
    }

    /// How it goes.
    pub(super) fn status(&self) -> PublishStatus {
        self.status.borrow().clone()
    }

    /// What there is.
    pub(super) fn facts(&self) -> Facts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells how it goes, unless that is about what has been replaced, and what there is.
    pub(super) fn tell(&self, status: PublishStatus, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
        let waiting = self.waiting();
        if waiting.is_none() {
            self.status.send_if_modified(|now| {
                let is_new = *now != status;
                *now = status;
                is_new
            });
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<DriverResources>> {
        // Nothing panics while it is locked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
