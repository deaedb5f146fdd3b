//! The Node object: a kubelet creates it if it does not exist, and sets its `Ready` condition.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use super::pods::time;
use super::timing::Timing;

/// Registers the node, and retries until the API server has it.
pub(super) async fn register(client: Client, name: String, timing: Timing) {
    let api: Api<Node> = Api::all(client);
    let mut retry = timing.api_backoff.retry();
    while let Err(error) = attempt(&api, &name).await {
        tracing::warn!(node = name, %error, "kubelet: registering the node failed, retrying");
        sleep(retry.next_delay()).await;
    }
}

async fn attempt(api: &Api<Node>, name: &str) -> Result<(), kube::Error> {
    if api.get_opt(name).await?.is_none() {
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
        match api.create(&PostParams::default(), &node).await {
            // Another client was faster.
            Err(kube::Error::Api(answer)) if answer.is_already_exists() => {}
            created => drop(created?),
        }
    }
    let now = time(SystemTime::now());
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the kubelet is ready",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    let patch = json!({"status": {"conditions": [ready]}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}
