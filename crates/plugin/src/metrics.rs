//! The metrics of a driver, exposed as OpenMetrics text.
//!
//! All labels have fixed sets of values ([`labels`]): the number of series does not grow with claims, pods or devices, and
//! no name from the cluster is exposed. Recording costs a few atomic operations and never allocates ([`family`]). Guards
//! record durations, also when a call is cancelled ([`timer`]). docs/metrics.md lists the metrics for operators; a test
//! compares it with what is exposed.

mod family;
mod labels;
mod process;
mod slices;
#[cfg(test)]
mod tests;
mod timer;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use drakkar_metadata::name::DriverName;
use drakkar_slices::Overview;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::family::StaticFamily;
use self::labels::UnaryMethod;
pub(crate) use self::labels::{
    ApiAnswer, Code, DeviceHealth, FileWork, Method, Operation, Outcome, ReportOutcome, Severity, UpdateOutcome,
    Version,
};
use self::process::Process;
use self::slices::SliceMetrics;
pub(crate) use self::timer::{ApiGet, Call, Timer};
use crate::health::HealthSummary;
use crate::ledger::ClaimCounts;

/// The upper bounds of the duration buckets in seconds. The last one is the kubelet's timeout for a call.
const BUCKETS: [f64; 13] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 45.0];

/// The metrics of a driver instance. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Returns the current health of the devices.
type HealthSource = Box<dyn Fn() -> HealthSummary + Send + Sync>;
/// Returns the current number of claims.
type ClaimsSource = Box<dyn Fn() -> ClaimCounts + Send + Sync>;

struct Inner {
    calls: StaticFamily<((Method, Version), Code), Counter>,
    call_durations: StaticFamily<UnaryMethod, Histogram>,
    calls_in_flight: StaticFamily<UnaryMethod, Gauge>,
    claims: StaticFamily<(Operation, Outcome), Counter>,
    api_requests: StaticFamily<ApiAnswer, Counter>,
    api_durations: Histogram,
    driver_durations: StaticFamily<Operation, Histogram>,
    metadata_durations: StaticFamily<FileWork, Histogram>,
    metadata_updates: StaticFamily<UpdateOutcome, Counter>,
    status_reports: StaticFamily<ReportOutcome, Counter>,
    status_reports_waiting: Gauge,
    prepared_claims: Gauge,
    held_claims: Gauge,
    holders_unprepared: Counter,
    recovered_claims: Counter,
    recovery_problems: Counter,
    orphans_removed: Counter,
    background_errors: StaticFamily<Severity, Counter>,
    devices: StaticFamily<DeviceHealth, Gauge>,
    health_reports: Counter,
    health_streams: Gauge,
    registered: Gauge,
    slices: SliceMetrics,
    health_source: OnceLock<HealthSource>,
    publishing_source: OnceLock<Overview>,
    claims_source: OnceLock<ClaimsSource>,
    process: Process,
    registry: Mutex<Registry>,
}

impl Metrics {
    /// Creates the metrics of a driver, all at zero.
    #[cfg(test)]
    pub(crate) fn new(driver: &DriverName) -> Self {
        Self::with_version(driver, "1.2.3")
    }

    /// Creates the metrics of a driver of this version, all at zero.
    pub(crate) fn with_version(driver: &DriverName, version: &str) -> Self {
        let durations = || Histogram::new(BUCKETS);
        let inner = Inner {
            // Most codes never occur. The usual ones are exposed from the start, the others once they have occurred.
            calls: StaticFamily::<_, Counter>::default().expose_if(|((method, version), code), calls| {
                let expected = matches!(code, Code::Ok | Code::Cancelled | Code::Internal);
                calls.get() > 0 || (expected && method.exists_in(version))
            }),
            call_durations: StaticFamily::new(durations),
            calls_in_flight: StaticFamily::default(),
            claims: StaticFamily::default(),
            api_requests: StaticFamily::default(),
            api_durations: durations(),
            driver_durations: StaticFamily::new(durations),
            metadata_durations: StaticFamily::new(durations),
            metadata_updates: StaticFamily::default(),
            status_reports: StaticFamily::default(),
            status_reports_waiting: Gauge::default(),
            prepared_claims: Gauge::default(),
            held_claims: Gauge::default(),
            holders_unprepared: Counter::default(),
            recovered_claims: Counter::default(),
            recovery_problems: Counter::default(),
            orphans_removed: Counter::default(),
            background_errors: StaticFamily::default(),
            devices: StaticFamily::default(),
            health_reports: Counter::default(),
            health_streams: Gauge::default(),
            registered: Gauge::default(),
            slices: SliceMetrics::default(),
            health_source: OnceLock::new(),
            publishing_source: OnceLock::new(),
            claims_source: OnceLock::new(),
            process: Process::new(),
            registry: Mutex::default(),
        };
        inner.register(&mut inner.registry(), driver, version);
        Self(Arc::new(inner))
    }

