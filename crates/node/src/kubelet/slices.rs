//! Deletes the `ResourceSlices` of drivers that are not running: all of the node's when a kubelet starts, and a driver's when
//! none of its instances has been connected for a while.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use super::tasks::Tasks;
use super::timing::Timing;

/// The number of attempts after which deleting is given up.
const MAX_ATTEMPTS: usize = 100;

/// The slices of a node. Clones share the state.
#[derive(Clone)]
pub(super) struct Slices(Arc<Inner>);

struct Inner {
    client: Client,
    node: String,
    timing: Timing,
    tasks: Tasks,
    /// Drivers whose slices are about to be deleted; dropping the guard cancels that.
    pending: Mutex<HashMap<String, DropGuard>>,
    /// Whether the slices from before the kubelet's start are deleted.
    deleted_all: watch::Sender<bool>,
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl Slices {
    pub(super) fn new(client: Client, node: &str, timing: Timing, tasks: Tasks) -> Self {
        let (pending, deleted_all) = Default::default();
        Self(Arc::new(Inner { client, node: node.to_owned(), timing, tasks, pending, deleted_all }))
    }

    /// Deletes all slices of this node, in the background.
    pub(super) fn delete_all(&self) {
        let slices = self.clone();
        self.0.tasks.spawn(async move {
            slices.delete(None).await;
            slices.0.deleted_all.send_replace(true);
        });
    }

    /// Waits until [`Self::delete_all`] is done, or the kubelet has ended.
    pub(super) fn deleted_all(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut deleted = self.0.deleted_all.subscribe();
        async move {
            // An error means that the kubelet has ended.
            let _ = deleted.wait_for(|deleted| *deleted).await;
        }
    }

    /// An instance of the driver is connected: keeps its slices.
    pub(super) fn connected(&self, driver: &str) {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(driver);
    }

    /// No instance of the driver is connected: deletes its slices unless one connects in time.
    pub(super) fn disconnected(&self, driver: &str) {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.contains_key(driver) {
            return;
        }
        let (tasks, guard) = self.0.tasks.nested();
        pending.insert(driver.to_owned(), guard);
        let slices = self.clone();
        let driver = driver.to_owned();
        tasks.spawn(async move {
            sleep(slices.0.timing.slice_grace).await;
            slices.delete(Some(&driver)).await;
            slices.0.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&driver);
        });
    }

    /// Returns the drivers whose slices are about to be deleted.
    #[cfg(test)]
    pub(super) fn pending(&self) -> Vec<String> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    async fn delete(&self, driver: Option<&str>) {
        let inner = &self.0;
        let mut fields = format!("spec.nodeName={}", inner.node);
        if let Some(driver) = driver {
            fields.push_str(&format!(",spec.driver={driver}"));
        }
        let api = Api::<ResourceSlice>::all(inner.client.clone());
        let selected = ListParams::default().fields(&fields);
        let mut retry = inner.timing.slice_backoff.retry();
        for _ in 0..MAX_ATTEMPTS {
            match api.delete_collection(&DeleteParams::default(), &selected).await {
                Ok(_) => {
                    tracing::info!(%fields, "kubelet: resource slices deleted");
                    return;
                }
                Err(error) => tracing::warn!(%fields, %error, "kubelet: deleting resource slices failed, retrying"),
            }
            sleep(retry.next_delay()).await;
        }
        tracing::error!(%fields, "kubelet: deleting resource slices failed, giving up");
    }
}
