//! Just enough scheduler, and the claim controller: what a cluster does between the creation of a pod and the moment when
//! a kubelet sees it.
//!
//! Claims are generated from templates, get devices by what resource slices offer, are reserved for pods, and lose all that
//! when their pods are over; pods are bound to the one node, or told in their status why not. Everything goes through the
//! API server, as in Kubernetes: a [`Scheduler`] can be stopped and another started at any time.

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
use self::watch::follow;

/// Delays between retries of the controllers.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(5)).with_jitter(1.0, 1.5);

/// How many changes may wait for the decisions about those before them.
const EVENTS: usize = 1024;

/// A scheduler for the pods of one node. It ends when it is dropped.
#[derive(Debug)]
pub struct Scheduler {
    cancel: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Scheduler {
    /// Starts to schedule pods onto the node. The client must be allowed to read and write pods, and everything of
    /// `resource.k8s.io/v1`, as the scheduler and the claim controller of a cluster are. Must be called in a tokio runtime.
    ///
    /// Pods that name another scheduler, or have scheduling gates, are left alone. The node needs no Node object; if there
    /// is one, selectors see its labels.
    pub fn start(client: Client, node_name: &str) -> Self {
        let cancel = CancellationToken::new();
        let (stopped, node_name) = (cancel.clone(), node_name.to_owned());
        let task = tokio::spawn(async move {
            let _ = stopped.run_until_cancelled(run(client, node_name)).await;
        });
        Self { cancel, task: AbortOnDropHandle::new(task) }
    }

    /// Stops. Requests that are on their way are given up; the next scheduler sees what came of them.
    pub async fn stop(self) {
        self.cancel.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the scheduler broke off");
        }
    }
}

async fn run(client: Client, node_name: String) {
    let (send, events) = mpsc::channel(EVENTS);
    let this_node = Some(format!("metadata.name={node_name}"));
    // Dropped with this future, and all watches with it.
    let mut watches = JoinSet::new();
    watches.spawn(follow(Api::all(client.clone()), None, send.clone(), Event::Pods));
    watches.spawn(follow(Api::all(client.clone()), None, send.clone(), Event::Claims));
    watches.spawn(follow(Api::all(client.clone()), None, send.clone(), Event::Templates));
    watches.spawn(follow(Api::all(client.clone()), None, send.clone(), Event::Classes));
    watches.spawn(follow(Api::all(client.clone()), None, send.clone(), Event::Slices));
    watches.spawn(follow(Api::all(client.clone()), this_node, send, Event::Nodes));
    Controller::new(Jobs { client, node_name }).run(events).await;
}
