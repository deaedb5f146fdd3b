//! Tests of what streams send for the reports of a monitor.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use drakkar_kubelet_api::health_v1 as proto;
use prost::Message as _;
use rstest::rstest;

use super::double::*;
use crate::health::table::{MAX_DEVICES, MAX_MESSAGE};
use crate::health::*;

fn many(range: std::ops::Range<usize>) -> impl Iterator<Item = DeviceHealth> {
    range.map(|number| DeviceHealth::healthy("node-1", format!("gpu-{number}")))
}

#[tokio::test(start_paused = true)]
async fn a_report_is_one_message_and_a_change_is_sent_alone() {
    let (_double, mut stream, monitor) = Double::running().await;
    let gpus = [DeviceHealth::healthy("node-1", "gpu-0"), DeviceHealth::unhealthy("node-1", "gpu-1", "too hot")];
    monitor.reporter.report(gpus).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Healthy", "gpu-1 Unhealthy too hot"]);
    monitor.report(DeviceHealth::unknown("node-1", "gpu-0", "being reset")).await;
    assert_eq!(next(&mut stream).await, ["gpu-0 Unknown being reset"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_starts_with_all_devices_and_the_same_monitor() {
    let (double, mut first, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-1")).await;
    assert_eq!(next(&mut first).await, ["gpu-0 Healthy", "gpu-1 Healthy"]);
    let mut second = double.hub.subscribe().unwrap();
    assert_eq!(next(&mut second).await, ["gpu-0 Healthy", "gpu-1 Healthy"]);
    monitor.report(DeviceHealth::unhealthy("node-1", "gpu-1", "")).await;
    assert_eq!(next(&mut first).await, ["gpu-1 Unhealthy"]);
    assert_eq!(next(&mut second).await, ["gpu-1 Unhealthy"]);
    assert!(!double.has_started());
}

#[tokio::test(start_paused = true)]
async fn a_report_without_changes_is_not_sent() {
    let (_double, mut stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Healthy"]);
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert!(pending(&mut stream).await.is_empty());
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0").with_lease(seconds(31))).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Healthy"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_the_last_state_of_each_device_once() {
    let (_double, mut stream, monitor) = Double::running().await;
    for round in 0..1000 {
        monitor.report(DeviceHealth::unhealthy("node-1", format!("gpu-{}", round % 2), round.to_string())).await;
    }
    assert_eq!(pending(&mut stream).await, ["gpu-0 Unhealthy 998", "gpu-1 Unhealthy 999"]);
    assert!(pending(&mut stream).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_device_is_sent_as_unknown_once_and_never_to_new_streams() {
    let (double, mut stream, monitor) = Double::running().await;
    let gpus = [DeviceHealth::healthy("node-1", "gpu-0"), DeviceHealth::healthy("node-1", "gpu-1")];
    monitor.reporter.report(gpus).await;
    next(&mut stream).await;
    monitor.reporter.forget("node-1", "gpu-0").await;
    monitor.reporter.forget("node-1", "never-there").await;
    monitor.reporter.forget("not a pool", "").await;
    let mut new = double.hub.subscribe().unwrap();
    assert_eq!(pending(&mut new).await, ["gpu-1 Healthy"]);
    let gone = in_time(stream.next()).await.unwrap().unwrap();
    assert_eq!(gone.iter().map(text).collect::<Vec<_>>(), ["gpu-0 Unknown the driver no longer has this device"]);
    // The kubelet drops the device when this lease expires.
    assert_eq!(gone[0].lease_seconds, 1);

    // It has no lease that could expire, and is not resent.
    tokio::time::advance(seconds(9)).await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-1")).await;
    tokio::time::advance(seconds(9)).await;
    assert_eq!(pending(&mut stream).await, ["gpu-1 Healthy"]);
    assert!(double.errors().is_empty());

    // It may come back.
    monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
    assert_eq!(pending(&mut stream).await, ["gpu-0 Healthy"]);
}

#[tokio::test(start_paused = true)]
async fn devices_that_come_and_go_unread_do_not_accumulate() {
    let (double, mut stream, monitor) = Double::running().await;
    for round in 0..3 {
        let range = round * MAX_DEVICES..(round + 1) * MAX_DEVICES;
        monitor.reporter.report(many(range.clone())).await;
        for number in range {
            monitor.reporter.forget("node-1", &format!("gpu-{number}")).await;
        }
    }
    assert!(double.errors().is_empty());
    let states = next(&mut stream).await;
    assert_eq!(states.len(), MAX_DEVICES);
    assert!(states[0].starts_with(&format!("gpu-{} ", 2 * MAX_DEVICES)), "{}", states[0]);
    assert!(pending(&mut stream).await.is_empty());
}

/// G44: Go leaves truncation to the kubelet, which truncates between any two bytes.
#[rstest]
#[case::of_the_full_length("x".repeat(1024), "x".repeat(1024))]
#[case::one_byte_longer("x".repeat(1025), format!("{}...", "x".repeat(1021)))]
#[case::with_a_character_at_the_limit(format!("x{}", "é".repeat(600)), format!("x{}...", "é".repeat(510)))]
#[case::with_a_large_character_at_the_limit("🔥".repeat(300), format!("{}...", "🔥".repeat(255)))]
#[tokio::test(start_paused = true)]
async fn a_message_is_truncated_between_characters(#[case] message: String, #[case] expected: String) {
    let (_double, mut stream, monitor) = Double::running().await;
    monitor.report(DeviceHealth::unhealthy("node-1", "gpu-0", message)).await;
    let states = in_time(stream.next()).await.unwrap().unwrap();
    assert!(states[0].message.len() <= MAX_MESSAGE);
    assert_eq!(states[0].message, expected);
}

#[tokio::test(start_paused = true)]
async fn devices_beyond_the_kubelets_limit_are_skipped_and_named() {
    let (double, mut stream, monitor) = Double::running().await;
    for _ in 0..2 {
        monitor.reporter.report(many(0..MAX_DEVICES + 10)).await;
        let names = (MAX_DEVICES..MAX_DEVICES + 8).map(|number| format!("node-1/gpu-{number}")).collect::<Vec<_>>();
        let error = format!(
            "device health: a kubelet keeps the health of at most 16384 devices of a driver: skipped {} and 2 more",
            names.join(", ")
        );
        assert_eq!(double.errors(), [error]);
        assert_eq!(double.hub.summary().healthy, MAX_DEVICES);
        // The same report again is no new error.
        monitor.reporter.report(many(0..MAX_DEVICES + 10)).await;
        assert!(double.errors().is_empty());

        // After a device is forgotten, the next skipped device is a new error.
        monitor.reporter.forget("node-1", "gpu-0").await;
        monitor.report(DeviceHealth::healthy("node-1", "gpu-0")).await;
        assert!(double.errors().is_empty());
    }
    assert_eq!(next(&mut stream).await.len(), MAX_DEVICES);
}

#[tokio::test(start_paused = true)]
async fn devices_with_an_expired_lease_are_evicted_for_others() {
    let (double, mut stream, monitor) = Double::running().await;
    monitor.reporter.report(many(0..MAX_DEVICES - 1)).await;
    tokio::time::advance(seconds(20)).await;
    monitor.report(DeviceHealth::healthy("node-1", "nic-0")).await;
    tokio::time::advance(seconds(10)).await;
    run_ready_tasks().await;
    assert_eq!(double.errors().len(), 1);
    next(&mut stream).await;

    monitor.reporter.report(many(MAX_DEVICES..2 * MAX_DEVICES)).await;
    let errors = double.errors();
    assert!(matches!(&errors[..], [error] if error.ends_with("skipped node-1/gpu-32767")), "{errors:?}");
    let HealthSummary { healthy, unknown, .. } = double.hub.summary();
    assert_eq!((healthy, unknown), (MAX_DEVICES, 0));
}

#[tokio::test(start_paused = true)]
async fn a_device_with_an_invalid_name_is_skipped_and_the_rest_of_the_report_is_applied() {
    let (double, mut stream, monitor) = Double::running().await;
    let report = ["GPU 0", "gpu-1", ""].map(|name| DeviceHealth::healthy("node-1", name));
    monitor.reporter.report(report.clone()).await;
    monitor.reporter.report(report).await;
    assert_eq!(next(&mut stream).await, ["gpu-1 Healthy"]);
    let errors = double.errors();
    assert!(
        matches!(&errors[..], [error] if error.starts_with(r#"device health: report skipped: device name "GPU 0": "#)),
        "{errors:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_largest_report_is_split_into_messages_that_clients_accept() {
    let (double, mut stream, monitor) = Double::running().await;
    let pool = format!("{}/{}", "p".repeat(126), "q".repeat(126));
    let name = |number| format!("{number:0>63}");
    let report = (0..MAX_DEVICES)
        .map(|number| DeviceHealth::unhealthy(&pool, name(number), "x".repeat(2000)).with_lease(Duration::MAX));
    monitor.reporter.report(report).await;
    assert!(double.errors().is_empty());
    let mut devices = BTreeMap::new();
    while devices.len() < MAX_DEVICES {
        let states = in_time(stream.next()).await.unwrap().unwrap();
        let message = proto::NodeWatchResourcesResponse {
            devices: states
                .iter()
                .map(|device| proto::DeviceHealth {
                    device: Some(proto::DeviceIdentifier {
                        pool_name: device.pool_name.clone(),
                        device_name: device.device_name.clone(),
                    }),
                    health: proto::HealthStatus::Unhealthy.into(),
                    last_updated_time: i64::MAX,
                    health_check_timeout_seconds: i64::MAX,
                    message: device.message.clone(),
                })
                .collect(),
        };
        assert!(message.encoded_len() < 4 * 1024 * 1024, "{}", message.encoded_len());
        for device in states {
            assert!(devices.insert(device.device_name.clone(), device).is_none());
        }
    }
    assert!(pending(&mut stream).await.is_empty());
    assert_eq!(devices.len(), MAX_DEVICES);
}

/// The limit is some thirty times what this takes on a busy machine with two cores, without optimization.
#[tokio::test]
async fn sixteen_thousand_devices_are_reported_and_read_within_the_limit() {
    let (_double, mut stream, monitor) = Double::running().await;
    let start = Instant::now();
    monitor.reporter.report(many(0..MAX_DEVICES)).await;
    assert_eq!(next(&mut stream).await.len(), MAX_DEVICES);
    monitor.reporter.report(many(0..MAX_DEVICES)).await;
    let taken = start.elapsed();
    assert!(taken < seconds(20), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn the_time_is_that_of_the_driver_or_of_the_report() {
    let (_double, mut stream, monitor) = Double::running().await;
    let unix =
        |time: SystemTime| i64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()).unwrap();
    let before = unix(SystemTime::now());
    let given = |time| DeviceHealth { last_updated: Some(time), ..DeviceHealth::healthy("node-1", "given") };
    let report = [DeviceHealth::healthy("node-1", "not"), given(SystemTime::UNIX_EPOCH + seconds(1_700_000_000))];
    monitor.reporter.report(report).await;
    let states = in_time(stream.next()).await.unwrap().unwrap();
    assert!((before..=unix(SystemTime::now())).contains(&states[0].last_updated));
    assert_eq!(states[1].last_updated, 1_700_000_000);
}

#[tokio::test(start_paused = true)]
async fn the_summary_counts_devices_streams_and_reports() {
    let double = Double::new();
    assert_eq!(double.hub.summary(), HealthSummary::default());
    let (double, stream, monitor) = Double::running().await;
    let _second = double.hub.subscribe().unwrap();
    monitor.reporter.report(many(0..3)).await;
    let report = [DeviceHealth::unhealthy("node-1", "gpu-1", ""), DeviceHealth::unknown("node-1", "gpu-2", "")];
    monitor.reporter.report(report).await;
    monitor.report(DeviceHealth::healthy("node-1", "gpu-3")).await;
    monitor.reporter.forget("node-1", "gpu-3").await;
    let expected = HealthSummary { healthy: 1, unhealthy: 1, unknown: 1, streams: 2, reports: 3 };
    assert_eq!(double.hub.summary(), expected);
    drop(stream);
    assert_eq!(double.hub.summary(), HealthSummary { streams: 1, ..expected });
}
