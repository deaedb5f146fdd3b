#![allow(clippy::unwrap_used, clippy::panic)]

mod features;
mod node;
mod refusals;
mod requests;

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::{InUse, Inventory, Refusal, allocate};
use crate::scheduler::node::NodeInfo;

/// The slices, classes, devices in use and node of an allocation.
struct World {
    slices: Vec<ResourceSlice>,
    classes: BTreeMap<String, DeviceClass>,
    in_use: InUse,
    node: NodeInfo,
}

impl World {
    /// Creates the node `worker` with devices of the driver `gpu.example.com`, a class `gpu` for them and a class `any`.
    fn with_devices(devices: &Value) -> Self {
        let mut world = Self {
            slices: Vec::new(),
            classes: BTreeMap::new(),
            in_use: InUse::default(),
            node: NodeInfo::new("worker", None),
        };
        world.class("any", &json!({}));
        world.class("gpu", &json!({"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}));
        world.slice(&json!({"devices": devices}));
        world
    }

    fn gpus(count: usize) -> Self {
        Self::with_devices(&(0..count).map(|number| json!({"name": format!("gpu-{number}")})).collect())
    }

    fn class(&mut self, name: &str, spec: &Value) {
        let class = serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec,
        }));
        self.classes.insert(name.to_owned(), class.unwrap());
    }

    /// Adds a slice with these fields in its spec; the defaults are those of the only slice of a pool on the node.
    fn slice(&mut self, spec: &Value) {
        let mut full = json!({
            "driver": "gpu.example.com",
            "pool": {"name": "worker", "generation": 1, "resourceSliceCount": 1},
        });
        let node_fields = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
        if node_fields.iter().all(|field| spec.get(field).is_none()) {
            full["nodeName"] = json!("worker");
        }
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let name = format!("slice-{}", self.slices.len());
        self.slices.push(
            serde_json::from_value(json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": full,
            }))
            .unwrap(),
        );
    }

    fn allocate_all(&self, claims: &[&ResourceClaim]) -> Result<Vec<AllocationResult>, Refusal> {
        let inventory = Inventory::new(&self.slices, &self.node);
        let mut shares = 0;
        let mut share = || {
            shares += 1;
            format!("share-{shares}")
        };
        allocate(claims, &self.classes, &inventory, &self.in_use, &self.node, &mut share)
    }

    fn allocate(&self, claim: &ResourceClaim) -> Result<AllocationResult, Refusal> {
        self.allocate_all(&[claim]).map(|mut all| all.remove(0))
    }

    /// Allocates a claim and records the devices as in use.
    fn hold(&mut self, uid: &str, claim: &ResourceClaim) -> AllocationResult {
        let allocation = self.allocate(claim).unwrap();
        self.in_use.set(uid, Some(&allocation));
        allocation
    }

    fn refusal(&self, claim: &ResourceClaim) -> String {
        self.allocate(claim).unwrap_err().to_string()
    }
}

/// Returns a claim with this `spec.devices`.
fn claim(devices: &Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "default"}, "spec": {"devices": devices},
    }))
    .unwrap()
}

/// Returns a claim with one request, `gpu`, of the form `exactly`.
fn exactly(request: &Value) -> ResourceClaim {
    let mut full = json!({"deviceClassName": "gpu"});
    full.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
    claim(&json!({"requests": [{"name": "gpu", "exactly": full}]}))
}

/// Formats each result as `request=device`.
fn devices(allocation: &AllocationResult) -> Vec<String> {
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref()).unwrap();
    results.iter().map(|result| format!("{}={}", result.request, result.device)).collect()
}

fn selector(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}
