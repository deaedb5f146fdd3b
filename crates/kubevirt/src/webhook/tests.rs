use serde_json::{Value, json};

use super::*;
use crate::gates::Gate;

mod reviews;
mod server;
mod support;

/// A review of an object.
fn review_of(operation: &str, object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": object["kind"]},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"},
            "operation": operation,
            "userInfo": {"username": "alice"},
            "object": object,
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

/// A VMI with a GPU of a claim; `claim` is the claim's name in `resourceClaims`.
fn vmi(claim: &str) -> Value {
    json!({
        "spec": {
            "resourceClaims": [{"name": claim, "resourceClaimTemplateName": "t"}],
            "domain": {"devices": {"gpus": [{"name": "g", "claimName": "gpu", "requestName": "r"}]}},
        },
        "metadata": {"name": "vm", "namespace": "lab", "creationTimestamp": null},
        "kind": "VirtualMachineInstance",
        "apiVersion": "kubevirt.io/v1",
    })
}
