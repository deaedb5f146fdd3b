//! Tests of registration as a plugin sees it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::Ordering;

use super::*;
use crate::kubelet::checkpoint::{StateFile, WriteGate};
use crate::kubelet::health::Health;
use crate::kubelet::release::Release;
use crate::kubelet::slices::Slices;
use crate::kubelet::testing::{DRIVER, NODE, TestNode, TestPlugin, connected, eventually};

/// Returns a plugin whose service runs, to be registered under this socket name.
fn plugin(node: &TestNode, socket: &str, driver: &str) -> TestPlugin {
    let mut plugin = TestPlugin::new(&node.registry(), socket, driver, "", node.log.clone());
    plugin.serve();
    plugin
}

fn attempts(plugin: &TestPlugin) -> usize {
    plugin.registration.as_ref().unwrap().connections.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_stock_rust_server_is_registered_only_under_a_name_with_an_at_sign() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut without = plugin(&node, "without.example.com-reg.sock", "without.example.com");
    without.register();
    let mut with = plugin(&node, "with.example.com@reg.sock", "with.example.com");
    with.register();
    connected(&kubelet, 1).await;
    assert_eq!(kubelet.registered()[0].driver, "with.example.com");
    eventually("a notification", || (with.notified() == [(true, String::new())]).then_some(())).await;
    // The other is retried, and never sees a call.
    eventually("more attempts", || (attempts(&without) >= 3).then_some(())).await;
    assert_eq!(node.log.count("get-info without"), 0);
    assert!(without.notified().is_empty());
    assert_eq!(kubelet.registered().len(), 1);
}

#[tokio::test]
async fn a_failing_get_info_is_retried_until_it_succeeds_and_the_plugin_is_not_notified() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = plugin(&node, "gpu@reg.sock", DRIVER);
    *plugin.script.get_info_error.lock().unwrap() = Some(Status::internal("not now"));
    plugin.register();
    node.log.wait_for("get-info", 3).await;
    assert!(plugin.notified().is_empty() && kubelet.registered().is_empty());
    *plugin.script.get_info_error.lock().unwrap() = None;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn a_get_info_without_response_times_out_after_a_second_and_is_retried() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = plugin(&node, "gpu@reg.sock", DRIVER);
    plugin.script.hang.store(true, Ordering::SeqCst);
    // Before the first call: on a busy machine this test may notice the call late.
    let started = Instant::now();
    plugin.register();
    node.log.wait_for("get-info", 2).await;
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    plugin.script.hang.store(false, Ordering::SeqCst);
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn a_failing_notification_deregisters_again_and_is_retried_until_it_succeeds() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = plugin(&node, "gpu@reg.sock", DRIVER);
    *plugin.script.notify_error.lock().unwrap() = Some(Status::internal("not now"));
    plugin.register();
    eventually("notifications", || (plugin.notified().len() >= 3).then_some(())).await;
    assert!(plugin.notified().iter().all(|(registered, _)| *registered));
    eventually("not registered", || kubelet.registered().is_empty().then_some(())).await;
    *plugin.script.notify_error.lock().unwrap() = None;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn a_plugin_of_another_type_or_without_a_known_service_is_notified_and_retried() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut csi = plugin(&node, "csi@reg.sock", "csi.example.com");
    csi.script.info.lock().unwrap().r#type = "CSIPlugin".to_owned();
    csi.register();
    let mut old = plugin(&node, "old@reg.sock", "old.example.com");
    old.script.info.lock().unwrap().supported_versions = vec!["1.0.0".to_owned()];
    old.register();
    for (plugin, error) in [(&csi, "CSIPlugin"), (&old, "none of the DRA services")] {
        eventually("notifications", || (plugin.notified().len() >= 2).then_some(())).await;
        let (registered, message) = plugin.notified().remove(0);
        assert!(!registered && message.contains(error), "{message}");
    }
    assert!(kubelet.registered().is_empty());
}

