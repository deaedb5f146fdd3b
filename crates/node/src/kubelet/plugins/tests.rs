//! Tests of connections to instances, and of the slices of drivers that are not running.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use drakkar_apiserver::{Fault, Filter, Resource, Times};

use super::*;
use crate::kubelet::rpc_error::RpcError;
use crate::kubelet::testing::{DRIVER, TestNode, TestPlugin, connected, eventually};

const OURS: &str = "delete-slices spec.nodeName=node-1";
const DRIVERS: &str = "delete-slices spec.nodeName=node-1,spec.driver=gpu.example.com";

fn claim(name: &str) -> ClaimId {
    ClaimId { namespace: "default".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") }
}

#[tokio::test]
async fn all_calls_and_the_health_stream_share_one_connection() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    node.log.wait_for("health-v1 ", 1).await;
    let instance = kubelet.plugins.get(DRIVER).unwrap();
    let results = instance.prepare(vec![claim("a"), claim("b")], Duration::from_secs(45)).await.unwrap();
    assert_eq!(results["uid-a"].as_ref().unwrap()[0].cdi_device_ids, ["gpu.example.com/gpu=a"]);
    instance.unprepare(vec![claim("a")], Duration::from_secs(45)).await.unwrap();
    assert_eq!(plugin.connections(), 1);
}

#[tokio::test]
async fn a_call_sends_its_timeout() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    let instance = kubelet.plugins.get(DRIVER).unwrap();
    instance.prepare(vec![claim("a")], Timing::default().call_timeout).await.unwrap();
    let timeout = plugin.script.timeouts.lock().unwrap().remove(0);
    let (digits, unit) = timeout.split_at(timeout.len() - 1);
    let unit = match unit {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        _ => 1.0,
    };
    let seconds = digits.parse::<f64>().unwrap() * unit;
    assert!((44.0..=45.0).contains(&seconds), "{timeout}");
}

#[tokio::test]
async fn calls_go_to_the_newest_connected_instance_or_else_to_the_newest() {
    let node = TestNode::new().await;
    let (kubelet, mut old) = node.with_plugin().await;
    let mut new = TestPlugin::start(&node.registry(), DRIVER, "-2", node.log.clone()).await;
    connected(&kubelet, 2).await;
    let endpoint = || kubelet.plugins.get(DRIVER).unwrap().endpoint.clone();
    assert_eq!(endpoint(), new.endpoint);
    new.service = None;
    eventually("the older one", || (endpoint() == old.endpoint).then_some(())).await;
    old.service = None;
    eventually("the newer one", || (endpoint() == new.endpoint).then_some(())).await;
    let instance = kubelet.plugins.get(DRIVER).unwrap();
    let disconnected = || kubelet.registered().iter().all(|plugin| !plugin.connected).then_some(());
    eventually("no connection", disconnected).await;
    let status = instance.prepare(vec![claim("a")], Duration::from_secs(45)).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    let text = RpcError(&status).to_string();
    let prefix = format!("rpc error: code = Unavailable desc = connect to {}: ", new.endpoint.display());
    let cause = text.strip_prefix(&prefix).unwrap_or_else(|| panic!("{text}"));
    assert!(["connection refused", "no such file or directory"].contains(&cause), "{text}");
    old.serve();
    eventually("the older one again", || (endpoint() == old.endpoint).then_some(())).await;
    assert_eq!(kubelet.registered().len(), 2);
}

#[tokio::test]
async fn a_lost_connection_is_reopened_at_once() {
    let mut node = TestNode::new().await;
    node.timing.connect_backoff = drakkar_client::Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600));
    let (kubelet, plugin) = node.with_plugin().await;
    assert_eq!(plugin.connections(), 1);
    // After a response, since a server that closes a connection without sending anything is retried with backoff.
    kubelet.plugins.get(DRIVER).unwrap().prepare(vec![claim("a")], Duration::from_secs(45)).await.unwrap();
    // The server keeps listening and closes its connections.
    plugin.service.as_ref().unwrap().hang_up();
    eventually("another connection", || (plugin.connections() == 2).then_some(())).await;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn a_plugin_that_speaks_v1beta1_first_is_called_in_v1beta1() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = TestPlugin::new(&node.registry(), "gpu@reg.sock", DRIVER, "", node.log.clone());
    plugin.script.info.lock().unwrap().supported_versions = vec!["v1beta1.DRAPlugin".to_owned()];
    plugin.serve();
    plugin.register();
    connected(&kubelet, 1).await;
    let registered = kubelet.registered().remove(0);
    assert_eq!((registered.service, registered.health), (DraService::V1beta1, None));
    kubelet.plugins.get(DRIVER).unwrap().prepare(vec![claim("a")], Duration::from_secs(45)).await.unwrap();
    assert_eq!(node.log.of(&["prepare"]), ["prepare-v1beta1 gpu.example.com a"]);
}

