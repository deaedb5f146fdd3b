//! Claims and pods for an embedded node, and metadata as its containers read it.

use drakkar_node::{ClaimSpec, Container, Pod, PodHandle};
use serde_json::Value;

use super::DRIVER;

/// Returns a claim with one request, `gpu`, for one device.
pub fn one_gpu(claim: &str) -> Value {
    ClaimSpec::default().request("gpu", DRIVER, 1).claim(claim)
}

/// Returns a pod that uses a claim and runs until it is deleted.
pub fn pod_with(name: &str, claim: &str) -> Pod {
    Pod::new(name).claim("gpus", claim).container(Container::new("main", ["sleep", "infinity"]).claim("gpus"))
}

/// Returns the metadata of a claim, as the pod's container reads it at the path of the KEP.
pub async fn read_metadata(pod: &PodHandle<'_>, claim: &str) -> Value {
    let file = format!("/var/run/dra-device-attributes/{claim}/gpu/{DRIVER}-metadata.json");
    let output = pod.exec("main", ["cat", &file]).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
