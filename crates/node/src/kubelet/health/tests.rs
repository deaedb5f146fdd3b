//! Tests of health: the table by itself, and the streams of plugins.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::kubelet::checkpoint::WriteGate;
use crate::kubelet::testing::{DRIVER, TestNode, TestPlugin, connected, eventually};
use crate::kubelet::{Config, Kubelet, Release};

fn table(directory: &Path) -> HealthTable {
    let file = StateFile::new(directory.join("dra_health_state"), WriteGate::default());
    HealthTable::restore(file, Duration::from_secs(30)).unwrap()
}

fn report(device: &str, health: HealthStatus, lease_seconds: i64, message: &str) -> Report {
    Report { pool: "pool".into(), device: device.into(), health, lease_seconds, message: message.into() }
}

fn names(changed: &[(String, String)]) -> Vec<&str> {
    changed.iter().map(|(_, device)| device.as_str()).collect()
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

use HealthStatus::{Healthy, Unhealthy, Unknown};

#[test]
fn only_a_change_of_health_message_or_lease_is_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path());
    let update =
        |health, lease, message| names(&table.update(DRIVER, vec![report("a", health, lease, message)], at(0))).len();
    assert_eq!(update(Healthy, 0, ""), 1);
    assert_eq!(update(Healthy, 0, ""), 0);
    // The default lease, given explicitly; a negative one is the default, too.
    assert_eq!(update(Healthy, 30, ""), 0);
    assert_eq!(update(Healthy, -5, ""), 0);
    assert_eq!(update(Healthy, 31, ""), 1);
    assert_eq!(update(Healthy, 31, "warm"), 1);
    assert_eq!(update(Unhealthy, 31, "warm"), 1);
}

#[test]
fn a_report_is_valid_for_its_lease_and_unknown_without_message_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path());
    table.update(DRIVER, vec![report("a", Healthy, 0, "fine"), report("b", Unhealthy, 5, "hot")], at(0));
    let of = |device, seconds| table.of(DRIVER, "pool", device, at(seconds));
    assert_eq!((of("a", 30), of("a", 31)), ((Healthy, "fine".into()), (Unknown, String::new())));
    assert_eq!((of("b", 5), of("b", 6)), ((Unhealthy, "hot".into()), (Unknown, String::new())));
    assert_eq!(of("c", 0), (Unknown, String::new()));
}

#[test]
fn a_device_that_is_missing_from_a_report_stays_until_its_lease_expires() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path());
    table.update(DRIVER, vec![report("a", Healthy, 0, ""), report("b", Healthy, 10, "")], at(0));
    assert!(table.update(DRIVER, vec![report("a", Healthy, 0, "")], at(10)).is_empty());
    assert_eq!(table.all(at(10)).len(), 2);
    assert_eq!(names(&table.update(DRIVER, vec![report("a", Healthy, 0, "")], at(11))), ["b"]);
    assert_eq!(table.all(at(11)).len(), 1);
}

#[test]
fn the_number_of_devices_of_a_driver_is_limited() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path());
    let many = (0..16_390).map(|number| report(&format!("d{number:05}"), Healthy, 0, "")).collect();
    assert_eq!(table.update(DRIVER, many, at(0)).len(), 16_384);
    // Known devices are still updated, and each driver has its own limit.
    assert_eq!(
        table.update(DRIVER, vec![report("d00000", Unhealthy, 0, ""), report("new", Healthy, 0, "")], at(1)).len(),
        1
    );
    assert_eq!(table.update("other", vec![report("new", Healthy, 0, "")], at(1)).len(), 1);
}

#[test]
fn a_long_message_is_truncated_to_1021_bytes_and_dots() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path());
    let fits = "x".repeat(1024);
    let long = "x".repeat(1025);
    let split = format!("{}{}", "x".repeat(1020), "ä".repeat(9));
    table.update(
        DRIVER,
        vec![report("a", Healthy, 0, &fits), report("b", Healthy, 0, &long), report("c", Healthy, 0, &split)],
        at(0),
    );
    assert_eq!(table.of(DRIVER, "pool", "a", at(0)).1, fits);
    assert_eq!(table.of(DRIVER, "pool", "b", at(0)).1, "x".repeat(1021) + "...");
    assert_eq!(table.of(DRIVER, "pool", "c", at(0)).1, "x".repeat(1020) + "\u{fffd}...");
}

