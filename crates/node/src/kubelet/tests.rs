//! Tests of a kubelet as a whole.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use super::testing::{TestNode, eventually, pod};
use super::*;
use crate::runner::{self, Runner};

#[tokio::test]
async fn a_kubelet_registers_its_node() {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Node;
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let api: kube::Api<Node> = kube::Api::all(node.api.server.admin());
    loop {
        let status = api.get_opt("node-1").await.unwrap().and_then(|node| node.status).unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            assert_eq!(status.node_info.unwrap().kubelet_version, "v1.37.1");
            assert!(status.capacity.unwrap().contains_key("cpu"));
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let leases: kube::Api<Lease> = kube::Api::namespaced(node.api.server.admin(), "kube-node-lease");
    let lease = loop {
        if let Some(lease) = leases.get_opt("node-1").await.unwrap() {
            break lease;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("node-1"));
    kubelet.stop().await;
}

#[tokio::test]
async fn pods_run_in_real_containers_that_outlive_their_kubelet() {
    let node = TestNode::new().await;
    let state = node.root.path().join("containers");
    let runner = Arc::new(Runner::new(runner::Config::new([node.root.path().join("cdi")], state)).unwrap());
    let config = || Config { runner: runner.clone(), ..node.config() };
    let kubelet = Kubelet::start(config()).await.unwrap();
    let mut sleeper = pod("sleeper", &[]);
    sleeper["spec"]["containers"][0]["command"] = serde_json::json!(["sleep", "1000"]);
    let uid = node.api.run(&sleeper, &[]).await;
    node.api.wait_for_phase("sleeper", "Running").await;
    let started = runner.list(&uid);
    kubelet.kill();
    let kubelet = Kubelet::start(config()).await.unwrap();

    let mut speaker = pod("speaker", &[]);
    speaker["spec"]["restartPolicy"] = "Never".into();
    speaker["spec"]["containers"][0]["command"] = serde_json::json!(["sh", "-c", "echo $NAME; exit 3"]);
    speaker["spec"]["containers"][0]["env"] = serde_json::json!([{"name": "NAME", "value": "drakkar"}]);
    let speaker_uid = node.api.run(&speaker, &[]).await;
    let ended = node.api.wait_for_phase("speaker", "Failed").await;
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    assert_eq!(runner.logs(&runner.list(&speaker_uid)[0].id).unwrap(), b"drakkar\n");

    // The other container still runs, and is the same as before.
    assert_eq!(runner.list(&uid), started);
    node.api.delete("sleeper").await;
    node.api.wait_until_gone("sleeper").await;
    eventually("no container is left", || runner.list(&uid).is_empty().then_some(())).await;
    kubelet.stop().await;
}

#[tokio::test]
async fn an_unreadable_state_file_is_an_error_that_names_it() {
    let node = TestNode::new().await;
    std::fs::write(node.root.path().join("dra_manager_state"), "{}").unwrap();
    let error = Kubelet::start(node.config()).await.unwrap_err().to_string();
    assert!(error.contains("dra_manager_state"), "{error}");
}

#[tokio::test]
async fn a_stopped_kubelet_leaves_no_task_and_no_connection() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    let tasks = kubelet.tasks.clone();
    kubelet.stop().await;
    tasks.wait().await;
    drop(plugin);
    let temporary: Vec<String> = std::fs::read_dir(node.root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(temporary.is_empty(), "{temporary:?}");
}

#[tokio::test]
async fn a_hundred_kubelets_live_side_by_side() {
    let api = TestNode::new().await;
    let mut nodes = Vec::new();
    for _ in 0..100 {
        let root = tempfile::tempdir().unwrap();
        let config = Config { root: root.path().to_owned(), ..api.config() };
        nodes.push((Kubelet::start(config).await.unwrap(), root));
    }
    for (kubelet, root) in nodes {
        assert!(kubelet.registry().starts_with(root.path()));
        kubelet.stop().await;
    }
}
