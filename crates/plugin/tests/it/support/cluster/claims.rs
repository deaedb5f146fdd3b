//! The claims of a cluster.

use serde_json::{Value, json};

use super::{Cluster, POOL, request};
use crate::support::TestClaim;

/// The ID of the allocated share of gpu-2.
pub const SHARE: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";

impl Cluster {
    /// Sends a request for claims of the cluster's namespace as an administrator.
    pub async fn request_claims(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
        let version = self.version;
        let namespace = &self.names.namespace;
        let path = format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims{path}");
        request(&self.admin(), method, &path, content_type, body).await
    }

    /// Creates a claim that is allocated on the node, with gpu-0, gpu-1, a share of gpu-2, and a device of another driver.
    pub async fn claim(&self, name: &str) -> TestClaim {
        let request = |name| match self.version {
            "v1beta1" => json!({"name": name, "deviceClassName": "any"}),
            _ => json!({"name": name, "exactly": {"deviceClassName": "any"}}),
        };
        let claim = json!({
            "apiVersion": format!("resource.k8s.io/{}", self.version), "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request("gpu"), request("b"), request("c"), request("net")]}},
        });
        self.request_claims("POST", "", "application/json", &claim).await;
        let driver = &self.names.driver;
        let result = |request, device| json!({"request": request, "driver": driver, "pool": POOL, "device": device});
        let mut share = result("c", "gpu-2");
        share["shareID"] = SHARE.into();
        let foreign = json!({"request": "net", "driver": "net.example.com", "pool": POOL, "device": "eth-0"});
        let node = json!({"key": "metadata.name", "operator": "In", "values": [self.names.node]});
        let status = json!({"status": {"allocation": {
            "devices": {"results": [result("gpu", "gpu-0"), result("b", "gpu-1"), share, foreign]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
        }}});
        let object =
            self.request_claims("PATCH", &format!("/{name}/status"), "application/merge-patch+json", &status).await;
        TestClaim { object }
    }

    /// Applies device entries as another field manager.
    pub async fn apply_status(&self, claim: &TestClaim, manager: &str, devices: Value) {
        let body = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": claim.name()},
                          "status": {"devices": devices}});
        let path = format!("/{}/status?fieldManager={manager}&force=true", claim.name());
        self.request_claims("PATCH", &path, "application/apply-patch+yaml", &body).await;
    }

    /// Returns the device entries in the status of a claim.
    pub async fn device_entries(&self, claim: &TestClaim) -> Vec<Value> {
        let object = self.request_claims("GET", &format!("/{}", claim.name()), "application/json", &Value::Null).await;
        object.pointer("/status/devices").and_then(Value::as_array).cloned().unwrap_or_default()
    }

    /// Returns the metadata file of a request, in the first of its versions.
    pub fn metadata(&self, claim: &TestClaim, request: &str) -> Value {
        let claim = format!("{}_{}", claim.namespace(), claim.name());
        let directory =
            self.root.path().join("plugins").join(&self.names.driver).join("dra-device-metadata").join(claim);
        let bytes = std::fs::read(directory.join(request).join("metadata.json")).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().next().unwrap().unwrap()
    }
}
