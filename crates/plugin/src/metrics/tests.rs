//! Tests of what is exposed after recording.

mod document;
mod exposition;

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt as _;
use tonic::Code as Grpc;

use self::exposition::Exposition;
use super::labels::LabelSet;
use super::*;

fn metrics() -> Metrics {
    Metrics::new(&DriverName::new("gpu.example.com").unwrap())
}

impl Metrics {
    fn exposition(&self) -> Exposition {
        Exposition::parse(&self.encode().unwrap())
    }

    /// Returns the value of a series, given without its prefix.
    fn value(&self, series: &str) -> f64 {
        self.exposition().value(&format!("drakkar_plugin_{series}"))
    }
}

/// Records something with every label value.
fn record_everything(metrics: &Metrics) {
    for (method, version) in <(Method, Version)>::all() {
        for code in 0..17 {
            metrics.call(method, version).finish(Grpc::from_i32(code));
        }
    }
    for (operation, outcome) in <(Operation, Outcome)>::all() {
        metrics.claim(operation, outcome);
        drop(metrics.time_driver(operation));
    }
    ApiAnswer::all().for_each(|answer| metrics.api_get().finish(answer));
    FileWork::all().for_each(|work| drop(metrics.time_metadata(work)));
    UpdateOutcome::all().for_each(|outcome| metrics.metadata_update(outcome));
    Severity::all().for_each(|severity| metrics.background_error(severity));
    metrics.set_health(HealthSummary { healthy: 3, unhealthy: 3, unknown: 3, streams: 0, reports: 1 });
    metrics.set_claims_source(|| ClaimCounts { prepared: 2, held: 2 });
    metrics.recovered(1, 1, 1);
    metrics.set_registered(true);
}

#[test]
fn the_exposition_is_valid_openmetrics_at_the_start_and_later() {
    let metrics = metrics();
    metrics.exposition().check();
    record_everything(&metrics);
    metrics.exposition().check();
}

/// Dashboards and alerts break silently when a name changes.
#[test]
fn names_types_and_labels_are_those_that_dashboards_use() {
    assert_eq!(metrics().exposition().families_as_text(), include_str!("tests/families.txt"));
}

/// Clusters have thousands of nodes, so every series counts.
#[test]
fn the_number_of_series_is_bounded() {
    let metrics = metrics();
    let at_start = metrics.exposition().samples.len();
    assert!(at_start <= 262, "{at_start} series at the start");
    (0..1000).for_each(|_| record_everything(&metrics));
    // Only the other status codes of calls are added.
    let added = metrics.exposition().samples.len() - at_start;
    assert_eq!(added, 5 * 3 * 17 - 8 * 3);
}

#[test]
fn each_set_of_labels_has_its_own_index() {
    type Labels = ((Method, Version), Code);
    let indexes: Vec<usize> = Labels::all().map(LabelSet::index).collect();
    assert_eq!(indexes, (0..Labels::COUNT).collect::<Vec<_>>());
}

