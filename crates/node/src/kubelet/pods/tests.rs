//! Tests of the lifecycle of pods on a node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use drakkar_kubelet_api::dra_v1::NodePrepareResourceResponse;
use serde_json::{Value, json};
use tokio::time::Duration;
use tonic::Status;

use crate::kubelet::testing::{TIMEOUT, TestNode, claim, connected, eventually, pod};

/// Returns a pod with this restart policy.
fn with_policy(name: &str, claims: &[&str], policy: &str) -> Value {
    let mut pod = pod(name, claims);
    pod["spec"]["restartPolicy"] = json!(policy);
    pod
}

fn main_status(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0].clone()
}

fn condition<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)?["status"].as_str()
}

#[tokio::test]
async fn a_pod_is_prepared_run_stopped_unprepared_reported_and_deleted_in_this_order() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    let uid = node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    let running = node.api.wait_for_phase("p", "Running").await;
    assert_eq!(main_status(&running)["ready"], true);
    assert_eq!(main_status(&running)["restartCount"], 0);
    assert!(main_status(&running)["state"]["running"]["startedAt"].is_string());
    assert_eq!(main_status(&running)["containerID"], "drakkar://c1");
    assert_eq!((condition(&running, "Ready"), condition(&running, "PodScheduled")), (Some("True"), Some("True")));
    let spec = node.containers.spec("main").unwrap();
    assert_eq!(spec.cdi_devices, ["gpu.example.com/gpu=a"]);
    assert_eq!(
        (spec.pod_uid.as_str(), spec.pod_name.as_str(), spec.namespace.as_str()),
        (uid.as_str(), "p", "default")
    );

    node.api.delete("p").await;
    node.api.wait_until_gone("p").await;
    let mut calls = node.log.of(&["prepare", "start", "stop", "unprepare", "status p Failed", "delete p"]);
    calls.dedup();
    assert_eq!(
        calls,
        [
            "prepare gpu.example.com a",
            "start p/main",
            "stop main with grace 3",
            "unprepare gpu.example.com a",
            "status p Failed",
            "delete p"
        ]
    );
    eventually("nothing is left", || (node.containers.len() == 0 && kubelet.claims().is_empty()).then_some(())).await;
    let directory = node.root.path().join("pods");
    eventually("no directory is left", || std::fs::read_dir(&directory).unwrap().next().is_none().then_some(())).await;
}

#[tokio::test]
async fn a_pod_whose_containers_end_is_unprepared_before_that_is_reported() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    for (name, code, phase) in [("good", 0, "Succeeded"), ("bad", 3, "Failed")] {
        let claim_name = format!("{name}-claim");
        node.api.run(&with_policy(name, &[&claim_name], "Never"), &[claim(&claim_name, &[])]).await;
        node.api.wait_for_phase(name, "Running").await;
        node.containers.exit("main", code);
        let ended = node.api.wait_for_phase(name, phase).await;
        assert_eq!(main_status(&ended)["state"]["terminated"]["exitCode"], code);
        let calls = node.log.of(&["unprepare", &format!("status {name} {phase}")]);
        assert_eq!(calls.last().unwrap(), &format!("status {name} {phase}"), "{calls:?}");
        assert_eq!(node.log.count(&format!("unprepare gpu.example.com {claim_name}")), 1);
        assert!(kubelet.claims().is_empty());
        assert_eq!(condition(&ended, "Ready"), Some("False"));
    }
    // Containers that have ended are not stopped.
    assert_eq!(node.log.count("stop"), 0);
}

#[tokio::test]
async fn a_container_that_restarts_is_not_prepared_again() {
    let node = TestNode::new().await;
    let (_kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    for restarts in 1..4 {
        node.api.wait_for("p", "running", |pod| main_status(pod)["ready"] == true).await;
        node.containers.exit("main", 1);
        node.log.wait_for("start p/main", restarts + 1).await;
        let again = |pod: &Value| main_status(pod)["restartCount"] == restarts && main_status(pod)["ready"] == true;
        let pod = node.api.wait_for("p", "restarted", again).await;
        assert_eq!(main_status(&pod)["lastState"]["terminated"]["exitCode"], 1);
        assert_eq!(pod["status"]["phase"], "Running");
    }
    assert_eq!(node.log.count("prepare"), 1);
    assert_eq!(node.containers.spec("main").unwrap().cdi_devices, ["gpu.example.com/gpu=a"]);
    assert_eq!(node.containers.len(), 1, "earlier runs are removed");
}

#[tokio::test]
async fn a_container_that_keeps_failing_is_restarted_with_backoff() {
    let mut node = TestNode::new().await;
    node.timing.container_backoff = drakkar_client::Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600));
    let kubelet = node.kubelet().await;
    node.api.run(&pod("p", &[]), &[]).await;
    node.api.wait_for_phase("p", "Running").await;
    node.containers.exit("main", 1);
    // The first restart has no delay.
    node.log.wait_for("start p/main", 2).await;
    node.containers.exit("main", 1);
    let waits = |pod: &Value| main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let pod = node.api.wait_for("p", "waits", waits).await;
    assert_eq!((main_status(&pod)["restartCount"].as_i64(), &pod["status"]["phase"]), (Some(1), &json!("Running")));
    assert_eq!(main_status(&pod)["lastState"]["terminated"]["exitCode"], 1);
    kubelet.stop().await;
}

