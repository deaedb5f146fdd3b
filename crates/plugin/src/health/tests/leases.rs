//! Tests of the expiry of leases and of resends.

use std::collections::BTreeMap;
use std::sync::mpsc;

use futures::FutureExt as _;
use rstest::rstest;
use tokio::time::{Instant, advance};

use super::double::*;
use crate::health::*;

/// G41 and A.6: Go reports to the driver and leaves the expiry to the kubelet; here the kubelet gets it too, at once.
#[tokio::test(start_paused = true)]
async fn a_device_with_an_expired_lease_is_unknown_and_the_driver_gets_one_error() {
    let (double, mut stream, monitor) = Double::running().await;
    let start = Instant::now();
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0").with_lease(Duration::from_millis(20))).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    assert_eq!(next(&mut stream).await, ["gpu-0 Unknown no health report for 20ms"]);
    assert!(start.elapsed() <= Duration::from_millis(22), "{:?}", start.elapsed());
    run_ready_tasks().await;
    assert_eq!(double.errors(), ["device health: lease expired without a report on node-1/gpu-0"]);

    // The unknown state is resent, without another error.
    advance(seconds(60)).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Unknown no health report for 20ms"]);
    assert!(double.errors().is_empty());

    // The next report makes it healthy, and the next expiry is reported again.
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Healthy"]);
    advance(seconds(31)).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Unknown no health report for 30s"]);
    assert_eq!(double.errors().len(), 1);
}

/// G41: Go watches the driver as a whole, so one device that is reported hides all that are not.
#[tokio::test(start_paused = true)]
async fn a_device_that_is_reported_does_not_hide_one_that_is_not() {
    let (double, mut stream, monitor) = Double::running().await;
    let gpus = ["gpu-0", "gpu-1", "gpu-2"].map(|name| DeviceHealth::healthy("node-1", name));
    monitor.reporter.report(gpus.clone()).await;
    for _ in 0..5 {
        advance(seconds(6)).await;
        monitor.reporter.report(gpus[..1].to_vec()).await;
    }
    let mut states = pending(&mut stream).await;
    states.sort();
    let expired = ["gpu-1", "gpu-2"].map(|name| format!("{name} Unknown no health report for 30s"));
    assert_eq!(states, ["gpu-0 Healthy", &expired[0], &expired[1]]);
    // One error for all leases that expire together.
    assert_eq!(double.errors(), ["device health: lease expired without a report on node-1/gpu-1, node-1/gpu-2"]);
}

/// G42: Go truncates 20 ms to 0, which a kubelet replaces by 30 s. And A.6, per device and not for the report as a whole:
/// none, zero, and different leases. They cannot be negative.
#[rstest]
#[case::none(None, 30)]
#[case::zero(Some(Duration::ZERO), 30)]
#[case::a_moment(Some(Duration::from_nanos(1)), 1)]
#[case::below_a_second(Some(Duration::from_millis(20)), 1)]
#[case::a_second(Some(seconds(1)), 1)]
#[case::between_seconds(Some(Duration::from_millis(1001)), 2)]
#[case::short(Some(seconds(5)), 5)]
#[case::long(Some(seconds(120)), 120)]
#[case::for_ever(Some(Duration::MAX), 365 * 24 * 60 * 60)]
#[tokio::test(start_paused = true)]
async fn a_lease_is_rounded_up_to_seconds_for_the_kubelet(#[case] lease: Option<Duration>, #[case] expected: i64) {
    let (_double, mut stream, monitor) = Double::running().await;
    let other = DeviceHealth::healthy("node-1", "other").with_lease(seconds(60));
    monitor.reporter.report([DeviceHealth { lease, ..DeviceHealth::healthy("node-1", "gpu-0") }, other]).await;
    let states = in_time(stream.next()).await.unwrap().unwrap();
    assert_eq!(states.iter().map(|device| device.lease_seconds).collect::<Vec<_>>(), [expected, 60]);
}

