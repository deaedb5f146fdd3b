//! A minimal scheduler and claim controller: what a cluster does between the creation of a pod and the moment when a
//! kubelet sees it.
//!
//! Claims are generated from templates, allocated from the devices in resource slices, reserved for pods, and released when
//! their pods are done. Pods are bound to the one node, or their status says why not. All state is in the API server, as in
//! Kubernetes: a [`Scheduler`] can be stopped and another started at any time.

mod allocator;
mod cache;
mod claims;
mod controller;
mod job;
mod node;
mod pods;
mod watch;

#[cfg(test)]
mod tests;

use std::time::Duration;

use drakkar_client::Backoff;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::controller::{Controller, Event};
use self::job::Jobs;
use self::watch::watch_collection;

/// The retry delays of the controllers.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(5)).with_jitter(1.0, 1.5);

/// The most watch events that are queued for the controller.
const EVENT_QUEUE: usize = 1024;

/// A scheduler for the pods of one node. Dropping it stops it.
#[derive(Debug)]
pub struct Scheduler {
    cancel: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Scheduler {
    /// Starts scheduling pods onto the node. The client needs read and write access to pods and to all resources of
    /// `resource.k8s.io/v1`, as a cluster's scheduler and claim controller have. Must be called in a tokio runtime.
    ///
    /// Pods that name another scheduler or have scheduling gates are ignored. The node needs no Node object; if there is one,
    /// selectors match its labels.
    pub fn start(client: Client, node_name: &str) -> Self {
        let cancel = CancellationToken::new();
        let stopped = cancel.clone();
        let node_name = node_name.to_owned();
        let task = tokio::spawn(async move {
            let _ = stopped.run_until_cancelled(run(client, node_name)).await;
        });
        Self { cancel, task: AbortOnDropHandle::new(task) }
    }

    /// Stops the scheduler. Requests in flight are cancelled; the next scheduler reads their results from the API server.
    pub async fn stop(self) {
        self.cancel.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "scheduler task failed");
        }
    }
}

async fn run(client: Client, node_name: String) {
    let (send, events) = mpsc::channel(EVENT_QUEUE);
    let this_node = Some(format!("metadata.name={node_name}"));
    // Dropping the set with this future aborts the watches.
    let mut watches = JoinSet::new();
    watches.spawn(watch_collection(Api::all(client.clone()), None, send.clone(), Event::Pods));
    watches.spawn(watch_collection(Api::all(client.clone()), None, send.clone(), Event::Claims));
    watches.spawn(watch_collection(Api::all(client.clone()), None, send.clone(), Event::Templates));
    watches.spawn(watch_collection(Api::all(client.clone()), None, send.clone(), Event::Classes));
    watches.spawn(watch_collection(Api::all(client.clone()), None, send.clone(), Event::Slices));
    watches.spawn(watch_collection(Api::all(client.clone()), this_node, send, Event::Nodes));
    Controller::new(Jobs { client, node_name }).run(events).await;
}
