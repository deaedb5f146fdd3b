//! Many pods at once.

use std::collections::BTreeMap;

use drakkar_node::assert_eventually;
use drakkar_node::nri::{self, Answer, Call};

use crate::support::plugin::Plugin;
use crate::support::{node, sleeper};

/// The calls about one pod, in their order.
const LIFE: [&str; 9] = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
];

/// Returns the calls about each pod.
fn calls(log: &[nri::Entry]) -> BTreeMap<&str, Vec<&'static str>> {
    let mut calls: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    for entry in log.iter().filter(|entry| !entry.pod.is_empty()) {
        calls.entry(&entry.pod).or_default().push(entry.call.map(Call::name).unwrap_or_default());
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_pods_at_once_are_announced_each_in_order() {
    let Some(node) = node(nri::Config::default().request_timeout(std::time::Duration::from_secs(60))).await else {
        return;
    };
    let nri = node.nri().unwrap();
    let _plugin = Plugin::new("10", "demo").events(0x07ff).connect(nri.socket()).await;
    nri.wait_plugin("10-demo").await.unwrap();
    let mut pods = Vec::new();
    for at in 0..30 {
        pods.push(node.create_pod(sleeper(&format!("pod-{at}"))).await.unwrap());
    }
    for pod in &pods {
        pod.running().await.unwrap();
    }
    let networks: std::collections::BTreeSet<_> = nri.sandboxes().into_iter().map(|sandbox| sandbox.ips).collect();
    assert_eq!(networks.len(), 30);
    for pod in &pods {
        pod.start_deletion().await.unwrap();
    }
    for pod in &pods {
        pod.gone().await.unwrap();
    }
    assert_eventually!(nri.sandboxes().is_empty());
    let log = nri.log();
    let calls = calls(&log);
    assert_eq!(calls.len(), 30);
    for (pod, calls) in calls {
        assert_eq!(calls, LIFE, "{pod}");
    }
    assert!(log.iter().all(|entry| entry.answer == Answer::Success));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_that_are_killed_again_and_again_start_nothing_twice() {
    let Some(node) = node(nri::Config::default().request_timeout(std::time::Duration::from_secs(60))).await else {
        return;
    };
    let nri = node.nri().unwrap();
    let _plugin = Plugin::new("10", "demo").events(0x07ff).connect(nri.socket()).await;
    nri.wait_plugin("10-demo").await.unwrap();
    let mut pods = Vec::new();
    for at in 0..8 {
        pods.push(node.create_pod(sleeper(&format!("pod-{at}"))).await.unwrap());
        node.kill_kubelet().await;
        node.start_kubelet().await.unwrap();
    }
    for pod in &pods {
        pod.running().await.unwrap();
    }
    for pod in &pods {
        pod.start_deletion().await.unwrap();
        node.kill_kubelet().await;
        node.start_kubelet().await.unwrap();
    }
    for pod in &pods {
        pod.gone().await.unwrap();
    }
    assert_eventually!(nri.sandboxes().is_empty());
    let log = nri.log();
    for (pod, calls) in calls(&log) {
        let count = |name: &str| calls.iter().filter(|call| **call == name).count();
        let once = ["RunPodSandbox", "StartContainer", "StopContainer", "StopPodSandbox", "RemovePodSandbox"];
        assert_eq!(once.map(count), [1; 5], "{pod}: {calls:?}");
    }
}