#[rstest]
#[case::the_default(None, &[10, 20])]
#[case::short(Some(seconds(6)), &[2, 4])]
#[case::long(Some(seconds(60)), &[10, 20, 30, 40, 50])]
#[tokio::test(start_paused = true)]
async fn a_state_is_resent_in_every_third_of_its_lease(#[case] lease: Option<Duration>, #[case] expected: &[u64]) {
    let (_double, mut stream, monitor) = Double::running().await;
    let start = Instant::now();
    monitor.report(DeviceHealth { lease, ..DeviceHealth::healthy("node-1", "gpu-0") }).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy"]);
    let mut resent = vec![];
    while next(&mut stream).await == ["gpu-0 Healthy"] {
        resent.push(start.elapsed().as_secs());
    }
    assert_eq!(resent, expected);
    assert_eq!(start.elapsed().as_secs(), lease.unwrap_or(DEFAULT_LEASE).as_secs());
}

#[tokio::test(start_paused = true)]
async fn devices_that_are_due_at_almost_the_same_time_are_resent_together() {
    let (_double, mut stream, monitor) = Double::running().await;
    for name in ["gpu-0", "gpu-1", "gpu-2"] {
        monitor.report(DeviceHealth::healthy("node-1", name)).await;
        advance(Duration::from_millis(20)).await;
    }
    assert_eq!(next(&mut stream).await.len(), 3);
    assert_eq!(next(&mut stream).await.len(), 3);
}

/// A kubelet clears the health of a driver when one of its streams ends, also if another instance is still running.
#[tokio::test(start_paused = true)]
async fn a_kubelet_that_lost_its_state_has_it_again_within_ten_seconds() {
    let (_double, mut stream, monitor) = Double::running().await;
    let reporter = monitor.reporter.clone();
    let reports = tokio::spawn(async move {
        loop {
            let gpu = |name| DeviceHealth::healthy("node-1", name);
            reporter
                .report([gpu("gpu-0"), gpu("gpu-1").with_lease(seconds(300)), gpu("gpu-2").with_lease(seconds(7))])
                .await;
            tokio::time::sleep(seconds(5)).await;
        }
    });
    let mut kubelet = BTreeMap::new();
    for step in 0..300 {
        advance(Duration::from_millis(100)).await;
        run_ready_tasks().await;
        while let Some(states) = stream.next().now_or_never() {
            kubelet.extend(states.unwrap().unwrap().into_iter().map(|device| (device.device_name, device.health)));
        }
        if step == 130 {
            kubelet.clear();
        }
    }
    assert_eq!(kubelet.into_values().collect::<Vec<_>>(), [HealthStatus::Healthy; 3]);
    reports.abort();
}

#[tokio::test(start_paused = true)]
async fn leases_expire_without_a_stream_too() {
    let (double, stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    drop(stream);
    advance(seconds(30)).await;
    run_ready_tasks().await;
    assert_eq!(double.errors().len(), 1);
    assert_eq!(double.hub.summary(), HealthSummary { unknown: 1, reports: 1, ..HealthSummary::default() });
    let mut late = double.hub.subscribe().unwrap();
    assert_eq!(next(&mut late).await, ["gpu-0 Unknown no health report for 30s"]);
    assert!(pending(&mut late).await.is_empty());
}

/// The devices of a stuck monitor must become unknown, also if it blocks its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_expire_while_the_monitor_blocks_its_thread() {
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
    let hub = HealthHub::new(
        move |reporter| {
            let blocked = blocked.clone();
            async move {
                reporter.report([DeviceHealth::healthy("node-1", "gpu-0").with_lease(Duration::from_millis(20))]).await;
                blocked.lock().unwrap().recv().ok();
                Ok(())
            }
            .boxed()
        },
        |_| {},
    );
    let mut stream = hub.subscribe().unwrap();
    let unknown = async { while next(&mut stream).await != ["gpu-0 Unknown no health report for 20ms"] {} };
    in_time(unknown).await;
    drop(release);
}
