//! Events about pods. One that is equal to a recent event of the pod only increases the count of that.

use std::collections::VecDeque;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::status::time;

/// The number of different events of a pod that are known again: more than a pod has containers that fail in turn.
const MAX_RECENT: usize = 32;

/// The events of one pod.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The events that were sent last, the newest at the end.
    recent: VecDeque<RecentEvent>,
}

#[derive(Debug)]
struct RecentEvent {
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
        let is_same = |recent: &RecentEvent| recent.reason == reason && recent.message == message;
        let same = self.recent.iter().position(is_same).and_then(|index| self.recent.remove(index));
        let (sent, outcome) = match same {
            Some(mut sent) => {
                sent.count += 1;
                let patch = json!({"count": sent.count, "lastTimestamp": now});
                let outcome = api.patch(&sent.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                (sent, outcome)
            }
            None => {
                let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
                let name = format!("{}.{nanos:x}", pod.metadata.name.as_deref().unwrap_or_default());
                let event = event(pod, node, &name, reason, &message);
                let outcome = match event {
                    Ok(event) => api.create(&PostParams::default(), &event).await,
                    Err(error) => Err(kube::Error::SerdeError(error)),
                };
                (RecentEvent { name, reason, message, count: 1 }, outcome)
            }
        };
        match outcome {
            Ok(_) => {
                if self.recent.len() == MAX_RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back(sent);
            }
            Err(error) => {
                let pod = pod.metadata.name.as_deref().unwrap_or_default();
                let RecentEvent { reason, message, .. } = sent;
                tracing::warn!(namespace, pod, reason, message, %error, "kubelet: sending an event failed");
            }
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
