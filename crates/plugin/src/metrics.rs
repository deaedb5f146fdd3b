//! Metrics: what an operator needs to know of a driver, counted where it happens and exposed as OpenMetrics text.
//!
//! All labels come from fixed sets ([`labels`]): the number of series does not grow with claims, pods or devices, and no name
//! from the cluster is exposed. To record something costs a few atomic operations and never allocates ([`table`]); durations
//! are recorded by guards, also when a call is given up half-way ([`timer`]). docs/metrics.md has the list for operators; a test
//! compares it with what is exposed.

mod labels;
mod process;
mod slices;
mod table;
#[cfg(test)]
mod tests;
mod timer;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use drakkar_metadata::name::DriverName;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::health::HealthSummary;
use crate::ledger::ClaimCounts;
use labels::UnaryMethod;
pub(crate) use labels::{
    ApiAnswer, Code, DeviceHealth, FileWork, Method, Operation, Outcome, ReportOutcome, Severity, UpdateOutcome,
    Version,
};
use process::Process;
use slices::SliceMetrics;
use table::Table;
pub(crate) use timer::{ApiGet, Call, Timer};

/// The media type of what [`Metrics::encode`] gives.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of durations in seconds. The last is how long a kubelet waits for a driver.
const BUCKETS: [f64; 13] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 45.0];

/// The metrics of a driver's instance. A clone is another handle to the same.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Gives what is known of the health of devices.
type Summary = Box<dyn Fn() -> HealthSummary + Send + Sync>;
/// Gives how many claims there are.
type Counts = Box<dyn Fn() -> ClaimCounts + Send + Sync>;

struct Inner {
    calls: Table<((Method, Version), Code), Counter>,
    call_durations: Table<UnaryMethod, Histogram>,
    calls_in_flight: Table<UnaryMethod, Gauge>,
    claims: Table<(Operation, Outcome), Counter>,
    api_requests: Table<ApiAnswer, Counter>,
    api_durations: Histogram,
    driver_durations: Table<Operation, Histogram>,
    metadata_durations: Table<FileWork, Histogram>,
    metadata_updates: Table<UpdateOutcome, Counter>,
    status_reports: Table<ReportOutcome, Counter>,
    status_reports_waiting: Gauge,
    prepared_claims: Gauge,
    held_claims: Gauge,
    holders_unprepared: Counter,
    recovered_claims: Counter,
    recovery_problems: Counter,
    orphans_removed: Counter,
    background_errors: Table<Severity, Counter>,
    devices: Table<DeviceHealth, Gauge>,
    health_reports: Counter,
    health_streams: Gauge,
    registered: Gauge,
    slices: SliceMetrics,
    health: OnceLock<Summary>,
    ledger: OnceLock<Counts>,
    process: Process,
    registry: Mutex<Registry>,
}

impl Metrics {
    /// Metrics of this driver, all at zero.
    pub(crate) fn new(driver: &DriverName) -> Self {
        let durations = || Histogram::new(BUCKETS);
        let inner = Inner {
            // Most codes never occur. Those that did are exposed, and those to wait for from the start.
            calls: Table::<_, Counter>::default().shown_if(|((method, version), code), calls| {
                let expected = matches!(code, Code::Ok | Code::Cancelled | Code::Internal);
                calls.get() > 0 || (expected && method.exists_in(version))
            }),
            call_durations: Table::new(durations),
            calls_in_flight: Table::default(),
            claims: Table::default(),
            api_requests: Table::default(),
            api_durations: durations(),
            driver_durations: Table::new(durations),
            metadata_durations: Table::new(durations),
            metadata_updates: Table::default(),
            status_reports: Table::default(),
            status_reports_waiting: Gauge::default(),
            prepared_claims: Gauge::default(),
            held_claims: Gauge::default(),
            holders_unprepared: Counter::default(),
            recovered_claims: Counter::default(),
            recovery_problems: Counter::default(),
            orphans_removed: Counter::default(),
            background_errors: Table::default(),
            devices: Table::default(),
            health_reports: Counter::default(),
            health_streams: Gauge::default(),
            registered: Gauge::default(),
            slices: SliceMetrics::default(),
            health: OnceLock::new(),
            ledger: OnceLock::new(),
            process: Process::new(),
            registry: Mutex::default(),
        };
        inner.register(&mut inner.registry(), driver);
        Self(Arc::new(inner))
    }

