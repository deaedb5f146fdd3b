//! A running driver: what its owner can ask of it, and who looks after its parts.
//!
//! One task owns the servers. It ends them when it is told to, or when one of them dies: then the driver is told, and what
//! is left of the servers goes, since a driver that is registered but cannot serve is worse than none. The HTTP endpoint
//! stays until the end and says what happened.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::driver::{BackgroundError, BoxError, Device, DraPlugin};
use crate::health::HealthHub;
use crate::http_endpoint::HttpEndpoint;
use crate::metrics::Metrics;
use crate::registration::RegistrationStatus;
use crate::server::Endpoints;
use crate::service::Service;
use crate::start::Background;
use crate::status::{DeviceStatus, ReportError, StatusReporter, StatusReports};
use crate::store::RecoveredClaim;
use crate::update::{MetadataUpdate, MetadataUpdater, Updater};
use drakkar_client::ClaimRef;
use drakkar_client::backoff::jittered;
use drakkar_slices::{DriverResources, PublishError, Publisher, ResourcePublisher};

/// How many claims are looked up at once when orphans are looked for: nothing waits for it.
const ORPHAN_CONCURRENCY: usize = 4;
/// How long the API server is left alone when it could not say whether claims are gone.
const ORPHAN_PAUSE: Duration = Duration::from_secs(60);
/// How long the parts that have nothing to finish may take to end.
const END: Duration = Duration::from_secs(1);

/// Why a driver did not end as it should. It has ended nevertheless.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StopError(#[source] BoxError);

/// The parts of a running driver.
pub(crate) struct Running {
    pub(crate) endpoints: Endpoints,
    pub(crate) http: Option<HttpEndpoint>,
    pub(crate) health: Option<Arc<HealthHub>>,
    pub(crate) status: StatusReports,
    pub(crate) publisher: Publisher,
    /// Why the driver has no service any more.
    pub(crate) fatal: watch::Sender<Option<String>>,
    pub(crate) drain: Duration,
    /// How long the kubelet has to unprepare claims that are gone.
    pub(crate) orphan_grace: Duration,
    pub(crate) background: Background,
    pub(crate) metrics: Metrics,
}

/// A running driver. It ends, at once, when this is dropped; [`Helper::stop`] is the polite way.
pub struct Helper {
    updater: Arc<dyn MetadataUpdater>,
    reporter: StatusReporter,
    publisher: ResourcePublisher,
    registration: watch::Receiver<RegistrationStatus>,
    fatal: watch::Receiver<Option<String>>,
    metrics: Metrics,
    dra_socket: Option<PathBuf>,
    registration_socket: Option<PathBuf>,
    http_address: Option<SocketAddr>,
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<Result<(), StopError>>,
}

impl std::fmt::Debug for Helper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helper")
            .field("dra_socket", &self.dra_socket)
            .field("registration_socket", &self.registration_socket)
            .finish_non_exhaustive()
    }
}

impl Helper {
    pub(crate) fn new<P: DraPlugin>(
        running: Running,
        service: Arc<Service<P>>,
        recovered: Vec<RecoveredClaim>,
    ) -> Self {
        let stop = CancellationToken::new();
        Self {
            updater: Arc::new(Updater(service.clone())),
            reporter: running.status.reporter(),
            publisher: running.publisher.handle(),
            registration: running.endpoints.registration_status(),
            fatal: running.fatal.subscribe(),
            metrics: running.metrics.clone(),
            dra_socket: running.endpoints.dra_socket().map(Path::to_owned),
            registration_socket: running.endpoints.registration_socket().map(Path::to_owned),
            http_address: running.http.as_ref().map(HttpEndpoint::local_address),
            stop: stop.clone(),
            supervisor: AbortOnDropHandle::new(tokio::spawn(supervise(running, service, recovered, stop))),
        }
    }

    /// Replaces what containers see of one request; see [`MetadataUpdater::update_request_metadata`].
    pub fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a> {
        self.updater.update_request_metadata(claim, request, devices)
    }

    /// Tells the API server of devices of a claim, in its `status.devices` (KEP-4817). Each report replaces what this driver
    /// said of that device before; devices that are not reported of keep what was said.
    ///
    /// This only checks the reports and puts them into a queue. They are delivered in the background, and tried again while
    /// the API server is away, for 10 minutes or [what was set](crate::PluginBuilder::status_patience); of several reports of
    /// a device that wait, the last is delivered. If the claim is gone, replaced, deallocated or unprepared meanwhile they are
    /// dropped. Whatever else keeps them from being delivered is told to [`DraPlugin::handle_error`]; if it is a permission
    /// that the driver does not have, with the RBAC rule to add.
    pub fn report_device_status(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = DeviceStatus>,
    ) -> Result<(), ReportError> {
        self.reporter.report_device_status(claim, devices)
    }

    /// The same, to be kept elsewhere.
    pub fn status_reporter(&self) -> StatusReporter {
        self.reporter.clone()
    }

    /// What updates metadata, to be kept elsewhere: for example by the NRI plugin of a network driver.
    pub fn metadata_updater(&self) -> Arc<dyn MetadataUpdater> {
        self.updater.clone()
    }

    /// Makes this what the driver has to offer, in place of what it published before; see [`ResourcePublisher::publish`].
    pub fn publish_resources(&self, resources: DriverResources) -> Result<(), PublishError> {
        self.publisher.publish(resources)
    }

    /// The same, to be kept elsewhere: for example by a task that looks for devices that come and go. Also tells how
    /// publishing goes.
    pub fn resource_publisher(&self) -> ResourcePublisher {
        self.publisher.clone()
    }

