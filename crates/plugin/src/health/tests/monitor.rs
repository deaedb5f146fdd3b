//! The life of a monitor: when it is started, how it ends, and what that means for others.

use crate::health::hub::MonitorStuck;
use std::sync::{Arc, Mutex, mpsc};

use futures::FutureExt as _;
use rstest::rstest;
use tokio::time::{Instant, advance};

use super::double::*;
use crate::health::*;

async fn ended(stream: &mut Subscription) -> Result<(), Stopped> {
    in_time(stream.next()).await.map(|told| assert_eq!(told, None))
}

#[tokio::test(start_paused = true)]
async fn a_monitor_is_started_by_the_first_stream_and_kept_after_the_last() {
    let mut double = Double::new();
    settle().await;
    assert!(!double.has_started());
    let stream = double.hub.subscribe().unwrap();
    let monitor = double.monitor().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    drop(stream);
    settle().await;
    assert!(!monitor.reporter.is_closed());
    let mut stream = double.hub.subscribe().unwrap();
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    assert!(!double.has_started());
}

/// A.6: all that was reported arrives, then the end, which is no error.
#[tokio::test(start_paused = true)]
async fn a_monitor_that_returns_ends_the_streams_and_the_next_stream_starts_it_again() {
    let (mut double, mut stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    let reporter = monitor.reporter.clone();
    monitor.end(Order::Return);
    in_time(reporter.closed()).await;
    reporter.report([DeviceHealth::healthy("node-1", "too-late")]).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    assert_eq!(ended(&mut stream).await, Ok(()));
    assert!(double.errors().is_empty());
    assert_eq!(double.hub.summary(), HealthSummary { streams: 1, reports: 1, ..HealthSummary::default() });

    let mut stream = double.hub.subscribe().unwrap();
    let monitor = double.monitor().await;
    assert!(now(&mut stream).await.is_empty());
    monitor.report(DeviceHealth::healthy("node-1", "gpu-1")).await;
    assert_eq!(next(&mut stream).await, ["gpu-1 Healthy"]);
}

/// G45: in Go a panic there ends the process.
#[rstest]
#[case::fails(Order::Fail("no such file"), "no such file")]
#[case::panics(Order::Panic("index out of bounds"), "the driver panicked: index out of bounds")]
#[tokio::test(start_paused = true)]
async fn a_monitor_that(#[case] order: Order, #[case] error: &str) {
    let (mut double, mut stream, monitor) = Double::running().await;
    let gpus = [DeviceHealth::healthy("node-1", "gpu-0"), DeviceHealth::unhealthy("node-1", "gpu-1", "too hot")];
    monitor.reporter.report(gpus).await;
    next(&mut stream).await;
    let reporter = monitor.reporter.clone();
    let start = Instant::now();
    monitor.end(order);

    // Nothing is known, at once, and what it left running does not count.
    let unknown = ["gpu-0", "gpu-1"].map(|name| format!("{name} Unknown the health monitor ended: {error}"));
    assert_eq!(next(&mut stream).await, unknown);
    assert_eq!(start.elapsed(), Duration::ZERO);
    let told = format!("health of devices: the health monitor ended and will be started again: {error}");
    assert_eq!(double.errors(), [told]);
    assert!(reporter.is_closed());
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
    reporter.forget("node-1", "gpu-0").await;

    // The next one heals it.
    let monitor = double.monitor().await;
    assert!((Duration::from_millis(500)..=Duration::from_millis(1002)).contains(&start.elapsed()));
    assert!(now(&mut stream).await.iter().all(|device| unknown.contains(device)));
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(now(&mut stream).await, ["gpu-0 Healthy"]);
    assert!(double.errors().is_empty());
}

/// G45: a driver may do its work before it returns the future.
#[tokio::test(start_paused = true)]
async fn a_monitor_that_panics_before_it_is_a_future_is_started_again() {
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
async fn a_monitor_that_fails_again_and_again_is_started_ever_more_slowly() {
    let (mut double, _stream, mut monitor) = Double::running().await;
    for whole in [1, 2, 4, 8, 16, 30, 30, 30].map(seconds) {
        let start = Instant::now();
        monitor.end(Order::Fail("still no such file"));
        monitor = double.monitor().await;
        let waited = start.elapsed();
        assert!(waited >= whole / 2 && waited <= whole + Duration::from_millis(2), "{waited:?} of {whole:?}");
    }
    // One that worked for a while is as good as new.
    advance(seconds(30)).await;
    let start = Instant::now();
    monitor.end(Order::Fail("no such file"));
    double.monitor().await;
    assert!(start.elapsed() <= Duration::from_millis(1002));
}

#[tokio::test(start_paused = true)]
async fn a_failed_monitor_is_not_started_again_for_nobody() {
    let (mut double, stream, monitor) = Double::running().await;
    drop(stream);
    monitor.end(Order::Fail("no such file"));
    advance(seconds(600)).await;
    settle().await;
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

/// A monitor that cannot be interrupted, and something to let it go with.
fn blocking() -> (HealthHub, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (entered, enter) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let released = Arc::new(Mutex::new(released));
    let monitor = move |_| {
        let (entered, released) = (entered.clone(), released.clone());
        async move {
            entered.send(()).ok();
            released.lock().unwrap().recv().ok();
            Ok(())
        }
        .boxed()
    };
    (HealthHub::new(monitor, |_| {}), release, enter)
}

/// G43: in Go it holds up the stream's handler for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_that_ignores_its_end_holds_up_neither_streams_nor_a_stop() {
    let (hub, release, entered) = blocking();
    let mut stream = hub.subscribe().unwrap();
    tokio::task::block_in_place(|| entered.recv_timeout(seconds(60))).unwrap();
    assert_eq!(in_time(hub.stop(Instant::now() + Duration::from_millis(10))).await, Err(MonitorStuck));
    assert_eq!(ended(&mut stream).await, Err(Stopped));
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_the_monitor_to_be_gone() {
    let (hub, release, entered) = blocking();
    let _stream = hub.subscribe().unwrap();
    tokio::task::block_in_place(|| entered.recv_timeout(seconds(60))).unwrap();
    let mut stop = std::pin::pin!(hub.stop(Instant::now() + seconds(60)));
    assert_eq!(stop.as_mut().now_or_never(), None);
    drop(release);
    assert_eq!(stop.await, Ok(()));
}

/// G43: whatever the driver keeps, nothing stays behind.
#[tokio::test(start_paused = true)]
async fn a_dropped_hub_takes_its_monitor_along_even_if_the_driver_keeps_the_reporter() {
    let driver = Arc::new(Mutex::new(None));
    let (kept, told) = (driver.clone(), driver.clone());
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
        move |_| drop(told.lock()),
    );
    let mut stream = hub.subscribe().unwrap();
    eventually("the monitor runs", || driver.lock().unwrap().is_some()).await;
    drop(hub);
    assert_eq!(ended(&mut stream).await, Err(Stopped));
    drop(stream);
    eventually("nothing leads to the driver", || Arc::strong_count(&driver) == 1).await;
    let reporter = driver.lock().unwrap().take().unwrap();
    assert!(reporter.is_closed());
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drivers_handler_of_errors_does_not_stop_the_leases() {
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
async fn a_reporter_to_nobody_is_closed_and_takes_reports_all_the_same() {
    let reporter = HealthReporter::to_nobody();
    reporter.report([DeviceHealth::healthy("node-1", "gpu-0")]).await;
    reporter.forget("node-1", "gpu-0").await;
    in_time(reporter.closed()).await;
    assert!(reporter.is_closed());
}