#[tokio::test]
async fn without_an_endpoint_the_registration_socket_is_the_service() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = plugin(&node, "gpu@reg.sock", DRIVER);
    plugin.script.info.lock().unwrap().endpoint = String::new();
    plugin.register();
    connected(&kubelet, 1).await;
    assert_eq!(kubelet.registered()[0].endpoint, node.registry().join("gpu@reg.sock"));
}

#[tokio::test]
async fn a_second_instance_needs_an_endpoint_of_its_own() {
    let node = TestNode::new().await;
    let (kubelet, first) = node.with_plugin().await;
    let mut second = TestPlugin::new(&node.registry(), "second@reg.sock", DRIVER, "-2", node.log.clone());
    let endpoint = second.script.info.lock().unwrap().endpoint.clone();
    second.script.info.lock().unwrap().endpoint = first.endpoint.to_str().unwrap().to_owned();
    second.register();
    eventually("a refusal", || (!second.notified().is_empty()).then_some(())).await;
    let (registered, error) = second.notified().remove(0);
    assert!(!registered && error.contains("already registered"), "{error}");
    assert_eq!(kubelet.registered().len(), 1);
    second.script.info.lock().unwrap().endpoint = endpoint;
    second.serve();
    connected(&kubelet, 2).await;
}

#[tokio::test]
async fn a_plugin_is_deregistered_when_its_socket_is_gone_and_registered_when_it_is_back() {
    let node = TestNode::new().await;
    let (kubelet, mut plugin) = node.with_plugin().await;
    assert_eq!(attempts(&plugin), 1);
    plugin.registration = None;
    eventually("not registered", || kubelet.registered().is_empty().then_some(())).await;
    plugin.register();
    connected(&kubelet, 1).await;
    // A socket that is replaced before its removal is seen is a new version nevertheless.
    let before = node.log.count("get-info");
    plugin.registration = None;
    plugin.register();
    node.log.wait_for("get-info", before + 1).await;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn losing_the_service_does_not_deregister() {
    let node = TestNode::new().await;
    let (kubelet, mut plugin) = node.with_plugin().await;
    plugin.service = None;
    eventually("not connected", || kubelet.registered().iter().all(|plugin| !plugin.connected).then_some(())).await;
    assert_eq!(kubelet.registered().len(), 1);
    plugin.serve();
    connected(&kubelet, 1).await;
    assert_eq!(node.log.count("get-info"), 1);
}

#[tokio::test]
async fn a_plugin_is_registered_again_after_a_restart_of_the_kubelet() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    kubelet.stop().await;
    let kubelet = node.kubelet().await;
    connected(&kubelet, 1).await;
    eventually("a second notification", || (plugin.notified().len() == 2).then_some(())).await;
}

/// Returns a registrar without sockets.
async fn registrar(directory: &Path) -> (Registrar, TestNode) {
    let node = TestNode::new().await;
    let timing = Timing::default();
    let tasks = Tasks::default();
    let slices = Slices::new(node.api.client(), NODE, timing.clone(), tasks.clone());
    let file = StateFile::new(directory.join("health"), WriteGate::default());
    let (health, _) = Health::restore(file, timing.clone()).unwrap();
    let plugins = Plugins::new(Release::default(), timing.clone(), tasks.clone(), slices, health);
    (Registrar::new(Sockets::default(), plugins, timing, tasks), node)
}

#[tokio::test]
async fn failures_are_counted_by_path_until_an_operation_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let (registrar, _node) = registrar(directory.path()).await;
    tokio::time::pause();
    let path = Path::new("/a.sock");
    let other = Path::new("/b.sock");
    assert!(registrar.begin(path) && !registrar.begin(path) && registrar.begin(other), "one at a time for each path");
    for delay in [500, 1000, 2000] {
        registrar.end(path, false);
        tokio::time::advance(Duration::from_millis(delay - 1)).await;
        assert!(!registrar.begin(path), "after {delay} ms");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(registrar.begin(path), "after {delay} ms");
    }
    registrar.end(path, true);
    assert!(registrar.begin(path));
    registrar.end(path, false);
    tokio::time::advance(Duration::from_millis(500)).await;
    assert!(registrar.begin(path), "the delay starts over");
}
