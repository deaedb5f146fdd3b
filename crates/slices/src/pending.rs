//! The hand-over between a driver and the publisher's task: resources to publish go in, the status comes out. Neither side
//! ever waits for the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::PublishError;
use super::overview::Summary;
use super::resources::DriverResources;

/// The state of publishing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PublishStatus {
    /// Nothing has been published yet.
    #[default]
    Nothing,
    /// The resources that were published last are being written.
    Pending,
    /// The API server stores the resources that were published last.
    Published,
    /// Publishing fails with this error. It is retried, unless the resources are invalid.
    Failing(String),
    /// A newer instance of the driver on this node publishes.
    Standby,
    /// The publisher was dropped or has failed. Slices stay as they are.
    Stopped,
}

/// A handle to publish resources with. Clones are handles to the same publisher.
#[derive(Debug, Clone)]
pub struct ResourcePublisher {
    pending: Arc<PendingPublish>,
    only_pool: Option<Arc<str>>,
}

impl ResourcePublisher {
    pub(super) fn new(pending: Arc<PendingPublish>, only_pool: Option<&str>) -> Self {
        Self { pending, only_pool: only_pool.map(Into::into) }
    }

    /// Publishes resources in place of those that were published before. Slices of pools that are no longer among them are
    /// deleted; without any pool, all slices are.
    ///
    /// Returns at once. [`Self::status`] reports the progress, and errors go to the
    /// [`Observer`](crate::Observer::publish_failed). A pool that is not valid stays as it was and does not hold up the
    /// others.
    ///
    /// # Errors
    ///
    /// [`PublishError::OtherPool`] if the publisher is limited to one pool and these resources have another, and
    /// [`PublishError::Stopped`] if the [`Publisher`](crate::Publisher) has ended. Nothing changes then.
    pub fn publish(&self, resources: DriverResources) -> Result<(), PublishError> {
        if let Some(only) = &self.only_pool
            && let Some(pool) = resources.pools.keys().find(|pool| ***pool != **only)
        {
            return Err(PublishError::OtherPool { pool: pool.clone(), only: only.to_string() });
        }
        self.pending.put(resources)
    }

    /// Returns the current status, and a way to wait for another.
    ///
    /// [`Self::publish`] sets it to [`PublishStatus::Pending`] before it returns, so a
    /// [`PublishStatus::Published`] that is seen afterwards is about the new resources.
    pub fn status(&self) -> watch::Receiver<PublishStatus> {
        self.pending.status.subscribe()
    }
}

/// The resources that wait for the publisher's task, if any: only the latest count.
#[derive(Debug, Default)]
pub(super) struct PendingPublish {
    slot: Mutex<Slot>,
    arrived: Notify,
    status: watch::Sender<PublishStatus>,
    /// Whether resources of this driver were ever published, by this instance or a newer one.
    was_published: AtomicBool,
    summary: Mutex<Summary>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Full(DriverResources),
    /// The task has ended.
    Stopped,
}

impl PendingPublish {
    fn put(&self, resources: DriverResources) -> Result<(), PublishError> {
        let mut slot = self.slot();
        if matches!(*slot, Slot::Stopped) {
            return Err(PublishError::Stopped);
        }
        let replaced = std::mem::replace(&mut *slot, Slot::Full(resources));
        self.status.send_replace(PublishStatus::Pending);
        drop(slot);
        self.arrived.notify_one();
        // Freeing thousands of devices takes a while: not under the lock.
        drop(replaced);
        Ok(())
    }

    /// Waits for resources to publish, and takes them.
    pub(super) async fn next(&self) -> DriverResources {
        loop {
            let taken = {
                let mut slot = self.slot();
                match &*slot {
                    Slot::Full(_) => std::mem::take(&mut *slot),
                    Slot::Empty | Slot::Stopped => Slot::Empty,
                }
            };
            if let Slot::Full(resources) = taken {
                return resources;
            }
            self.arrived.notified().await;
        }
    }

    /// Returns whether newer resources wait, so that the current ones need not be written to the end.
    pub(super) fn is_full(&self) -> bool {
        matches!(*self.slot(), Slot::Full(_))
    }

    pub(super) fn status(&self) -> PublishStatus {
        self.status.borrow().clone()
    }

    pub(super) fn summary(&self) -> Summary {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn was_published(&self) -> bool {
        self.was_published.load(Ordering::Relaxed)
    }

    /// Sets summary and status. The status is ignored while newer resources wait: it is about those that they replace.
    pub(super) fn report(&self, status: PublishStatus, summary: Summary) {
        *self.summary.lock().unwrap_or_else(PoisonError::into_inner) = summary;
        if matches!(status, PublishStatus::Published | PublishStatus::Standby) {
            self.was_published.store(true, Ordering::Relaxed);
        }
        let slot = self.slot();
        if matches!(*slot, Slot::Empty) {
            self.status.send_if_modified(|current| {
                let is_new = *current != status;
                *current = status;
                is_new
            });
        }
    }

    /// Refuses further resources, because nobody takes them any longer.
    pub(super) fn stop(&self) {
        *self.slot() = Slot::Stopped;
        self.status.send_replace(PublishStatus::Stopped);
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Nothing panics while the lock is held, so a poisoned lock cannot occur.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
