use serde_json::{Value, json};

use super::*;

/// A launcher pod as KubeVirt renders it, as far as claims go: two devices of the VMI's own, our hook and another's.
fn pod() -> Value {
    json!({
        "metadata": {
            "labels": {"kubevirt.io": "virt-launcher"},
            "annotations": {
                "drakkar.dev/gpus": "gpus=train/gpus, extra = train/more",
                "drakkar.dev/host-devices": "nvme=disks/data",
            },
        },
        "spec": {
            "resourceClaims": [
                {"name": "train", "resourceClaimTemplateName": "t"},
                {"name": "disks", "resourceClaimName": "d"},
            ],
            "containers": [
                {
                    "name": "compute",
                    "resources": {
                        "claims": [{"name": "train", "request": "first"}, {"name": "train", "request": "second"}],
                        "requests": {"memory": "1Gi"},
                    },
                },
                {"name": "volumecontainerdisk", "resources": {}},
                {"name": "hook-sidecar-0", "image": "drakkar", "args": ["kubevirt", "hook"], "resources": {}},
                {"name": "hook-sidecar-1", "image": "theirs", "args": ["--version", "v1alpha3"], "resources": {}},
            ],
        },
    })
}

fn all_claims() -> Value {
    json!([
        {"name": "train", "request": "first"},
        {"name": "train", "request": "second"},
        {"name": "train", "request": "gpus"},
        {"name": "train", "request": "more"},
        {"name": "disks", "request": "data"},
    ])
}

/// Applies `add` operations on objects.
fn apply(mut pod: Value, operations: &[PatchOperation]) -> Value {
    for PatchOperation { path, value, .. } in operations {
        let (parent, key) = path.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    pod
}

#[test]
fn the_launcher_gets_the_annotated_requests_and_the_hook_gets_all() {
    let operations = mutate_launcher_pod(&pod()).unwrap();
    let written = serde_json::to_value(&operations).unwrap();
    assert_eq!(
        written,
        json!([
            {"op": "add", "path": "/spec/containers/0/resources/claims", "value": all_claims()},
            {"op": "add", "path": "/spec/containers/2/resources/claims", "value": all_claims()},
        ])
    );
}

#[test]
fn applying_twice_is_applying_once() {
    let once = apply(pod(), &mutate_launcher_pod(&pod()).unwrap());
    assert_eq!(mutate_launcher_pod(&once).unwrap(), []);
}

#[test]
fn without_annotations_the_hook_gets_the_claims_of_the_launcher() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = Value::Null;
    let operations = mutate_launcher_pod(&pod).unwrap();
    assert_eq!(operations.len(), 1);
    assert_eq!(operations[0].path, "/spec/containers/2/resources/claims");
    assert_eq!(operations[0].value, pod["spec"]["containers"][0]["resources"]["claims"]);
}

#[test]
fn a_container_without_resources_gets_some() {
    let mut pod = pod();
    pod["spec"]["containers"][2].as_object_mut().unwrap().remove("resources");
    let operations = mutate_launcher_pod(&pod).unwrap();
    assert_eq!(operations[1].path, "/spec/containers/2/resources");
    assert_eq!(operations[1].value, json!({"claims": all_claims()}));
}

#[test]
fn a_hook_that_is_named_by_its_command_is_recognized() {
    let mut pod = pod();
    pod["spec"]["containers"][2]["command"] = json!(["/drakkar", "kubevirt", "hook"]);
    pod["spec"]["containers"][2]["args"] = Value::Null;
    assert_eq!(mutate_launcher_pod(&pod).unwrap().len(), 2);
}

#[test]
fn other_pods_stay_as_they_are() {
    let mut no_launcher = pod();
    no_launcher["metadata"]["labels"] = json!({"app": "web"});
    assert_eq!(mutate_launcher_pod(&no_launcher).unwrap(), []);
    let mut no_hook = pod();
    no_hook["spec"]["containers"][2]["args"] = json!(["--version", "v1alpha3"]);
    assert_eq!(mutate_launcher_pod(&no_hook).unwrap(), []);
    assert_eq!(mutate_launcher_pod(&json!({"spec": {}})).unwrap(), []);
}

#[test]
fn a_claim_that_the_vmi_does_not_have_is_refused_by_name() {
    let mut pod = pod();
    pod["metadata"]["annotations"]["drakkar.dev/gpus"] = json!("g=missing/gpu");
    let error = mutate_launcher_pod(&pod).unwrap_err().to_string();
    assert!(error.contains("drakkar.dev/gpus") && error.contains("\"missing\""), "{error}");
    pod["metadata"]["annotations"]["drakkar.dev/gpus"] = json!("g");
    assert!(mutate_launcher_pod(&pod).unwrap_err().to_string().contains("must be NAME=CLAIM/REQUEST"));
}
