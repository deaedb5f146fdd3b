//! Tests of the embedded kubelet with a driver on this framework.

use std::time::Duration;

use drakkar_node::kubelet::{ClaimId, DraService, Peer};
use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually};
use drakkar_plugin::{Device, Helper};

use crate::support::{DRIVER, TestDriver, plugin, publish};

/// Starts a driver that prepares the allocated devices.
async fn driver(node: &Node) -> Helper {
    let driver = TestDriver::new(|claim| {
        let devices = claim.results().map(|result| Device {
            cdi_device_ids: vec![format!("{DRIVER}/gpu={}", result.device)],
            ..Device::from(result)
        });
        devices.collect()
    });
    plugin(node).start(driver).await.unwrap()
}

fn pod() -> Pod {
    Pod::new("p").claim("gpus", "a").container(Container::new("main", ["sleep", "infinity"]).claim("gpus"))
}

#[tokio::test]
async fn a_driver_on_the_framework_is_registered_and_its_pods_run() {
    let node = Node::start().await.unwrap();
    node.add_cdi_device("gpu.example.com/gpu=gpu-0").unwrap();
    let helper = driver(&node).await;
    publish(&node, &["gpu-0"]).await;
    let registered = node.registered().await.remove(0);
    assert_eq!((registered.driver.as_str(), registered.service), (DRIVER, DraService::V1));
    assert_eq!(Some(registered.endpoint.as_path()), helper.dra_socket());
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("a")).await.unwrap();
    let pod = node.create_pod(pod()).await.unwrap();
    pod.running().await.unwrap();
    let claims = node.kubelet_claims().await;
    assert!(format!("{claims:?}").contains("gpu.example.com/gpu=gpu-0"), "{claims:?}");
    pod.delete().await.unwrap();
    assert!(node.kubelet_claims().await.is_empty());
    helper.stop().await.unwrap();
    assert_eventually!(node.registered().await.is_empty());
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_peer_makes_the_calls_of_a_kubelet_and_no_others() {
    let node = Node::builder().without_kubelet().start().await.unwrap();
    let helper = driver(&node).await;
    let info = Peer::get_info(helper.registration_socket().unwrap()).await.unwrap();
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    Peer::notify(helper.registration_socket().unwrap(), None).await.unwrap();

    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("a")).await.unwrap();
    node.create_pod(pod()).await.unwrap().allocated().await.unwrap();
    let object = node.claim("a").await.unwrap().unwrap();
    let uid = object.metadata.uid.clone().unwrap();
    let peer = Peer::connect(helper.dra_socket().unwrap()).await.unwrap();
    for peer in [peer.clone(), peer.with_service(DraService::V1beta1)] {
        let results = peer.prepare_with_timeout(Duration::from_secs(30), [&object]).await.unwrap();
        assert_eq!(results[&uid].as_ref().unwrap()[0].cdi_device_ids, ["gpu.example.com/gpu=gpu-0"]);
        assert_eq!(peer.unprepare([&object]).await.unwrap()[&uid], Ok(()));
    }
    let unknown = ClaimId { namespace: "default".into(), name: "none".into(), uid: "none".into() };
    assert!(peer.prepare([&unknown]).await.unwrap()["none"].is_err());
    helper.stop().await.unwrap();
}
