//! Tests of the monitor's lifecycle: when it is started, how it ends, and the effect on streams.

use std::sync::{Arc, Mutex, mpsc};

use futures::FutureExt as _;
use rstest::rstest;
use tokio::time::{Instant, advance};

use super::double::*;
use crate::health::hub::StopTimeout;
use crate::health::*;

async fn ended(stream: &mut Subscription) -> Result<(), Stopped> {
    in_time(stream.next()).await.map(|states| assert_eq!(states, None))
}

#[tokio::test(start_paused = true)]
async fn a_monitor_is_started_by_the_first_stream_and_kept_after_the_last() {
    let mut double = Double::new();
    run_ready_tasks().await;
    assert!(!double.has_started());
    let stream = double.hub.subscribe().unwrap();
    let monitor = double.monitor().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    drop(stream);
    run_ready_tasks().await;
    assert!(!monitor.reporter.is_closed());
    let mut stream = double.hub.subscribe().unwrap();
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    assert!(!double.has_started());
}

/// A.6: the stream delivers all reports and then ends without an error.
#[tokio::test(start_paused = true)]
async fn a_monitor_that_returns_ends_the_streams_and_the_next_stream_starts_it_again() {
    let (mut double, mut stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    let reporter = monitor.reporter.clone();
    monitor.end(Exit::Return);
    in_time(reporter.closed()).await;
    reporter.report([DeviceHealth::healthy("node-1", "too-late")]).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    assert_eq!(ended(&mut stream).await, Ok(()));
    assert!(double.errors().is_empty());
    assert_eq!(double.hub.summary(), HealthSummary { streams: 1, reports: 1, ..HealthSummary::default() });

    let mut stream = double.hub.subscribe().unwrap();
    let monitor = double.monitor().await;
    assert!(pending(&mut stream).await.is_empty());
    monitor.report(DeviceHealth::healthy("node-1", "gpu-1")).await;
    assert_eq!(next(&mut stream).await, ["gpu-1 Healthy"]);
}

/// G45: in Go a panic there ends the process.
#[rstest]
#[case::with_an_error(Exit::Fail("no such file"), "no such file")]
#[case::with_a_panic(Exit::Panic("index out of bounds"), "the driver panicked: index out of bounds")]
#[tokio::test(start_paused = true)]
async fn a_monitor_that_fails_is_restarted(#[case] exit: Exit, #[case] error: &str) {
    let (mut double, mut stream, monitor) = Double::running().await;
    let gpus = [DeviceHealth::healthy("node-1", "gpu-0"), DeviceHealth::unhealthy("node-1", "gpu-1", "too hot")];
    monitor.reporter.report(gpus).await;
    next(&mut stream).await;
    let reporter = monitor.reporter.clone();
    let start = Instant::now();
    monitor.end(exit);

    // All devices are unknown at once, and the old reporter is closed.
    let unknown = ["gpu-0", "gpu-1"].map(|name| format!("{name} Unknown the health monitor ended: {error}"));
    assert_eq!(next(&mut stream).await, unknown);
    assert_eq!(start.elapsed(), Duration::ZERO);
    let reported = format!("device health: the health monitor ended and will be restarted: {error}");
    assert_eq!(double.errors(), [reported]);
    assert!(reporter.is_closed());
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
    reporter.forget("node-1", "gpu-0").await;

    // The restarted monitor reports again.
    let monitor = double.monitor().await;
    assert!((Duration::from_millis(500)..=Duration::from_millis(1002)).contains(&start.elapsed()));
    assert!(pending(&mut stream).await.iter().all(|device| unknown.contains(device)));
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Healthy"]);
    assert!(double.errors().is_empty());
}

/// G45: a driver may panic before it returns the future.
#[tokio::test(start_paused = true)]
async fn a_monitor_that_panics_before_it_returns_its_future_is_restarted() {
    let attempts = Arc::new(Mutex::new(0));
    let counted = attempts.clone();
    let hub = HealthHub::new(
        move |_| {
            *counted.lock().unwrap() += 1;
            panic!("no future")
        },
        |_| {},
    );
    let _stream = hub.subscribe().unwrap();
    eventually("a third attempt", || *attempts.lock().unwrap() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_monitor_that_keeps_failing_is_restarted_with_backoff() {
    let (mut double, _stream, mut monitor) = Double::running().await;
    for whole in [1, 2, 4, 8, 16, 30, 30, 30].map(seconds) {
        let start = Instant::now();
        monitor.end(Exit::Fail("still no such file"));
        monitor = double.monitor().await;
        let waited = start.elapsed();
        assert!(waited >= whole / 2 && waited <= whole + Duration::from_millis(2), "{waited:?} of {whole:?}");
    }
    // The backoff starts over after a monitor has run for a while.
    advance(seconds(30)).await;
    let start = Instant::now();
    monitor.end(Exit::Fail("no such file"));
    double.monitor().await;
    assert!(start.elapsed() <= Duration::from_millis(1002));
}

#[tokio::test(start_paused = true)]
async fn a_failed_monitor_is_not_restarted_without_a_stream() {
    let (mut double, stream, monitor) = Double::running().await;
    drop(stream);
    monitor.end(Exit::Fail("no such file"));
    advance(seconds(600)).await;
    run_ready_tasks().await;
    assert!(!double.has_started());
    let _stream = double.hub.subscribe().unwrap();
    double.monitor().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_streams_and_the_monitor_and_later_streams_are_refused() {
    let (double, mut stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(double.hub.stop(Instant::now() + seconds(1)).await, Ok(()));
    assert_eq!(ended(&mut stream).await, Err(Stopped));
    assert!(monitor.reporter.is_closed());
    assert_eq!(double.hub.subscribe().err(), Some(Stopped));
    assert_eq!(double.hub.stop(Instant::now()).await, Ok(()));
}

/// Creates a hub whose monitor blocks its thread. Dropping the sender releases it; the receiver says that it runs.
fn blocking() -> (HealthHub, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (entered, enter) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Arc::new(Mutex::new(released));
    let monitor = move |_| {
        let entered = entered.clone();
        let released = released.clone();
        async move {
            entered.send(()).ok();
            released.lock().unwrap().recv().ok();
            Ok(())
        }
        .boxed()
    };
    (HealthHub::new(monitor, |_| {}), release, enter)
}

/// G43: in Go such a monitor blocks the stream's handler forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_that_ignores_cancellation_blocks_neither_streams_nor_a_stop() {
    let (hub, release, entered) = blocking();
    let mut stream = hub.subscribe().unwrap();
    tokio::task::block_in_place(|| entered.recv_timeout(seconds(60))).unwrap();
    assert_eq!(in_time(hub.stop(Instant::now() + Duration::from_millis(10))).await, Err(StopTimeout));
    assert_eq!(ended(&mut stream).await, Err(Stopped));
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_the_end_of_the_monitor() {
    let (hub, release, entered) = blocking();
    let _stream = hub.subscribe().unwrap();
    tokio::task::block_in_place(|| entered.recv_timeout(seconds(60))).unwrap();
    let mut stop = std::pin::pin!(hub.stop(Instant::now() + seconds(60)));
    assert_eq!(stop.as_mut().now_or_never(), None);
    drop(release);
    assert_eq!(stop.await, Ok(()));
}

/// G43: nothing leaks, whatever the driver keeps.
#[tokio::test(start_paused = true)]
async fn a_dropped_hub_ends_its_monitor_even_if_the_driver_keeps_the_reporter() {
    let driver = Arc::new(Mutex::new(None));
    let kept = driver.clone();
    let handler = driver.clone();
    let hub = HealthHub::new(
        move |reporter| {
            *kept.lock().unwrap() = Some(reporter);
            let kept = kept.clone();
            async move {
                let _kept = kept;
                std::future::pending().await
            }
            .boxed()
        },
        move |_| drop(handler.lock()),
    );
    let mut stream = hub.subscribe().unwrap();
    eventually("the monitor runs", || driver.lock().unwrap().is_some()).await;
    drop(hub);
    assert_eq!(ended(&mut stream).await, Err(Stopped));
    drop(stream);
    eventually("the driver is no longer referenced", || Arc::strong_count(&driver) == 1).await;
    let reporter = driver.lock().unwrap().take().unwrap();
    assert!(reporter.is_closed());
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drivers_error_handler_does_not_stop_the_leases() {
    let hub = HealthHub::new(
        |reporter| {
            async move {
                reporter.report([DeviceHealth::healthy("node-1", "gpu-0"), DeviceHealth::healthy("", "")]).await;
                tokio::time::sleep(seconds(40)).await;
                reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
                std::future::pending().await
            }
            .boxed()
        },
        |error| panic!("{error}"),
    );
    let mut stream = hub.subscribe().unwrap();
    for _ in 0..2 {
        while next(&mut stream).await != ["gpu-0 Healthy"] {}
        while next(&mut stream).await != ["gpu-0 Unknown no health report for 30s"] {}
    }
}

#[tokio::test]
async fn a_closed_reporter_accepts_and_discards_reports() {
    let reporter = HealthReporter::already_closed();
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
    reporter.forget("node-1", "gpu-0").await;
    in_time(reporter.closed()).await;
    assert!(reporter.is_closed());
}
