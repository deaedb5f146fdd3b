//! Tests of pods whose runtime has sandboxes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tokio::time::Duration;

use crate::kubelet::JitteredDelay;
use crate::kubelet::testing::{TestNode, claim, pod};

#[tokio::test]
async fn a_sandbox_runs_after_its_claims_are_prepared_and_ends_before_they_are_unprepared() {
    let node = TestNode::new().await;
    let (_kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    node.api.delete("p").await;
    node.api.wait_until_gone("p").await;
    let calls = node.log.of(&["prepare", "run sandbox", "start", "stop", "end sandbox", "unprepare"]);
    let expected = [
        "prepare gpu.example.com a",
        "run sandbox of p",
        "start p/main",
        "stop main with grace 3",
        "end sandbox",
        "unprepare gpu.example.com a",
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn a_failed_sandbox_is_retried_without_another_prepare() {
    let node = TestNode::new().await;
    *node.containers.failing_sandboxes.lock().unwrap() = 3;
    let (_kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    assert_eq!(node.log.count("prepare"), 1);
    assert_eq!(node.log.count("run sandbox of p"), 4);
}

#[tokio::test]
async fn a_failed_sandbox_is_retried_only_after_the_delay_whatever_happens_to_the_pod() {
    let mut node = TestNode::new().await;
    node.timing.pod_retry = JitteredDelay { min: Duration::from_secs(3600), jitter: 0.0 };
    *node.containers.failing_sandboxes.lock().unwrap() = 1;
    let _kubelet = node.kubelet().await;
    node.api.run(&pod("p", &[]), &[]).await;
    node.log.wait_for("run sandbox of p", 1).await;
    // The status that reports the failure is itself a change of the pod.
    node.log.wait_for("status p Pending", 1).await;
    let waiting = node.api.wait_for("p", "not ready", |pod| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "PodReadyToStartContainers" && one["status"] == "False")
    });
    waiting.await;
    assert_eq!(node.log.count("run sandbox of p"), 1);
    node.api.delete("p").await;
    node.api.wait_until_gone("p").await;
    assert_eq!(node.log.count("run sandbox of p"), 1, "a deleted pod does not wait for the delay");
}

#[tokio::test]
async fn a_kubelet_that_was_killed_finds_the_sandbox_and_prepares_nothing_again() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    kubelet.kill();
    let _kubelet = node.kubelet().await;
    node.containers.exit("main", 1);
    node.log.wait_for("start p/main", 2).await;
    assert_eq!((node.log.count("run sandbox of p"), node.log.count("prepare")), (1, 1));
}
