//! Watches the pods of this node: a list, then a watch, and a list again when the watch fails.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::time::sleep;

use super::Pods;

pub(super) async fn run(pods: &Pods) {
    let context = &pods.context;
    let api: Api<Pod> = Api::all(context.client.clone());
    let fields = format!("spec.nodeName={}", context.node);
    let mut retry = context.timing.api_backoff.retry();
    let mut first = true;
    loop {
        match api.list(&ListParams::default().fields(&fields)).await {
            Ok(list) => {
                let version = list.metadata.resource_version.clone().unwrap_or_default();
                pods.replace(list.items, first);
                first = false;
                if watch(pods, &api, &fields, version).await {
                    retry.reset();
                }
            }
            Err(error) => tracing::warn!(%fields, %error, "kubelet: listing pods failed, retrying"),
        }
        sleep(retry.next_delay()).await;
    }
}

/// Watches until a new list is needed. Returns whether there was any event.
async fn watch(pods: &Pods, api: &Api<Pod>, fields: &str, mut version: String) -> bool {
    let parameters = WatchParams::default().fields(fields);
    let mut seen = false;
    loop {
        let mut events = match api.watch(&parameters, &version).await {
            Ok(events) => events.boxed(),
            Err(error) => {
                tracing::debug!(%error, "kubelet: starting to watch pods failed");
                return seen;
            }
        };
        let mut progress = false;
        while let Some(event) = events.next().await {
            let newest = match event {
                Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                    let version = pod.metadata.resource_version.clone();
                    pods.apply(pod);
                    version
                }
                Ok(WatchEvent::Deleted(pod)) => {
                    if let Some(uid) = &pod.metadata.uid {
                        pods.removed(uid);
                    }
                    pod.metadata.resource_version
                }
                Ok(WatchEvent::Bookmark(bookmark)) => Some(bookmark.metadata.resource_version),
                Ok(WatchEvent::Error(status)) => {
                    tracing::debug!(%status, "kubelet: watch of pods ended");
                    return seen;
                }
                Err(error) => {
                    tracing::debug!(%error, "kubelet: watch of pods failed");
                    break;
                }
            };
            seen = true;
            progress = true;
            version = newest.unwrap_or(version);
        }
        // A watch that ended without an event is not restarted at once.
        if !progress {
            return seen;
        }
    }
}