    /// Encodes all metrics as OpenMetrics text. Reads from `/proc`, so it must not run on an async thread.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        if let Some(health) = self.0.health_source.get() {
            self.set_health(health());
        }
        self.update_claims();
        self.update_publishing();
        let mut text = String::with_capacity(32 * 1024);
        encode(&mut text, &self.0.registry())?;
        Ok(text)
    }

    /// Lets a driver register metrics of its own. Their names must differ from those of the framework.
    pub(crate) fn with_registry<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.0.registry())
    }

    /// Returns when the process started.
    pub(crate) fn started(&self) -> SystemTime {
        self.0.process.started()
    }

    /// Starts to record a call of the kubelet. For a stream, keep the guard as long as the stream.
    pub(crate) fn call(&self, method: Method, version: Version) -> Call {
        Call::start(self, method, version)
    }

    /// Records the outcome of preparing or unpreparing a claim.
    pub(crate) fn claim(&self, operation: Operation, outcome: Outcome) {
        self.0.claims.get((operation, outcome)).inc();
    }

    /// Starts to record a request for a claim to the API server.
    pub(crate) fn api_get(&self) -> ApiGet {
        ApiGet::start(self)
    }

    /// Starts to time the driver's code.
    pub(crate) fn time_driver(&self, operation: Operation) -> Timer {
        Timer::new(self.0.driver_durations.get(operation))
    }

    /// Starts to time work on metadata files and CDI specs.
    pub(crate) fn time_metadata(&self, work: FileWork) -> Timer {
        Timer::new(self.0.metadata_durations.get(work))
    }

    /// Records the outcome of a metadata update.
    pub(crate) fn metadata_update(&self, outcome: UpdateOutcome) {
        self.0.metadata_updates.get(outcome).inc();
    }

    /// Records the outcome of a number of device status reports.
    pub(crate) fn status_reports(&self, outcome: ReportOutcome, reports: usize) {
        self.0.status_reports.get(outcome).inc_by(reports as u64);
    }

    /// Sets the number of reports that are queued for the API server.
    pub(crate) fn set_status_reports_waiting(&self, reports: usize) {
        set(&self.0.status_reports_waiting, reports);
    }

    /// Sets the source of the number of claims, which is called at each scrape. Only the first call has an effect.
    pub(crate) fn set_claims_source(&self, counts: impl Fn() -> ClaimCounts + Send + Sync + 'static) {
        let _ = self.0.claims_source.set(Box::new(counts));
    }

    /// Returns the number of prepared claims.
    pub(crate) fn prepared_claims(&self) -> i64 {
        self.update_claims();
        self.0.prepared_claims.get()
    }

    fn update_claims(&self) {
        if let Some(counts) = self.0.claims_source.get() {
            let ClaimCounts { prepared, held } = counts();
            set(&self.0.prepared_claims, prepared);
            set(&self.0.held_claims, held);
        }
    }

    /// Records that the framework unprepared a deleted claim because another claim needs its device.
    pub(crate) fn holder_unprepared(&self) {
        self.0.holders_unprepared.inc();
    }

    /// Records what recovery found on disk: prepared claims, problems, and orphans that were removed.
    pub(crate) fn recovered(&self, claims: usize, problems: usize, orphans: usize) {
        self.0.recovered_claims.inc_by(claims as u64);
        self.0.recovery_problems.inc_by(problems as u64);
        self.0.orphans_removed.inc_by(orphans as u64);
    }

    /// Records an error of a background task.
    pub(crate) fn background_error(&self, severity: Severity) {
        self.0.background_errors.get(severity).inc();
    }

    /// Sets the source of the health of devices, which is called at each scrape. Only the first call has an effect.
    pub(crate) fn set_health_source(&self, summary: impl Fn() -> HealthSummary + Send + Sync + 'static) {
        let _ = self.0.health_source.set(Box::new(summary));
    }

    fn set_health(&self, summary: HealthSummary) {
        set(self.0.devices.get(DeviceHealth::Healthy), summary.healthy);
        set(self.0.devices.get(DeviceHealth::Unhealthy), summary.unhealthy);
        set(self.0.devices.get(DeviceHealth::Unknown), summary.unknown);
        self.0.health_reports.inner().store(summary.reports, Ordering::Relaxed);
    }

    /// Sets whether the kubelet has registered the driver.
    pub(crate) fn set_registered(&self, registered: bool) {
        self.0.registered.set(registered.into());
    }

    /// Returns the gauge of calls in flight. Streams have one of their own, since they last as long as the kubelet runs.
    fn in_flight(&self, method: Method) -> &Gauge {
        UnaryMethod::from_method(method).map_or(&self.0.health_streams, |method| self.0.calls_in_flight.get(method))
    }

    fn end_call(&self, method: Method, version: Version, code: Code, duration: Duration) {
        self.in_flight(method).dec();
        self.0.calls.get(((method, version), code)).inc();
        if let Some(method) = UnaryMethod::from_method(method) {
            self.0.call_durations.get(method).observe(duration.as_secs_f64());
        }
    }

    fn end_api_get(&self, answer: ApiAnswer, duration: Duration) {
        self.0.api_requests.get(answer).inc();
        self.0.api_durations.observe(duration.as_secs_f64());
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers each metric with its name and help text. The registry adds a full stop to the text.
    fn register(&self, registry: &mut Registry, driver: &DriverName, version: &str) {
        registry.register_collector(Box::new(self.process));
        let registry = registry.sub_registry_with_prefix("drakkar_plugin");
        let build = Info::new([
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("driver", driver.to_string()),
            ("driver_version", version.to_owned()),
        ]);
        registry.register(
            "build",
            "The version of Drakkar that the driver is built with, and the driver's name and version",
            build,
        );
        let help = "Whether the kubelet has registered the driver: 1 if it has, 0 if it has not or refuses to";
        registry.register("registered", help, self.registered.clone());

        let help = "Completed calls of the kubelet by gRPC status code; claims can fail in a call that is ok";
        registry.register("grpc_calls", help, self.calls.clone());
        let help = "Duration of calls of the kubelet";
        registry.register_with_unit("grpc_call_duration", help, Unit::Seconds, self.call_durations.clone());
        registry.register("grpc_calls_in_flight", "Calls of the kubelet in flight", self.calls_in_flight.clone());

        let help = "Attempts to prepare or unprepare a claim, by outcome";
        registry.register("claim_operations", help, self.claims.clone());
        registry.register("prepared_claims", "Claims that are prepared on this node", self.prepared_claims.clone());
        let help =
            "Claims that hold devices: prepared ones, and those whose prepare is in progress, failed or was cancelled";
        registry.register("held_claims", help, self.held_claims.clone());
        let help = "Deleted claims that the framework unprepared because another claim needed their device";
        registry.register("holders_unprepared", help, self.holders_unprepared.clone());
        let help = "Duration of the driver's own code for the claims of a call";
        registry.register_with_unit("driver_duration", help, Unit::Seconds, self.driver_durations.clone());

        let help = "Requests for claims to the API server by class of the HTTP status; none means no response";
        registry.register("api_requests", help, self.api_requests.clone());
        let help = "Duration of requests for claims to the API server";
        registry.register_with_unit("api_request_duration", help, Unit::Seconds, self.api_durations.clone());

        let help = "Duration of the work on metadata files and CDI specs of a claim";
        registry.register_with_unit("metadata_duration", help, Unit::Seconds, self.metadata_durations.clone());
        let help = "Updates of metadata that containers already see, by outcome";
        registry.register("metadata_updates", help, self.metadata_updates.clone());
        let help = "Prepared claims that were found on disk at the start";
        registry.register("recovered_claims", help, self.recovered_claims.clone());
        let help = "Files on disk that could not be recovered at the start";
        registry.register("recovery_problems", help, self.recovery_problems.clone());
        let help = "Deleted claims that the framework unprepared in the background";
        registry.register("orphans_removed", help, self.orphans_removed.clone());

        let help = "Device status reports to the API server, by outcome";
        registry.register("status_reports", help, self.status_reports.clone());
        let help = "Device status reports that are queued for the API server";
        registry.register("status_reports_waiting", help, self.status_reports_waiting.clone());

        let help = "Devices by their current health";
        registry.register("health_devices", help, self.devices.clone());
        registry.register("health_reports", "Device health reports of the driver", self.health_reports.clone());
        let help = "Open device health streams of kubelets";
        registry.register("health_streams", help, self.health_streams.clone());
        self.slices.register(registry);
        let help = "Errors of background tasks; a fatal one ends the driver, others are retried";
        registry.register("background_errors", help, self.background_errors.clone());
    }
}

/// Sets a gauge to a count. Saturates at the largest value of a gauge.
fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