#[tokio::test]
async fn init_containers_come_first_and_sidecars_stop_last() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let mut pod = with_policy("p", &[], "Never");
    let image = json!("registry.k8s.io/pause:3");
    pod["spec"]["initContainers"] = json!([
        {"name": "setup", "image": image}, {"name": "proxy", "image": image, "restartPolicy": "Always"},
        {"name": "logs", "image": image, "restartPolicy": "Always"},
    ]);
    node.api.run(&pod, &[]).await;
    node.log.wait_for("start p/setup", 1).await;
    let pending = node
        .api
        .wait_for("p", "init", |pod| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object())
        .await;
    assert_eq!(pending["status"]["phase"], "Pending");
    assert_eq!(main_status(&pending)["state"]["waiting"]["reason"], "PodInitializing");
    node.containers.exit("setup", 0);
    node.api.wait_for_phase("p", "Running").await;
    node.containers.exit("main", 0);
    node.api.wait_for_phase("p", "Succeeded").await;
    assert_eq!(
        node.log.of(&["start", "stop"]),
        [
            "start p/setup",
            "start p/proxy",
            "start p/logs",
            "start p/main",
            "stop logs with grace 7",
            "stop proxy with grace 7"
        ]
    );
    kubelet.stop().await;
}

#[tokio::test]
async fn a_failed_prepare_is_reported_as_an_event_and_retried_until_it_succeeds() {
    let node = TestNode::new().await;
    let (_kubelet, plugin) = node.with_plugin().await;
    plugin.prepare_with(|_| Some(NodePrepareResourceResponse { devices: vec![], error: "no power".to_owned() }));
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.log.wait_for("prepare", 3).await;
    let events = node.api.events().await;
    let (reason, message, count) = &events[0];
    assert_eq!((events.len(), reason.as_str()), (1, "FailedPrepareDynamicResources"), "{events:?}");
    assert!(
        message.starts_with("Failed to prepare dynamic resources: ") && message.ends_with(": no power"),
        "{message}"
    );
    assert!(*count >= 2, "{count}");
    let waiting = node.api.wait_for("p", "waits", |pod| main_status(pod)["state"]["waiting"].is_object()).await;
    assert_eq!(waiting["status"]["phase"], "Pending");
    assert!(node.containers.running().is_empty());
    plugin.prepare_with(|_| Some(NodePrepareResourceResponse::default()));
    node.api.wait_for_phase("p", "Running").await;
}

#[tokio::test]
async fn a_pod_that_waits_for_its_driver_starts_when_the_driver_registers() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for("p", "waits", |pod| main_status(pod)["state"]["waiting"].is_object()).await;
    let _plugin = node.plugin().await;
    node.api.wait_for_phase("p", "Running").await;
    connected(&kubelet, 1).await;
}

