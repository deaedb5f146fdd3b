//! Claims as the API server and the kubelet see them.

use drakkar_node::kubelet::ClaimId;
use drakkar_plugin::ClaimRef;
use serde_json::{Value, json};

use super::DRIVER;

/// A claim, as an object of the API server.
#[derive(Debug, Clone)]
pub struct TestClaim {
    pub object: Value,
}

impl TestClaim {
    /// Returns an allocated claim in the namespace `default`, without devices.
    pub fn new(name: &str, uid: &str) -> Self {
        Self {
            object: json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": uid},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
                "status": {"allocation": {"devices": {"results": []}}},
            }),
        }
    }

    /// Adds a device of [`DRIVER`] for a request (`request` or `request/subrequest`).
    pub fn device(self, request: &str, device: &str) -> Self {
        self.result(json!({"request": request, "driver": DRIVER, "pool": "node-1", "device": device}))
    }

    /// Adds an allocation result.
    pub fn result(mut self, result: Value) -> Self {
        let results = self.object.pointer_mut("/status/allocation/devices/results").unwrap();
        results.as_array_mut().unwrap().push(result);
        self
    }

    /// Marks the claim as made from a template, for this entry in the pod's `resourceClaims`.
    pub fn made_from_template(mut self, pod_claim: &str) -> Self {
        self.object["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": pod_claim});
        self
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap()
    }

    pub fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap()
    }

    pub fn reference(&self) -> ClaimRef {
        ClaimRef {
            namespace: self.namespace().parse().unwrap(),
            name: self.name().parse().unwrap(),
            uid: self.uid().parse().unwrap(),
        }
    }

    /// Adds an annotation.
    pub fn annotated(mut self, annotation: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][annotation] = json!(value);
        self
    }
}

impl From<&TestClaim> for ClaimId {
    fn from(claim: &TestClaim) -> Self {
        Self { namespace: claim.namespace().into(), name: claim.name().into(), uid: claim.uid().into() }
    }
}