    /// All metrics as OpenMetrics text. Reads from `/proc`, so it is not for a thread that must not block.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        if let Some(health) = self.0.health.get() {
            self.set_health(health());
        }
        self.count_claims();
        let mut text = String::with_capacity(32 * 1024);
        encode(&mut text, &self.0.registry())?;
        Ok(text)
    }

    /// Lets a driver add metrics of its own. Their names are the driver's choice, as long as they are not ours.
    pub(crate) fn with_registry<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.0.registry())
    }

    /// When the process started.
    pub(crate) fn started(&self) -> SystemTime {
        self.0.process.started()
    }

    /// A call of the kubelet begins. Of a stream this is to be kept as long as the stream.
    pub(crate) fn call(&self, method: Method, version: Version) -> Call {
        Call::start(self, method, version)
    }

    /// A claim has been prepared or unprepared, or could not be.
    pub(crate) fn claim(&self, operation: Operation, outcome: Outcome) {
        self.0.claims.of((operation, outcome)).inc();
    }

    /// A request for a claim is sent to the API server.
    pub(crate) fn api_get(&self) -> ApiGet {
        ApiGet::start(self)
    }

    /// The driver's code begins to run.
    pub(crate) fn time_driver(&self, operation: Operation) -> Timer {
        Timer::new(self.0.driver_durations.of(operation))
    }

    /// Work on metadata files and CDI specs begins.
    pub(crate) fn time_metadata(&self, work: FileWork) -> Timer {
        Timer::new(self.0.metadata_durations.of(work))
    }

    /// The metadata of a request has been updated, or could not be.
    pub(crate) fn metadata_update(&self, outcome: UpdateOutcome) {
        self.0.metadata_updates.of(outcome).inc();
    }

    /// That became of so many reports of a device's status.
    pub(crate) fn status_reports(&self, outcome: ReportOutcome, reports: usize) {
        self.0.status_reports.of(outcome).inc_by(reports as u64);
    }

    /// So many reports wait for the API server now.
    pub(crate) fn set_status_reports_waiting(&self, reports: usize) {
        set(&self.0.status_reports_waiting, reports);
    }

    /// Where to ask for the number of claims, whenever the metrics are looked at. The first answer to this counts.
    pub(crate) fn ask_for_claims(&self, counts: impl Fn() -> ClaimCounts + Send + Sync + 'static) {
        let _ = self.0.ledger.set(Box::new(counts));
    }

    /// How many claims are prepared.
    pub(crate) fn prepared_claims(&self) -> i64 {
        self.count_claims();
        self.0.prepared_claims.get()
    }

    fn count_claims(&self) {
        if let Some(counts) = self.0.ledger.get() {
            let ClaimCounts { prepared, held } = counts();
            set(&self.0.prepared_claims, prepared);
            set(&self.0.held_claims, held);
        }
    }

    /// The framework has unprepared a claim that was gone, for the sake of another one.
    pub(crate) fn holder_unprepared(&self) {
        self.0.holders_unprepared.inc();
    }

    /// A start has found that many prepared claims and problems on disk, and removed what belongs to that many claims that
    /// are gone.
    pub(crate) fn recovered(&self, claims: usize, problems: usize, orphans: usize) {
        self.0.recovered_claims.inc_by(claims as u64);
        self.0.recovery_problems.inc_by(problems as u64);
        self.0.orphans_removed.inc_by(orphans as u64);
    }

    /// Something failed that no call waits for.
    pub(crate) fn background_error(&self, severity: Severity) {
        self.0.background_errors.of(severity).inc();
    }

    /// Where to ask for the health of devices, whenever the metrics are looked at. The first answer to this counts.
    pub(crate) fn ask_for_health(&self, summary: impl Fn() -> HealthSummary + Send + Sync + 'static) {
        let _ = self.0.health.set(Box::new(summary));
    }

    fn set_health(&self, summary: HealthSummary) {
        set(self.0.devices.of(DeviceHealth::Healthy), summary.healthy);
        set(self.0.devices.of(DeviceHealth::Unhealthy), summary.unhealthy);
        set(self.0.devices.of(DeviceHealth::Unknown), summary.unknown);
        self.0.health_reports.inner().store(summary.reports, Ordering::Relaxed);
    }

    /// Whether the kubelet uses the driver.
    pub(crate) fn set_registered(&self, registered: bool) {
        self.0.registered.set(registered.into());
    }

    /// The gauge that a call is in while it lasts. Streams have one of their own: they last as long as a kubelet runs.
    fn in_flight(&self, method: Method) -> &Gauge {
        UnaryMethod::of(method).map_or(&self.0.health_streams, |method| self.0.calls_in_flight.of(method))
    }

    fn end_call(&self, method: Method, version: Version, code: Code, took: Duration) {
        self.in_flight(method).dec();
        self.0.calls.of(((method, version), code)).inc();
        if let Some(method) = UnaryMethod::of(method) {
            self.0.call_durations.of(method).observe(took.as_secs_f64());
        }
    }

    fn end_api_get(&self, answer: ApiAnswer, took: Duration) {
        self.0.api_requests.of(answer).inc();
        self.0.api_durations.observe(took.as_secs_f64());
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives each metric its name and its help text, to which the registry adds a full stop.
    fn register(&self, registry: &mut Registry, driver: &DriverName) {
        registry.register_collector(Box::new(self.process));
        let ours = registry.sub_registry_with_prefix("drakkar_plugin");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION").to_owned()), ("driver", driver.to_string())]);
        ours.register("build", "The version of Drakkar that the driver is built with, and the driver's name", build);
        let help = "Whether the kubelet has registered the driver: 1 if it has, 0 while it has not or refuses to";
        ours.register("registered", help, self.registered.clone());

        let help =
            "Calls of the kubelet that have ended, by gRPC status code; single claims can fail in a call that is ok";
        ours.register("grpc_calls", help, self.calls.clone());
        let help = "How long calls of the kubelet took";
        ours.register_with_unit("grpc_call_duration", help, Unit::Seconds, self.call_durations.clone());
        ours.register("grpc_calls_in_flight", "Calls of the kubelet that are going on", self.calls_in_flight.clone());

        let help = "Claims that were to be prepared or unprepared, by what became of it";
        ours.register("claim_operations", help, self.claims.clone());
        ours.register("prepared_claims", "Claims that are prepared on this node", self.prepared_claims.clone());
        let help =
            "Claims that have devices: those that are prepared, and those whose prepare goes on, failed or was cut off";
        ours.register("held_claims", help, self.held_claims.clone());
        let help = "Claims that were gone, and that the framework unprepared because another claim needed their device";
        ours.register("holders_unprepared", help, self.holders_unprepared.clone());
        let help = "How long the driver's own code took for the claims of a call";
        ours.register_with_unit("driver_duration", help, Unit::Seconds, self.driver_durations.clone());

        let help = "Requests for claims to the API server, by class of the HTTP status; none is no answer at all";
        ours.register("api_requests", help, self.api_requests.clone());
        let help = "How long requests for claims to the API server took";
        ours.register_with_unit("api_request_duration", help, Unit::Seconds, self.api_durations.clone());

        let help = "How long the work on metadata files and CDI specs of a claim took";
        ours.register_with_unit("metadata_duration", help, Unit::Seconds, self.metadata_durations.clone());
        let help = "Updates of metadata that containers already see, by what became of it";
        ours.register("metadata_updates", help, self.metadata_updates.clone());
        let help = "Prepared claims that a start found on disk";
        ours.register("recovered_claims", help, self.recovered_claims.clone());
        let help = "Files on disk that a start could not bring in order";
        ours.register("recovery_problems", help, self.recovery_problems.clone());
        let help = "Claims that were gone, and that the framework unprepared in the background";
        ours.register("orphans_removed", help, self.orphans_removed.clone());

        let help = "Reports of the status of a device to the API server, by what became of it";
        ours.register("status_reports", help, self.status_reports.clone());
        let help = "Reports of the status of a device that wait for the API server";
        ours.register("status_reports_waiting", help, self.status_reports_waiting.clone());

        let help = "Devices by the health that the driver reported last";
        ours.register("health_devices", help, self.devices.clone());
        ours.register("health_reports", "Reports of device health by the driver", self.health_reports.clone());
        let help = "Streams on which a kubelet is told of device health";
        ours.register("health_streams", help, self.health_streams.clone());
        self.slices.register(ours);
        let help = "Errors that no call waits for; a fatal one ends the driver, others are tried again";
        ours.register("background_errors", help, self.background_errors.clone());
    }
}

/// Nothing that is counted here comes near the largest number.
fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