#[tokio::test]
async fn a_failing_unprepare_keeps_the_pod_terminating_and_is_retried_until_it_succeeds() {
    let node = TestNode::new().await;
    let (_kubelet, plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    plugin.unprepare_with("busy");
    node.api.delete("p").await;
    node.log.wait_for("unprepare", 3).await;
    let terminating = node.api.wait_for_phase("p", "Running").await;
    assert!(main_status(&terminating)["state"]["terminated"].is_object());
    assert!(node.containers.running().is_empty());
    plugin.unprepare_with("");
    node.api.wait_until_gone("p").await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_during_its_prepare_is_unprepared() {
    let node = TestNode::new().await;
    let (_kubelet, plugin) = node.with_plugin().await;
    plugin.script.gate.forget_permits(usize::MAX);
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.log.wait_for("prepare", 1).await;
    node.api.delete("p").await;
    node.log.wait_for("unprepare", 1).await;
    plugin.script.gate.add_permits(100);
    node.api.wait_until_gone("p").await;
    assert_eq!(node.log.count("start"), 0);
}

#[tokio::test]
async fn a_pod_that_is_deleted_by_force_is_stopped_and_unprepared() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    node.api.remove("p").await;
    node.log.wait_for("unprepare", 1).await;
    assert_eq!(node.log.of(&["stop", "unprepare"]).len(), 2);
    eventually("nothing is left", || (node.containers.len() == 0 && kubelet.claims().is_empty()).then_some(())).await;
}

#[tokio::test]
async fn pods_that_share_a_claim_unprepare_it_with_the_last_of_them() {
    let node = TestNode::new().await;
    let (_kubelet, _plugin) = node.with_plugin().await;
    let shared = claim("a", &[]);
    for name in ["one", "two"] {
        node.api.run(&pod(name, &["a"]), std::slice::from_ref(&shared)).await;
        node.api.wait_for_phase(name, "Running").await;
    }
    assert_eq!(node.log.count("prepare"), 1);
    node.api.delete("one").await;
    node.api.wait_until_gone("one").await;
    assert_eq!(node.log.count("unprepare"), 0);
    node.api.delete("two").await;
    node.api.wait_until_gone("two").await;
    assert_eq!(node.log.count("unprepare"), 1);
}

#[tokio::test]
async fn a_container_that_cannot_be_created_waits_with_a_reason_and_is_retried() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    let error = crate::kubelet::StartError { message: "unresolvable CDI devices x/y=z".to_owned(), created: false };
    *node.containers.refuse.lock().unwrap() = Some(error);
    node.api.run(&with_policy("p", &[], "Never"), &[]).await;
    let waits = |pod: &Value| main_status(pod)["state"]["waiting"]["reason"] == "CreateContainerError";
    let waiting = node.api.wait_for("p", "waits", waits).await;
    assert_eq!(main_status(&waiting)["state"]["waiting"]["message"], "unresolvable CDI devices x/y=z");
    *node.containers.refuse.lock().unwrap() = None;
    node.api.wait_for_phase("p", "Running").await;
    kubelet.stop().await;
}

#[tokio::test]
async fn containers_that_fail_in_turn_have_one_event_each_with_a_growing_count() {
    let node = TestNode::new().await;
    let _kubelet = node.kubelet().await;
    let mut pod = with_policy("p", &[], "Never");
    // Neither has a command.
    pod["spec"]["containers"] = json!([{"name": "one", "image": "none"}, {"name": "two", "image": "none"}]);
    node.api.run(&pod, &[]).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let events = node.api.events().await;
        assert!(events.len() <= 2, "{events:?}");
        if events.len() == 2 && events.iter().all(|(_, _, count)| *count >= 3) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{events:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_change_of_health_is_in_the_pods_status() {
    let mut node = TestNode::new().await;
    node.timing.pod_sync.min = Duration::from_secs(3600);
    let (_kubelet, plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    let unknown = node.api.wait_for_phase("p", "Running").await;
    let health = |pod: &Value| main_status(pod)["allocatedResourcesStatus"][0]["resources"][0]["health"].clone();
    assert_eq!(health(&unknown), "Unknown");
    node.log.wait_for("health-v1 ", 1).await;
    for (number, name) in [(1, "Healthy"), (2, "Unhealthy")] {
        plugin.report(&[("a", number, 0, "as reported")]);
        let pod = node.api.wait_for("p", name, |pod| health(pod) == name).await;
        assert_eq!(
            main_status(&pod)["allocatedResourcesStatus"],
            json!([{"name": "claim:a", "resources": [{"resourceID": "gpu.example.com/gpu=a", "health": name, "message": "as reported"}]}])
        );
    }
}

#[tokio::test]
async fn a_restarted_kubelet_adopts_running_containers() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    kubelet.kill();
    let kubelet = node.kubelet().await;
    connected(&kubelet, 1).await;
    assert_eq!(kubelet.claims()[0].drivers["gpu.example.com"][0].device_name, "a");
    assert!(!kubelet.claims()[0].prepared);
    // A restart of the container uses the devices from the state file; nothing was prepared or started in between.
    node.containers.exit("main", 1);
    node.log.wait_for("start p/main", 2).await;
    assert_eq!((node.log.count("prepare"), node.log.count("stop")), (1, 0));
    assert_eq!(node.containers.spec("main").unwrap().cdi_devices, ["gpu.example.com/gpu=a"]);
    node.api.wait_for("p", "counted", |pod| main_status(pod)["restartCount"] == 1).await;
    node.api.delete("p").await;
    node.api.wait_until_gone("p").await;
    assert_eq!(node.log.count("unprepare"), 1);
}

#[tokio::test]
async fn after_a_restart_a_new_pod_prepares_a_claim_again_while_another_uses_it() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    let shared = claim("a", &[]);
    node.api.run(&pod("one", &["a"]), std::slice::from_ref(&shared)).await;
    node.api.wait_for_phase("one", "Running").await;
    kubelet.kill();
    let kubelet = node.kubelet().await;
    connected(&kubelet, 1).await;
    node.api.run(&pod("two", &["a"]), &[shared]).await;
    node.api.wait_for_phase("two", "Running").await;
    assert_eq!(node.log.of(&["prepare"]), vec!["prepare gpu.example.com a"; 2]);
    assert_eq!(node.log.of(&["start", "stop"]), ["start one/main", "start two/main"]);
    assert_eq!((kubelet.claims()[0].pods.len(), kubelet.claims()[0].prepared), (2, true));
}

#[tokio::test]
async fn pods_that_vanished_while_no_kubelet_ran_are_stopped_and_then_unprepared() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.api.run(&pod("plain", &[]), &[]).await;
    node.api.wait_for_phase("p", "Running").await;
    node.api.wait_for_phase("plain", "Running").await;
    kubelet.stop().await;
    assert_eq!(node.containers.running().len(), 2, "containers keep running");
    node.api.remove("p").await;
    node.api.remove("plain").await;
    let kubelet = node.kubelet().await;
    node.log.wait_for("unprepare", 1).await;
    node.log.wait_for("stop", 2).await;
    let stopped = node.log.of(&["stop", "unprepare"]);
    assert!(stopped.contains(&"stop main with grace 7".to_owned()), "{stopped:?}");
    eventually("nothing is left", || (node.containers.len() == 0 && kubelet.claims().is_empty()).then_some(())).await;
}

