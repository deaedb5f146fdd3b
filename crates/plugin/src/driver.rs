//! The driver trait, and the types that a driver returns to the framework.
//!
//! A driver is one type with two duties: [`DraPlugin::prepare`] and [`DraPlugin::unprepare`], one claim at a time.
//! Everything else has a default: errors in the background, health, whole batches.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use drakkar_cdi::ContainerEdits;
use drakkar_client::ClaimRef;
use drakkar_metadata::name::ClaimUid;
use drakkar_metadata::{DeviceAttribute, NetworkDeviceData};
use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};

use crate::background::BackgroundError;
use crate::claim::Claim;
use crate::error::{BoxError, Panicked};
use crate::health::HealthMonitor;

/// A DRA driver. It is shared by all calls, so its state is behind a lock of its own.
///
/// Futures are dropped, at an `await`, when the kubelet's deadline passes or the driver is stopped: a driver that must
/// not be interrupted spawns a task and awaits that.
pub trait DraPlugin: Send + Sync + 'static {
    /// Prepares the devices of a claim, and returns them.
    ///
    /// Called again for a prepared claim while containers use it: after a restart of the kubelet, and when another pod
    /// shares the claim. Return the same devices then, and do not disturb those in use.
    ///
    /// An allocated request for which no device is returned counts as prepared too: the framework returns the devices of
    /// the allocation, and the metadata is written by a later update ([`crate::MetadataUpdater`]).
    fn prepare(&self, claim: &Claim) -> impl Future<Output = Result<Vec<Device>, BoxError>> + Send;

    /// Undoes [`Self::prepare`]. The claim may be gone from the API server, and may never have been prepared, here or
    /// at all: that is success. A failure is retried.
    ///
    /// The framework calls this itself where no kubelet will: for a claim that is prepared again with another allocation,
    /// and for one that is gone when another claim needs its device or its grace period is over.
    fn unprepare(&self, claim: &ClaimRef) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Handles an error that no call of the kubelet can be answered with. Logs it by default. After an error that
    /// [is fatal](BackgroundError::is_fatal) the driver no longer serves the kubelet and should end.
    fn handle_error(&self, error: &BackgroundError) {
        if error.is_fatal() {
            tracing::error!(%error, "driver failed");
        } else {
            tracing::warn!(%error, "background task failed");
        }
    }

    /// Declares a monitor of the health of the driver's devices. `None`, the default, means that the driver has none, and
    /// the kubelet is not offered a health service.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceHealth, DraPlugin, HealthMonitor, HealthReporter};
    /// # struct Gpus;
    /// impl Gpus {
    ///     async fn watch_health(&self, reports: HealthReporter) -> Result<(), BoxError> {
    ///         loop {
    ///             reports.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
    ///             tokio::time::sleep(Duration::from_secs(10)).await;
    ///         }
    ///     }
    /// }
    ///
    /// impl DraPlugin for Gpus {
    ///     fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
    ///         Some(HealthMonitor::new(async |gpus: Arc<Self>, reports| gpus.watch_health(reports).await))
    ///     }
    /// #     async fn prepare(&self, _: &Claim) -> Result<Vec<Device>, BoxError> { Ok(vec![]) }
    /// #     async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> { Ok(()) }
    /// }
    /// ```
    fn health_monitor(&self) -> Option<HealthMonitor<Self>>
    where
        Self: Sized,
    {
        None
    }

    /// Prepares all claims of one kubelet call: those of one pod. Calls [`Self::prepare`] for each by default; override it
    /// if the driver can prepare many claims at once.
    fn prepare_batch(&self, claims: &Batch<Claim>) -> impl Future<Output = Outcomes<Vec<Device>>> + Send {
        claims.each(|claim| self.prepare(claim))
    }

    /// Unprepares all claims of one kubelet call. Calls [`Self::unprepare`] for each by default; override it if the driver
    /// can unprepare many claims at once.
    fn unprepare_batch(&self, claims: &Batch<ClaimRef>) -> impl Future<Output = Outcomes<()>> + Send {
        claims.each(|claim| self.unprepare(claim))
    }
}

/// A driver that others share: a task of the driver, or the test that runs it.
impl<P: DraPlugin> DraPlugin for Arc<P> {
    fn prepare(&self, claim: &Claim) -> impl Future<Output = Result<Vec<Device>, BoxError>> + Send {
        P::prepare(self, claim)
    }

    fn unprepare(&self, claim: &ClaimRef) -> impl Future<Output = Result<(), BoxError>> + Send {
        P::unprepare(self, claim)
    }

    fn handle_error(&self, error: &BackgroundError) {
        P::handle_error(self, error);
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        P::health_monitor(self).map(HealthMonitor::of_shared)
    }