#[test]
fn series_of_failures_are_exposed_at_zero_so_that_the_first_failure_is_an_increase() {
    let metrics = metrics();
    assert_eq!(metrics.value(r#"claim_operations_total{operation="prepare",outcome="not_allocated"}"#), 0.0);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="prepare",version="v1",code="cancelled"}"#), 0.0);
    assert_eq!(metrics.value(r#"background_errors_total{severity="fatal"}"#), 0.0);
}

#[test]
fn a_call_is_in_flight_until_it_is_answered() {
    let metrics = metrics();
    let call = metrics.call(Method::Prepare, Version::V1beta1);
    assert_eq!(metrics.value(r#"grpc_calls_in_flight{method="prepare"}"#), 1.0);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="prepare",version="v1beta1",code="ok"}"#), 0.0);

    call.finish(tonic::Code::Ok);
    assert_eq!(metrics.value(r#"grpc_calls_in_flight{method="prepare"}"#), 0.0);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="prepare",version="v1beta1",code="ok"}"#), 1.0);
    assert_eq!(metrics.value(r#"grpc_call_duration_seconds_count{method="prepare"}"#), 1.0);

    metrics.call(Method::GetInfo, Version::V1).finish(tonic::Code::Unavailable);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="get_info",version="v1",code="unavailable"}"#), 1.0);
}

#[tokio::test]
async fn a_call_that_the_kubelet_cancels_counts_as_cancelled() {
    let metrics = metrics();
    let handler = {
        let metrics = metrics.clone();
        async move {
            let call = metrics.call(Method::Unprepare, Version::V1);
            std::future::pending::<()>().await;
            call.finish(Grpc::Ok);
        }
    };
    let mut handler = Box::pin(handler);
    assert_eq!((&mut handler).now_or_never(), None);
    assert_eq!(metrics.value(r#"grpc_calls_in_flight{method="unprepare"}"#), 1.0);

    drop(handler);
    assert_eq!(metrics.value(r#"grpc_calls_in_flight{method="unprepare"}"#), 0.0);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="unprepare",version="v1",code="cancelled"}"#), 1.0);
    assert_eq!(metrics.value(r#"grpc_call_duration_seconds_count{method="unprepare"}"#), 1.0);
}

#[tokio::test]
async fn a_call_whose_handler_panics_counts_as_an_internal_error() {
    let metrics = metrics();
    let panicking = {
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let _call = metrics.call(Method::Prepare, Version::V1);
            tokio::task::yield_now().await;
            panic!("injected");
        })
    };
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(metrics.value(r#"grpc_calls_total{method="prepare",version="v1",code="internal"}"#), 1.0);
    assert_eq!(metrics.value(r#"grpc_calls_in_flight{method="prepare"}"#), 0.0);
}

/// A stream lasts for hours: its duration would be noise among those of calls.
#[test]
fn a_health_stream_is_counted_but_not_timed() {
    let metrics = metrics();
    let stream = metrics.call(Method::WatchHealth, Version::V1alpha1);
    assert_eq!(metrics.value("health_streams"), 1.0);
    drop(stream);
    assert_eq!(metrics.value("health_streams"), 0.0);
    assert_eq!(metrics.value(r#"grpc_calls_total{method="watch_health",version="v1alpha1",code="cancelled"}"#), 1.0);
    assert!(!metrics.encode().unwrap().contains(r#"duration_seconds_count{method="watch_health"}"#));
}

#[test]
fn a_cancelled_request_to_the_api_server_counts_as_unanswered() {
    let metrics = metrics();
    metrics.api_get().finish(ApiAnswer::of_status(200));
    metrics.api_get().finish(ApiAnswer::of_status(429));
    metrics.api_get().finish(ApiAnswer::of_status(503));
    drop(metrics.api_get());
    for code in ["2xx", "4xx", "5xx", "none"] {
        assert_eq!(metrics.value(&format!("api_requests_total{{code=\"{code}\"}}")), 1.0, "{code}");
    }
    assert_eq!(metrics.value("api_request_duration_seconds_count"), 4.0);
}

#[test]
fn durations_are_counted_in_the_right_buckets() {
    let metrics = metrics();
    let observe = |seconds| metrics.end_call(Method::Prepare, Version::V1, Code::Ok, Duration::from_secs_f64(seconds));
    [0.00005, 0.0002, 44.9, 46.0].into_iter().for_each(observe);
    let bucket = |le| metrics.value(&format!("grpc_call_duration_seconds_bucket{{le=\"{le}\",method=\"prepare\"}}"));
    assert_eq!(
        [bucket("0.0001"), bucket("0.0003"), bucket("30.0"), bucket("45.0"), bucket("+Inf")],
        [1., 2., 2., 3., 4.]
    );
    assert!((metrics.value(r#"grpc_call_duration_seconds_sum{method="prepare"}"#) - 90.90025).abs() < 1e-9);
}

#[test]
fn recorded_values_are_exposed_with_their_labels() {
    let metrics = metrics();
    metrics.claim(Operation::Prepare, Outcome::Conflict);
    metrics.claim(Operation::Prepare, Outcome::Conflict);
    metrics.claim(Operation::Unprepare, Outcome::Success);
    drop(metrics.time_driver(Operation::Unprepare));
    drop(metrics.time_metadata(FileWork::Update));
    metrics.metadata_update(UpdateOutcome::Refused);
    metrics.background_error(Severity::Recoverable);
    metrics.set_health_source(|| HealthSummary { healthy: 7, unhealthy: 1, unknown: 0, streams: 0, reports: 1 });
    metrics.set_claims_source(|| ClaimCounts { prepared: 5, held: 5 });
    metrics.holder_unprepared();
    metrics.recovered(4, 1, 2);
    metrics.set_registered(true);

    let expected = [
        (r#"claim_operations_total{operation="prepare",outcome="conflict"}"#, 2.0),
        (r#"claim_operations_total{operation="prepare",outcome="success"}"#, 0.0),
        (r#"claim_operations_total{operation="unprepare",outcome="success"}"#, 1.0),
        (r#"driver_duration_seconds_count{operation="prepare"}"#, 0.0),
        (r#"driver_duration_seconds_count{operation="unprepare"}"#, 1.0),
        (r#"metadata_duration_seconds_count{operation="update"}"#, 1.0),
        (r#"metadata_updates_total{outcome="refused"}"#, 1.0),
        (r#"background_errors_total{severity="recoverable"}"#, 1.0),
        (r#"background_errors_total{severity="fatal"}"#, 0.0),
        (r#"health_devices{status="healthy"}"#, 7.0),
        (r#"health_devices{status="unhealthy"}"#, 1.0),
        (r#"health_devices{status="unknown"}"#, 0.0),
        ("health_reports_total", 1.0),
        ("prepared_claims", 5.0),
        ("held_claims", 5.0),
        ("holders_unprepared_total", 1.0),
        ("recovered_claims_total", 4.0),
        ("recovery_problems_total", 1.0),
        ("orphans_removed_total", 2.0),
        ("registered", 1.0),
    ];
    for (series, value) in expected {
        assert_eq!(metrics.value(series), value, "{series}");
    }
    assert_eq!(metrics.prepared_claims(), 5);
    metrics.set_registered(false);
    assert_eq!(metrics.value("registered"), 0.0);
    let labels = format!(r#"version="{}",driver="gpu.example.com",driver_version="1.2.3""#, env!("CARGO_PKG_VERSION"));
    assert_eq!(metrics.value(&format!("build_info{{{labels}}}")), 1.0);
}

#[test]
fn process_metrics_are_read_at_the_time_of_the_scrape() {
    let metrics = metrics();
    let value = |name| metrics.exposition().value(name);
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_cpu_seconds_total") < 24.0 * 3600.0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - value("process_start_time_seconds");
    assert!((-5.0..24.0 * 3600.0).contains(&age), "{age}");

    // Other tests open and close files at the same time, but not that many.
    let before = value("process_open_fds");
    let files: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    assert!(value("process_open_fds") > before + 50.0);
    assert!(value("process_open_fds") < value("process_max_fds"));
    drop(files);
}

#[test]
fn a_driver_can_add_metrics_of_its_own() {
    let metrics = metrics();
    let resets: Counter = metrics.with_registry(|registry| {
        let resets = Counter::default();
        registry.register("example_gpu_resets", "GPUs that were reset", resets.clone());
        resets
    });
    resets.inc();
    assert_eq!(metrics.exposition().value("example_gpu_resets_total"), 1.0);
    metrics.exposition().check();

    let panicked = catch_unwind(AssertUnwindSafe(|| metrics.with_registry(|_| panic!("injected"))));
    assert!(panicked.is_err());
    metrics.exposition().check();
}

/// `cargo test --release -p drakkar-plugin -- --ignored --nocapture nanoseconds`
#[test]
#[ignore = "a measurement, for a release build"]
fn recording_takes_less_than_200_nanoseconds() {
    const ROUNDS: u32 = 1_000_000;
    let metrics = &metrics();
    let cases: [(&str, &dyn Fn()); 4] = [
        ("a claim", &|| metrics.claim(black_box(Operation::Prepare), black_box(Outcome::Success))),
        ("a call", &|| metrics.call(black_box(Method::Prepare), Version::V1).finish(Grpc::Ok)),
        ("a request", &|| metrics.api_get().finish(black_box(ApiAnswer::Success))),
        ("the driver's time", &|| drop(metrics.time_driver(black_box(Operation::Prepare)))),
    ];
    for (what, record) in cases {
        let started = std::time::Instant::now();
        (0..ROUNDS).for_each(|_| record());
        let each = started.elapsed() / ROUNDS;
        println!("{what}: {each:?}");
        assert!(each < Duration::from_nanos(200), "{what}: {each:?}");
    }
    let started = std::time::Instant::now();
    (0..1000).for_each(|_| drop(black_box(metrics.encode())));
    println!("a scrape: {:?}, {} bytes", started.elapsed() / 1000, metrics.encode().unwrap().len());
}