    /// What the kubelet last said about the registration, and whatever it says later.
    pub fn registration_status(&self) -> watch::Receiver<RegistrationStatus> {
        self.registration.clone()
    }

    /// Lets the driver add metrics of its own to those that the HTTP endpoint serves.
    pub fn register_metrics(&self, register: impl FnOnce(&mut prometheus_client::registry::Registry)) {
        self.metrics.with_registry(register);
    }

    /// Where the kubelet calls the driver, if this instance serves that.
    pub fn dra_socket(&self) -> Option<&Path> {
        self.dra_socket.as_deref()
    }

    /// Where the kubelet finds the driver, if this instance registers.
    pub fn registration_socket(&self) -> Option<&Path> {
        self.registration_socket.as_deref()
    }

    /// Where the HTTP endpoint is, if there is one. Tells the port that the system chose for port 0.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Waits until the driver has lost its service, which it should not, and says why.
    pub async fn died(&mut self) -> StopError {
        match self.fatal.wait_for(Option::is_some).await {
            Ok(reason) => StopError(reason.clone().unwrap_or_default().into()),
            Err(closed) => StopError(closed.into()),
        }
    }

    /// Ends the driver: the kubelet is told first, calls in flight may finish, nothing is left behind.
    pub async fn stop(self) -> Result<(), StopError> {
        self.stop.cancel();
        match self.supervisor.await {
            Ok(stopped) => stopped,
            Err(error) => Err(StopError(error.into())),
        }
    }

    /// Runs until the process is told to end (SIGTERM, SIGINT) or the driver loses its service, and stops.
    pub async fn run_until_signal(mut self) -> Result<(), StopError> {
        let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
        let (mut terminate, mut interrupt) = signals.map_err(|error| StopError(error.into()))?;
        let died = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            error = self.died() => Some(error),
        };
        let stopped = self.stop().await;
        died.map_or(stopped, Err)
    }
}

async fn supervise<P: DraPlugin>(
    running: Running,
    service: Arc<Service<P>>,
    recovered: Vec<RecoveredClaim>,
    stop: CancellationToken,
) -> Result<(), StopError> {
    let Running { mut endpoints, http, health, status, publisher, fatal, drain, orphan_grace, background, metrics } =
        running;
    let orphans = {
        let (service, background, metrics) = (service.clone(), background.clone(), metrics.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let (now, later): (Vec<_>, Vec<_>) = recovered.into_iter().partition(|found| !found.is_of_this_boot);
            let claims = |found: Vec<RecoveredClaim>| found.into_iter().map(|found| found.claim).collect::<Vec<_>>();
            let mut orphans = collect_orphans(&service, claims(now), &background, &metrics).await;
            // A daemon set may have started all drivers of a cluster at once.
            tokio::time::sleep(jittered(orphan_grace, 1.0..=1.5)).await;
            orphans.extend(claims(later));
            loop {
                orphans = collect_orphans(&service, orphans, &background, &metrics).await;
                tokio::time::sleep(jittered(orphan_grace.max(ORPHAN_PAUSE), 1.0..=1.5)).await;
                // Those that no kubelet unprepares are looked for as long as the driver runs.
                let known = orphans.clone();
                orphans.extend(service.abandoned().into_iter().filter(|claim| !known.contains(claim)));
            }
        }))
    };
    let mut registration = endpoints.registration_status();
    let died = loop {
        tokio::select! {
            () = stop.cancelled() => break None,
            error = endpoints.died() => break Some(error),
            Ok(()) = registration.changed() => {
                metrics.set_registered(*registration.borrow_and_update() == RegistrationStatus::Registered);
            }
        }
    };
    drop(orphans);
    // What is published stays; a kubelet removes it when no instance comes back. But what this instance cannot serve it must
    // not repair.
    drop(publisher);
    if let Some(error) = died {
        fatal.send_replace(Some(error.to_string()));
        background(BackgroundError::fatal("serve the kubelet", error));
    }
    metrics.set_registered(false);
    let stopped = endpoints.stop(drain).await.map_err(|error| StopError(error.into()));
    stop.cancelled().await;
    if let Err(error) = status.stop().await {
        tracing::warn!(%error, "the end of the driver");
    }
    if let Some(health) = health
        && let Err(error) = health.stop(Instant::now() + END).await
    {
        tracing::warn!(%error, "the end of the driver");
    }
    if let Some(http) = http
        && let Err(error) = http.stop(Instant::now() + END).await
    {
        tracing::warn!(%error, "the end of the driver");
    }
    stopped
}

/// Unprepares claims that the API server has no more, or to which it has allocated other devices: nobody else will. Gives those
/// that could not be looked up, or could not be unprepared.
async fn collect_orphans<P: DraPlugin>(
    service: &Service<P>,
    claims: Vec<ClaimRef>,
    background: &Background,
    metrics: &Metrics,
) -> Vec<ClaimRef> {
    let mut left = Vec::new();
    let looked_up = claims.into_iter().map(|claim| async move {
        let outcome = service.collect(&claim).await;
        (claim, outcome)
    });
    let mut looked_up = stream::iter(looked_up.collect::<Vec<_>>()).buffer_unordered(ORPHAN_CONCURRENCY);
    while let Some((claim, outcome)) = looked_up.next().await {
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(%claim, "unprepared a claim that is gone");
                metrics.recovered(0, 0, 1);
            }
            Err(error) => {
                left.push(claim);
                background(BackgroundError::recoverable("look for claims that are gone", error));
            }
        }
    }
    left
}