#[tokio::test]
async fn a_pod_that_finished_while_no_kubelet_ran_is_unprepared_and_reported() {
    let node = TestNode::new().await;
    let (kubelet, _plugin) = node.with_plugin().await;
    node.api.run(&with_policy("p", &["a"], "Never"), &[claim("a", &[])]).await;
    node.api.wait_for_phase("p", "Running").await;
    kubelet.kill();
    node.containers.exit("main", 0);
    let kubelet = node.kubelet().await;
    node.api.wait_for_phase("p", "Succeeded").await;
    assert!(kubelet.claims().is_empty());
    assert_eq!((node.log.count("prepare"), node.log.count("unprepare")), (1, 1));
}

#[tokio::test]
async fn a_kubelet_killed_during_a_prepare_prepares_again_and_one_killed_during_an_unprepare_unprepares_again() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    plugin.script.gate.forget_permits(usize::MAX);
    node.api.run(&pod("p", &["a"]), &[claim("a", &[])]).await;
    node.log.wait_for("prepare", 1).await;
    kubelet.kill();
    let kubelet = node.kubelet().await;
    assert_eq!(kubelet.claims().len(), 1, "the claim was recorded before the call");
    node.log.wait_for("prepare", 2).await;
    plugin.script.gate.add_permits(2);
    node.api.wait_for_phase("p", "Running").await;

    plugin.script.gate.forget_permits(usize::MAX);
    node.api.delete("p").await;
    node.log.wait_for("unprepare", 1).await;
    kubelet.kill();
    let kubelet = node.kubelet().await;
    node.log.wait_for("unprepare", 2).await;
    assert!(node.api.pods().get_opt("p").await.unwrap().is_some(), "not before it is unprepared");
    plugin.script.gate.add_permits(2);
    node.api.wait_until_gone("p").await;
    assert_eq!(node.log.count("start"), 1);
    eventually("forgotten", || kubelet.claims().is_empty().then_some(())).await;
}

#[tokio::test]
async fn claims_of_deleted_pods_are_unprepared_periodically() {
    let node = TestNode::new().await;
    let (kubelet, plugin) = node.with_plugin().await;
    // A pod that is not on this node has a recorded claim.
    let uid = node.api.create_pod(&pod("p", &["a"])).await;
    node.api.reserve(&claim("a", &[]), &uid).await;
    let object = node.api.pods().get("p").await.unwrap();
    *plugin.script.call_error.lock().unwrap() = Some(Status::internal("no"));
    kubelet.pods.manager().prepare(&object).await.unwrap_err();
    node.log.wait_for("unprepare", 2).await;
    assert_eq!(kubelet.claims().len(), 1);
    *plugin.script.call_error.lock().unwrap() = None;
    eventually("unprepared", || kubelet.claims().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_watch_that_breaks_loses_no_pod() {
    let node = TestNode::new().await;
    let kubelet = node.kubelet().await;
    for name in ["one", "two", "three"] {
        node.api.run(&pod(name, &[]), &[]).await;
        node.api.wait_for_phase(name, "Running").await;
        node.api.server.faults().drop_watches();
    }
    node.api.server.stop().await;
    node.api.server.resume().await.unwrap();
    node.api.delete("two").await;
    node.api.wait_until_gone("two").await;
    assert_eq!(node.containers.running(), ["one/main", "three/main"]);
    kubelet.stop().await;
}