    fn prepare_batch(&self, claims: &Batch<Claim>) -> impl Future<Output = Outcomes<Vec<Device>>> + Send {
        P::prepare_batch(self, claims)
    }

    fn unprepare_batch(&self, claims: &Batch<ClaimRef>) -> impl Future<Output = Outcomes<()>> + Send {
        P::unprepare_batch(self, claims)
    }
}

/// A prepared device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    /// The requests of the claim that the device is for, as `request` or `request/subrequest`; none means all of them.
    pub requests: Vec<String>,
    /// The pool of the device.
    pub pool_name: String,
    /// The name of the device in its pool.
    pub device_name: String,
    /// The CDI devices of specs that the driver writes itself, as `vendor/class=name`.
    pub cdi_device_ids: Vec<String>,
    /// What the device adds to containers: device nodes, mounts, environment variables, hooks. The framework writes the CDI
    /// spec for it, and removes the spec at unprepare.
    ///
    /// They reach the containers that reference one of [`requests`](Self::requests), and no others. A container with
    /// several devices gets the edits of each: of two variables with the same name it sees one.
    pub container_edits: ContainerEdits,
    /// The share of a device that several claims may use. `None` takes it from the allocation.
    pub share_id: Option<String>,
    /// The metadata that containers see, in addition to driver, pool and name.
    pub metadata: Option<DeviceMetadata>,
}

/// The metadata of a device that containers see.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceMetadata {
    /// Attributes by name: bare (`model`) in the driver's own domain, or with a domain (`example.com/model`).
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// The interface name and addresses of a network device in the pod.
    pub network_data: Option<NetworkDeviceData>,
}

impl DeviceMetadata {
    /// Adds an attribute.
    ///
    /// ```
    /// # use drakkar_plugin::DeviceMetadata;
    /// let metadata = DeviceMetadata::default().attribute("model", "m1").attribute("cores", 64);
    /// assert_eq!(metadata.attributes.len(), 2);
    /// ```
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<DeviceAttribute>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }
}

/// The outcome of each claim of a batch. A claim without an entry has failed.
pub type Outcomes<T> = HashMap<ClaimUid, Result<T, BoxError>>;

/// The claims of one kubelet call.
#[derive(Debug)]
pub struct Batch<T> {
    claims: Vec<T>,
    concurrency: usize,
}

/// A value that belongs to one claim.
pub(crate) trait OfClaim {
    fn uid(&self) -> &ClaimUid;
}

impl OfClaim for Claim {
    fn uid(&self) -> &ClaimUid {
        &self.reference().uid
    }
}

impl OfClaim for ClaimRef {
    fn uid(&self) -> &ClaimUid {
        &self.uid
    }
}

impl<T> Batch<T> {
    /// Creates a batch of which up to `concurrency` claims are processed at once.
    pub(crate) fn new(claims: Vec<T>, concurrency: usize) -> Self {
        Self { claims, concurrency: concurrency.max(1) }
    }

    pub(crate) fn into_claims(self) -> Vec<T> {
        self.claims
    }
}

/// Creates a batch whose claims are processed one after the other.
impl<T> From<Vec<T>> for Batch<T> {
    fn from(claims: Vec<T>) -> Self {
        Self::new(claims, 1)
    }
}

#[allow(private_bounds, reason = "there are batches of claims and of references to claims, and no others")]
impl<T: OfClaim> Batch<T> {
    /// Calls `work` for each claim: one after the other, or several at once where the driver's calls are not
    /// [serialized](crate::PluginBuilder::serialize). A panic is the error of that claim.
    pub async fn each<'a, R, W>(&'a self, mut work: impl FnMut(&'a T) -> W) -> Outcomes<R>
    where
        W: Future<Output = Result<R, BoxError>> + Send,
    {
        let works = self.claims.iter().map(|claim| {
            // The call itself may panic too: a driver may do its work before it returns the future.
            let work = std::panic::catch_unwind(AssertUnwindSafe(|| work(claim)));
            async move {
                let outcome = match work {
                    Ok(work) => AssertUnwindSafe(work).catch_unwind().await,
                    Err(panic) => Err(panic),
                };
                (claim.uid().clone(), outcome.unwrap_or_else(|panic| Err(Panicked::from(&*panic).into())))
            }
        });
        // Collected first: a lazy stream would hold the closure across an await.
        let works: Vec<_> = works.collect();
        if self.concurrency > 1 && works.len() > 1 {
            return stream::iter(works).buffer_unordered(self.concurrency).collect().await;
        }
        let mut outcomes = Outcomes::with_capacity(works.len());
        for work in works {
            let (uid, outcome) = work.await;
            outcomes.insert(uid, outcome);
        }
        outcomes
    }
}

impl<T> std::ops::Deref for Batch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.claims
    }
}
