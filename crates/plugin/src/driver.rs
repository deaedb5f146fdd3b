//! What a driver implements, and what it gives to the framework.
//!
//! A driver is one type with two duties: [`DraPlugin::prepare`] and [`DraPlugin::unprepare`], one claim at a time.
//! Everything else has a default: errors in the background, health, whole batches.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;

use drakkar_metadata::name::ClaimUid;
use drakkar_metadata::{DeviceAttribute, NetworkDeviceData};
use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};

use crate::background::BackgroundError;
use crate::claim::Claim;
use crate::error::{BoxError, Panicked};
use crate::health::HealthMonitor;
use drakkar_client::ClaimRef;

/// A DRA driver: what the framework asks of it. Shared by all calls, so state is behind a lock of the driver's own.
///
/// Futures are dropped, at an `await`, when the kubelet's deadline passes or the driver is stopped: a driver that must
/// not be interrupted spawns a task and awaits that.
pub trait DraPlugin: Send + Sync + 'static {
    /// Makes the devices of a claim ready, and says which they are.
    ///
    /// Called again for a claim that is prepared, while containers use it: after a restart of the kubelet, and when
    /// another pod comes to share it. The answer must then be the same, and nothing may be disturbed.
    ///
    /// An allocated request for which no device is returned counts as prepared too: the framework passes its devices
    /// on, and the metadata comes later ([`crate::MetadataUpdater`]).
    fn prepare(&self, claim: &Claim) -> impl Future<Output = Result<Vec<Device>, BoxError>> + Send;

    /// Undoes [`Self::prepare`]. The claim may be gone from the API server, and may never have been prepared, here or
    /// at all: that is success. A failure is tried again.
    ///
    /// The framework calls this itself where no kubelet will: for a claim that is prepared again with another allocation,
    /// and for one that is gone when another claim needs its device or when its time is over.
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

    /// Prepares all claims of one call of the kubelet: those of one pod. Calls [`Self::prepare`] for each, unless a
    /// driver has a better way for many.
    fn prepare_batch(&self, claims: &Batch<Claim>) -> impl Future<Output = Outcomes<Vec<Device>>> + Send {
        claims.each(|claim| self.prepare(claim))
    }

    /// Unprepares all claims of one call of the kubelet. Calls [`Self::unprepare`] for each, unless a driver has a
    /// better way for many.
    fn unprepare_batch(&self, claims: &Batch<ClaimRef>) -> impl Future<Output = Outcomes<()>> + Send {
        claims.each(|claim| self.unprepare(claim))
    }
}

/// A device that a driver has prepared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    /// The requests of the claim that it is for, as `request` or `request/subrequest`; none means all of them.
    pub requests: Vec<String>,
    /// The pool that it is from.
    pub pool_name: String,
    /// Its name in the pool.
    pub device_name: String,
    /// The CDI devices by which it gets into containers, as `vendor/class=name`.
    pub cdi_device_ids: Vec<String>,
    /// Which share of a device that several claims may have. Taken from the allocation if it is not given here.
    pub share_id: Option<String>,
    /// What containers are told of it, in addition to driver, pool and name.
    pub metadata: Option<DeviceMetadata>,
}

/// What containers are told of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceMetadata {
    /// Attributes by name: bare (`model`) in the driver's own domain, or with a domain (`example.com/model`).
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// What a network device looks like in the pod.
    pub network_data: Option<NetworkDeviceData>,
}

impl DeviceMetadata {
    /// With an attribute more.
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

/// What became of each claim of a batch. Every claim needs an entry; one that is missing has failed.
pub type Outcomes<T> = HashMap<ClaimUid, Result<T, BoxError>>;

/// The claims of one call of the kubelet.
#[derive(Debug)]
pub struct Batch<T> {
    claims: Vec<T>,
    concurrency: usize,
}

/// Something that is about one claim.
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
    /// A batch of which so many claims may be worked on at once.
    pub(crate) fn new(claims: Vec<T>, concurrency: usize) -> Self {
        Self { claims, concurrency: concurrency.max(1) }
    }

    pub(crate) fn into_claims(self) -> Vec<T> {
        self.claims
    }
}

/// A batch that is worked on one claim after the other.
impl<T> From<Vec<T>> for Batch<T> {
    fn from(claims: Vec<T>) -> Self {
        Self::new(claims, 1)
    }
}

#[allow(private_bounds, reason = "there are batches of claims and of references to claims, and no others")]
impl<T: OfClaim> Batch<T> {
    /// Does something for each claim: one after the other, or several at once where the driver's calls are not
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
        // Made before they are run: a stream that made them would keep the closure across an await.
        stream::iter(works.collect::<Vec<_>>()).buffer_unordered(self.concurrency).collect().await
    }
}

impl<T> std::ops::Deref for Batch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.claims
    }
}
