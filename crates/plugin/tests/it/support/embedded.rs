//! What tests put on an embedded node, and what they read in its containers.

use drakkar_node::{ClaimSpec, Container, Pod, PodHandle};
use serde_json::Value;

use super::DRIVER;

/// A claim for one device, by the request `gpu`.
pub fn one_gpu(claim: &str) -> Value {
    ClaimSpec::default().request("gpu", DRIVER, 1).claim(claim)
}

/// A pod that stays, and has a claim.
pub fn pod_with(name: &str, claim: &str) -> Pod {
    Pod::new(name).claim("gpus", claim).container(Container::new("main", ["sleep", "infinity"]).claim("gpus"))
}

/// What the pod's container reads about its claim, where the KEP has it.
pub async fn read_metadata(pod: &PodHandle<'_>, claim: &str) -> Value {
    let file = format!("/var/run/dra-device-attributes/{claim}/gpu/{DRIVER}-metadata.json");
    let output = pod.exec("main", ["cat", &file]).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