/// Servers built on the `h2` crate refuse this authority, and many drivers are.
#[tokio::test]
async fn a_kubelet_up_to_1_33_sends_the_path_of_the_socket_as_authority() {
    let node = TestNode::new().await;
    let config = crate::kubelet::Config { release: Release::V1_33, ..node.config() };
    let kubelet = crate::kubelet::Kubelet::start(config).await.unwrap();
    let plain = node.plugin().await;
    connected(&kubelet, 1).await;
    let timeout = Duration::from_secs(45);
    let status = kubelet.plugins.get(DRIVER).unwrap().prepare(vec![claim("a")], timeout).await.unwrap_err();
    assert!(status.message().contains("protocol error"), "{status}");
    assert_eq!(node.log.count("prepare"), 0, "the plugin has not seen the call");
    drop(plain);

    // The instance is part of the socket's name.
    let _plugin = TestPlugin::start(&node.registry(), DRIVER, "@1", node.log.clone()).await;
    let named = || kubelet.registered().iter().all(|plugin| plugin.endpoint.ends_with("dra@1.sock")).then_some(());
    eventually("the other instance", named).await;
    connected(&kubelet, 1).await;
    let instance = kubelet.plugins.get(DRIVER).unwrap();
    // Concurrent and successive calls, with the HPACK tables that they share.
    for name in ["a", "b", "c"] {
        let first = instance.prepare(vec![claim(name)], timeout);
        let second = instance.unprepare(vec![claim(name)], timeout);
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    }
    assert_eq!(node.log.count("prepare-v1beta1 gpu.example.com@1 "), 3);
}

#[tokio::test]
async fn slices_of_this_node_are_deleted_when_a_kubelet_starts() {
    let node = TestNode::new().await;
    let _kubelet = node.kubelet().await;
    node.log.wait_for(OURS, 1).await;
    assert_eq!(node.log.of(&["delete-slices"]), [OURS]);
}

#[tokio::test]
async fn slices_of_a_driver_are_deleted_after_its_plugin_stopped() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    drop(plugin);
    node.log.wait_for(DRIVERS, 1).await;
    assert!(kubelet.registered().is_empty());
    assert_eq!(node.log.count(DRIVERS), 1);
}

#[tokio::test]
async fn slices_of_a_registered_plugin_that_never_listens_are_deleted() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut plugin = TestPlugin::new(&node.registry(), "gpu@reg.sock", DRIVER, "", node.log.clone());
    plugin.register();
    node.log.wait_for(DRIVERS, 1).await;
    assert_eq!(kubelet.registered().len(), 1);
}

#[tokio::test]
async fn slices_stay_when_the_service_is_back_in_time() {
    let mut node = TestNode::new().await;
    // An hour: certainly longer than the test.
    node.timing.slice_grace = Duration::from_secs(3600);
    let (kubelet, mut plugin) = node.with_plugin().await;
    plugin.service = None;
    eventually("slices are about to be deleted", || (kubelet.slices.pending() == [DRIVER]).then_some(())).await;
    plugin.serve();
    connected(&kubelet, 1).await;
    eventually("slices stay", || kubelet.slices.pending().is_empty().then_some(())).await;
    assert_eq!(node.log.count(DRIVERS), 0);
}

#[tokio::test]
async fn deleting_slices_is_retried() {
    let node = TestNode::new().await;
    let filter = Filter::any().verb("deletecollection").resource(Resource::ResourceSlice);
    node.api.server.faults().fail(filter, Fault::InternalError, Times::Next(2));
    let _kubelet = node.kubelet().await;
    node.log.wait_for(OURS, 3).await;
}
