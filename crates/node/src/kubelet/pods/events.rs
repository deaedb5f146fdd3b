//! Events about pods. An equal event in a row only increases the count of the last.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::status::time;

/// The events of one pod.
#[derive(Debug, Default)]
pub(super) struct Events {
    last: Option<LastEvent>,
}

#[derive(Debug)]
struct LastEvent {
    name: String,
    reason: &'static str,
    message: String,
    count: i32,
}

impl Events {
    /// Sends a warning about a pod. A failure is only logged: nothing depends on events.
    pub(super) async fn warn(&mut self, client: &Client, node: &str, pod: &Pod, reason: &'static str, message: String) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let now = time(SystemTime::now());
        let same = self.last.as_mut().filter(|last| last.reason == reason && last.message == message);
        let outcome = match same {
            Some(last) => {
                last.count += 1;
                let patch = json!({"count": last.count, "lastTimestamp": now});
                api.patch(&last.name, &PatchParams::default(), &Patch::Merge(patch)).await
            }
            None => {
                let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
                let name = format!("{}.{nanos:x}", pod.metadata.name.as_deref().unwrap_or_default());
                let event = event(pod, node, &name, reason, &message);
                self.last = Some(LastEvent { name, reason, message: message.clone(), count: 1 });
                match event {
                    Ok(event) => api.create(&PostParams::default(), &event).await,
                    Err(error) => Err(kube::Error::SerdeError(error)),
                }
            }
        };
        if let Err(error) = outcome {
            self.last = None;
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(namespace, pod, reason, message, %error, "kubelet: sending an event failed");
        }
    }
}

fn event(pod: &Pod, node: &str, name: &str, reason: &str, message: &str) -> serde_json::Result<Event> {
    let now = time(SystemTime::now());
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": pod.metadata.namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "namespace": pod.metadata.namespace,
            "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version,
        },
        "type": "Warning", "reason": reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet", "reportingInstance": node,
    }))
}