#[test]
fn health_survives_a_restart_until_its_lease_expires() {
    let directory = tempfile::tempdir().unwrap();
    table(directory.path()).update(DRIVER, vec![report("a", Unhealthy, 0, "hot")], at(0));
    let restored = table(directory.path());
    assert_eq!(restored.of(DRIVER, "pool", "a", at(30)), (Unhealthy, "hot".into()));
    assert_eq!(restored.of(DRIVER, "pool", "a", at(31)).0, Unknown);
    restored.clear(DRIVER);
    assert!(table(directory.path()).all(at(0)).is_empty());
}

async fn seen(kubelet: &Kubelet, devices: usize) -> Vec<DeviceHealth> {
    let poll = || Some(kubelet.health()).filter(|all| all.len() == devices);
    eventually(&format!("the health of {devices} devices"), poll).await
}

#[tokio::test]
async fn reports_are_stored_with_their_time_of_arrival() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    node.log.wait_for("health-v1 ", 1).await;
    // The plugin dates its reports to 1970.
    plugin.report(&[("a", 1, 0, ""), ("b", 2, 0, "hot"), ("c", 7, 0, "")]);
    let all = seen(&kubelet, 3).await;
    let of = |at: usize| (all[at].device.as_str(), all[at].health, all[at].message.as_str());
    assert_eq!([of(0), of(1), of(2)], [("a", Healthy, ""), ("b", Unhealthy, "hot"), ("c", Unknown, "")]);
}

#[tokio::test]
async fn the_end_of_a_stream_clears_the_driver_and_another_stream_is_opened() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    node.log.wait_for("health-v1 ", 1).await;
    plugin.report(&[("a", 1, 0, "")]);
    seen(&kubelet, 1).await;
    plugin.script.health.send(Err(Status::internal("broken"))).unwrap();
    seen(&kubelet, 0).await;
    node.log.wait_for("health-v1 ", 2).await;
    plugin.report(&[("a", 2, 0, "")]);
    assert_eq!(seen(&kubelet, 1).await[0].health, Unhealthy);
}

#[tokio::test]
async fn a_plugin_that_does_not_implement_health_is_not_asked_again_until_it_registers_again() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = TestPlugin::new(&node.registry(), "gpu@reg.sock", DRIVER, "", node.log.clone());
    *plugin.script.health_error.lock().unwrap() = Some(Status::unimplemented("no"));
    plugin.serve();
    plugin.register();
    node.log.wait_for("health-v1 ", 1).await;
    // Within this time, a second stream would have been opened.
    sleep(node.timing.health_reconnect_delay * 3).await;
    assert_eq!(node.log.count("health-v1 "), 1);
    plugin.registration = None;
    eventually("not registered", || kubelet.registered().is_empty().then_some(())).await;
    plugin.register();
    node.log.wait_for("health-v1 ", 2).await;
}

#[tokio::test]
async fn a_kubelet_of_1_36_keeps_opening_v1alpha1_to_every_plugin() {
    let node = TestNode::new().await;
    let kubelet = Kubelet::start(Config { release: Release::V1_36, ..node.config() }).await.unwrap();
    let mut plugin = TestPlugin::new(&node.registry(), "gpu@reg.sock", DRIVER, "", node.log.clone());
    plugin.script.info.lock().unwrap().supported_versions = vec!["v1.DRAPlugin".to_owned()];
    *plugin.script.health_error.lock().unwrap() = Some(Status::unimplemented("no"));
    plugin.serve();
    plugin.register();
    node.log.wait_for("health-v1alpha1 ", 3).await;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn each_instance_has_a_stream_and_the_end_of_one_clears_the_reports_of_the_other() {
    let node = TestNode::new().await;
    let (kubelet, mut old) = node.with_plugin().await;
    let new = TestPlugin::start(&node.registry(), DRIVER, "-2", node.log.clone()).await;
    connected(&kubelet, 2).await;
    node.log.wait_for("health-v1 ", 2).await;
    new.report(&[("a", 1, 0, "")]);
    seen(&kubelet, 1).await;
    // The stream of the other instance ends.
    old.service = None;
    seen(&kubelet, 0).await;
    new.report(&[("a", 1, 0, "")]);
    seen(&kubelet, 1).await;
}
