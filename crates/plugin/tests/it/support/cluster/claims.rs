//! The claims of a cluster.

use serde_json::{Value, json};

use super::{Cluster, POOL, ask};
use crate::support::TestClaim;

/// The share of gpu-2 that is allocated.
pub const SHARE: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";

impl Cluster {
    /// Asks about claims, as an administrator.
    pub async fn ask_claims(&self, method: &str, path: &str, kind: &str, body: &Value) -> Value {
        let (version, namespace) = (self.version, &self.names.namespace);
        let path = format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims{path}");
        ask(&self.admin(), method, &path, kind, body).await
    }

    /// A claim that is allocated on the node, with gpu-0, gpu-1, a share of gpu-2, and a device of another driver.
    pub async fn claim(&self, name: &str) -> TestClaim {
        let request = |name| match self.version {
            "v1beta1" => json!({"name": name, "deviceClassName": "any"}),
            _ => json!({"name": name, "exactly": {"deviceClassName": "any"}}),
        };
        let claim = json!({
            "apiVersion": format!("resource.k8s.io/{}", self.version), "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request("gpu"), request("b"), request("c"), request("net")]}},
        });
        self.ask_claims("POST", "", "application/json", &claim).await;
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
            self.ask_claims("PATCH", &format!("/{name}/status"), "application/merge-patch+json", &status).await;
        TestClaim { object }
    }

    /// Applies entries as somebody else.
    pub async fn apply_status(&self, claim: &TestClaim, manager: &str, devices: Value) {
        let body = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": claim.name()},
                          "status": {"devices": devices}});
        let path = format!("/{}/status?fieldManager={manager}&force=true", claim.name());
        self.ask_claims("PATCH", &path, "application/apply-patch+yaml", &body).await;
    }

    /// What a claim says of its devices.
    pub async fn device_entries(&self, claim: &TestClaim) -> Vec<Value> {
        let object = self.ask_claims("GET", &format!("/{}", claim.name()), "application/json", &Value::Null).await;
        object.pointer("/status/devices").and_then(Value::as_array).cloned().unwrap_or_default()
    }
    /// What the metadata file of a request says, in its first version.
    pub fn metadata(&self, claim: &TestClaim, request: &str) -> Value {
        let claim = format!("{}_{}", claim.namespace(), claim.name());
        let directory =
            self.root.path().join("plugins").join(&self.names.driver).join("dra-device-metadata").join(claim);
        let bytes = std::fs::read(directory.join(request).join("metadata.json")).unwrap();
        serde_json::Deserializer::from_slice(&bytes).into_iter().next().unwrap().unwrap()
    }
}
