//! Events about pods: a new one for news, a higher count for the same again.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::status::time;

/// The events of one pod.
#[derive(Debug, Default)]
pub(super) struct Events {
    last: Option<Told>,
}

#[derive(Debug)]
struct Told {
    name: String,
    reason: &'static str,
    message: String,
    count: i32,
}

impl Events {
    /// Tells of trouble with a pod. That it cannot be told is logged: nothing else depends on it.
    pub(super) async fn warn(&mut self, client: &Client, node: &str, pod: &Pod, reason: &'static str, message: String) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let now = time(SystemTime::now());
        let again = self.last.as_mut().filter(|told| told.reason == reason && told.message == message);
        let outcome = match again {
            Some(told) => {
                told.count += 1;
                let patch = json!({"count": told.count, "lastTimestamp": now});
                api.patch(&told.name, &PatchParams::default(), &Patch::Merge(patch)).await
            }
            None => {
                let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
                let name = format!("{}.{nanos:x}", pod.metadata.name.as_deref().unwrap_or_default());
                let event = event(pod, node, &name, reason, &message);
                self.last = Some(Told { name, reason, message: message.clone(), count: 1 });
                match event {
                    Ok(event) => api.create(&PostParams::default(), &event).await,
                    Err(error) => Err(kube::Error::SerdeError(error)),
                }
            }
        };
        if let Err(error) = outcome {
            self.last = None;
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(namespace, pod, reason, message, %error, "kubelet: an event is not told");
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
