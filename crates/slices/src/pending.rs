//! The hand-over between a driver and the publisher's task: resources to publish go in, the status comes out. Neither side
//! ever waits for the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::PublishError;
use super::overview::Summary;
use super::resources::{DriverResources, PublishedDevice};
use super::update::PoolUpdate;

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

    /// Publishes these devices in place of those of the same names, and leaves the others of the pool as they were published
    /// last. Devices of new names are appended to the pool, or to the last of the slices that the driver chose.
    ///
    /// The same as to publish all resources with these devices changed, and less work for a driver with thousands of devices
    /// of which one changes. Returns at once, as [`Self::publish`] does.
    ///
    /// ```
    /// use drakkar_slices::{PublishError, PublishedDevice, ResourcePublisher};
    ///
    /// fn mark_broken(publisher: &ResourcePublisher, node: &str, gpu: &str) -> Result<(), PublishError> {
    ///     let device = PublishedDevice::new(gpu).attribute("model", "m1").taint("example.com/broken", "", "NoSchedule");
    ///     publisher.update_devices(node, [device])
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`PublishError::UnknownPool`] if the resources that were published last do not have the pool, and
    /// [`PublishError::Stopped`] if the [`Publisher`](crate::Publisher) has ended. Nothing changes then.
    pub fn update_devices(
        &self,
        pool: &str,
        devices: impl IntoIterator<Item = PublishedDevice>,
    ) -> Result<(), PublishError> {
        let mut update = PoolUpdate::default();
        devices.into_iter().for_each(|device| update.set(&device));
        self.pending.update(pool, update)
    }

    /// Removes devices from a pool, and leaves the others as they were published last. A name that the pool does not have is
    /// no error.
    ///
    /// # Errors
    ///
    /// As [`Self::update_devices`].
    pub fn remove_devices<N: AsRef<str>>(
        &self,
        pool: &str,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), PublishError> {
        let mut update = PoolUpdate::default();
        names.into_iter().for_each(|name| update.remove(name.as_ref()));
        self.pending.update(pool, update)
    }

    /// Returns the current status, and a way to wait for another.
    ///
    /// [`Self::publish`] sets it to [`PublishStatus::Pending`] before it returns, so a
    /// [`PublishStatus::Published`] that is seen afterwards is about the new resources.
    pub fn status(&self) -> watch::Receiver<PublishStatus> {
        self.pending.status.subscribe()
    }
}

/// What waits for the publisher's task: of several versions of a pool or a device only the latest counts.
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
struct Slot {
    waiting: Option<Publication>,
    /// The pools of the resources that were published last.
    pools: BTreeSet<String>,
    /// Whether the task has ended.
    is_stopped: bool,
}

/// What a driver has published since the task looked last.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// All resources, in place of those before.
    pub(super) resources: Option<DriverResources>,
    /// Changes of single devices, after that, by pool.
    pub(super) updates: BTreeMap<String, PoolUpdate>,
}

impl PendingPublish {
    fn put(&self, resources: DriverResources) -> Result<(), PublishError> {
        let mut slot = self.slot();
        if slot.is_stopped {
            return Err(PublishError::Stopped);
        }
        slot.pools = resources.pools.keys().cloned().collect();
        let publication = Publication { resources: Some(resources), ..Publication::default() };
        let replaced = slot.waiting.replace(publication);
        self.announce(slot);
        // Freeing thousands of devices takes a while: not under the lock.
        drop(replaced);
        Ok(())
    }

    fn update(&self, pool: &str, update: PoolUpdate) -> Result<(), PublishError> {
        let mut slot = self.slot();
        if slot.is_stopped {
            return Err(PublishError::Stopped);
        }
        if !slot.pools.contains(pool) {
            return Err(PublishError::UnknownPool { pool: pool.to_owned() });
        }
        slot.waiting.get_or_insert_default().updates.entry(pool.to_owned()).or_default().merge(update);
        self.announce(slot);
        Ok(())
    }

    /// Tells the task and whoever looks at the status that there is something to publish.
    fn announce(&self, slot: MutexGuard<'_, Slot>) {
        self.status.send_replace(PublishStatus::Pending);
        drop(slot);
        self.arrived.notify_one();
    }

    /// Waits for something to publish, and takes it.
    pub(super) async fn next(&self) -> Publication {
        loop {
            let taken = self.slot().waiting.take();
            if let Some(publication) = taken {
                return publication;
            }
            self.arrived.notified().await;
        }
    }

    /// Returns whether something newer waits, so that the current resources need not be written to the end.
    pub(super) fn is_full(&self) -> bool {
        self.slot().waiting.is_some()
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
        if slot.waiting.is_none() && !slot.is_stopped {
            self.status.send_if_modified(|current| {
                let is_new = *current != status;
                *current = status;
                is_new
            });
        }
    }

    /// Refuses further resources, because nobody takes them any longer.
    pub(super) fn stop(&self) {
        let mut slot = self.slot();
        slot.is_stopped = true;
        let waiting = slot.waiting.take();
        drop(slot);
        drop(waiting);
        self.status.send_replace(PublishStatus::Stopped);
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Nothing panics while the lock is held, so a poisoned lock cannot occur.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
