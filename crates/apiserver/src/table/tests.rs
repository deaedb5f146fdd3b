#![allow(clippy::unwrap_used)]
#![allow(clippy::needless_pass_by_value, reason = "`json!` in the arguments reads best")]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Returns the cells of an object by the names of their columns.
fn cells(resource: Resource, object: &Value) -> Map<String, Value> {
    let table = Table { resource, api_version: "meta.k8s.io/v1", include: Include::None };
    let shown = table.show(&Value::Null, true, [object], Value::clone);
    let names = shown["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap());
    let cells = shown["rows"][0]["cells"].as_array().unwrap();
    names.map(str::to_owned).zip(cells.iter().cloned()).collect()
}

fn container(state: Value, ready: bool, restarts: i32) -> Value {
    json!({ "name": "a", "ready": ready, "restartCount": restarts, "state": state })
}

#[rstest]
#[case::pending(json!({ "phase": "Pending" }), "0/1", "Pending")]
#[case::creating(
    json!({ "phase": "Pending", "containerStatuses": [container(json!({ "waiting": { "reason": "ContainerCreating" } }), false, 0)] }),
    "0/1", "ContainerCreating"
)]
#[case::running(
    json!({ "phase": "Running", "containerStatuses": [container(json!({ "running": {} }), true, 0)] }),
    "1/1", "Running"
)]
#[case::failed(
    json!({ "phase": "Failed", "containerStatuses": [container(json!({ "terminated": { "exitCode": 1, "reason": "Error" } }), false, 0)] }),
    "0/1", "Error"
)]
#[case::killed(
    json!({ "phase": "Failed", "containerStatuses": [container(json!({ "terminated": { "exitCode": 137, "signal": 9 } }), false, 0)] }),
    "0/1", "Signal:9"
)]
#[case::gated(
    json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] }),
    "0/1", "SchedulingGated"
)]
#[case::initializing(
    json!({ "phase": "Pending", "initContainerStatuses": [container(json!({ "running": {} }), false, 0)] }),
    "0/1", "Init:0/1"
)]
#[case::initializing_failed(
    json!({ "phase": "Pending", "initContainerStatuses": [container(json!({ "terminated": { "exitCode": 3 } }), false, 0)] }),
    "0/1", "Init:ExitCode:3"
)]
fn a_pod_shows_what_its_containers_do(#[case] status: Value, #[case] ready: &str, #[case] shown: &str) {
    let mut pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "a" }] }, "status": status });
    if !pod["status"]["initContainerStatuses"].is_null() {
        pod["spec"]["initContainers"] = json!([{ "name": "a" }]);
    }
    let row = cells(Resource::Pod, &pod);
    assert_eq!((row["Ready"].as_str().unwrap(), row["Status"].as_str().unwrap()), (ready, shown));
    assert_eq!(
        (&row["Restarts"], &row["IP"], &row["Readiness Gates"]),
        (&json!("0"), &json!("<none>"), &json!("<none>"))
    );
    if matches!(shown, "Running" | "Pending") {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(cells(Resource::Pod, &pod)["Status"], "Terminating");
    }
}

#[test]
fn restarts_have_the_time_of_the_last() {
    let ended = (Timestamp::now() - std::time::Duration::from_secs(400)).to_string();
    let mut status = container(json!({ "running": {} }), true, 3);
    status["lastState"] = json!({ "terminated": { "finishedAt": ended } });
    let pod =
        json!({ "spec": { "containers": [{}] }, "status": { "phase": "Running", "containerStatuses": [status] } });
    assert_eq!(cells(Resource::Pod, &pod)["Restarts"], "3 (6m40s ago)");
}

#[rstest]
#[case(json!({}), "pending")]
#[case(json!({ "allocation": {} }), "allocated")]
#[case(json!({ "allocation": {}, "reservedFor": [{ "name": "p" }] }), "allocated,reserved")]
fn a_claim_shows_its_state(#[case] status: Value, #[case] state: &str) {
    let mut claim = json!({ "metadata": { "name": "c" }, "status": status });
    assert_eq!(cells(Resource::ResourceClaim, &claim)["State"], state);
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let deleted = if state == "pending" { "deleted".to_owned() } else { format!("deleted,{state}") };
    assert_eq!(cells(Resource::ResourceClaim, &claim)["State"], deleted);
}

#[test]
fn a_node_shows_readiness_roles_and_version() {
    let node = json!({
        "metadata": { "name": "n", "labels": { "node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "gpu" } },
        "spec": { "unschedulable": true },
        "status": {
            "conditions": [{ "type": "Ready", "status": "False" }],
            "nodeInfo": { "kubeletVersion": "v1.37.1", "kernelVersion": "6.1", "architecture": "amd64" },
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
        },
    });
    let row = cells(Resource::Node, &node);
    assert_eq!((&row["Status"], &row["Roles"]), (&json!("NotReady,SchedulingDisabled"), &json!("control-plane,gpu")));
    assert_eq!((&row["Version"], &row["Internal-IP"]), (&json!("v1.37.1"), &json!("10.0.0.1")));
    assert_eq!((&row["Kernel-Version"], &row["OS-Image"]), (&json!("6.1 (amd64)"), &json!("<unknown>")));
}

#[test]
fn an_event_shows_when_it_was_seen_and_what_it_is_about() {
    let event = json!({
        "metadata": { "name": "e" }, "involvedObject": { "kind": "Pod", "name": "p" }, "reason": "Failed", "type": "Warning",
        "message": " no such device\n", "eventTime": Timestamp::now().to_string(),
        "reportingComponent": "kubelet", "reportingInstance": "n",
    });
    let row = cells(Resource::Event, &event);
    assert_eq!((&row["Object"], &row["Message"]), (&json!("pod/p"), &json!("no such device")));
    assert_eq!((&row["Source"], &row["Count"]), (&json!("kubelet, n"), &json!(1)));
    assert_eq!(row["Last Seen"], row["First Seen"]);
}

#[test]
fn every_resource_has_a_name_and_an_age() {
    for resource in Resource::ALL {
        let object = json!({ "metadata": { "name": "x", "creationTimestamp": Timestamp::now().to_string() } });
        let row = cells(resource, &object);
        assert_eq!(row["Name"], "x", "{resource:?}");
        assert!(resource == Resource::Event || row["Age"].as_str().unwrap().ends_with('s'), "{resource:?}");
    }
}
