//! The life of a pod's sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::network::PodNetwork;
use super::pods::Sandbox;
use super::{PodRuntime, message};
use crate::kubelet::SandboxSpec;

impl PodRuntime {
    /// Makes the sandbox of a pod, unless it has one.
    pub(super) async fn run_pod(&self, spec: SandboxSpec) -> Result<(), String> {
        let lock = self.0.pods.lock_of(&spec.pod_uid);
        // Held until the sandbox is made: a kubelet that was restarted meanwhile waits for it.
        let _pod = lock.lock().await;
        let nri = &self.0.nri;
        let operation = nri.operation().await;
        if self.0.pods.ready(&spec.pod_uid).is_some() {
            return Ok(());
        }
        let id = new_id(&spec.pod_uid);
        let network = self.new_network(&spec).await?;
        let pod = message::pod(&id, &spec, network.as_deref());
        let run = nri.run_pod_sandbox(&pod).await.map_err(|error| error.to_string());
        if operation.is_interrupted() {
            remove(network).await;
            return Err("the container runtime was restarted".to_owned());
        }
        if let Err(error) = run {
            for undone in [nri.stop_pod_sandbox(&pod).await, nri.remove_pod_sandbox(&pod).await] {
                if let Err(error) = undone {
                    tracing::warn!(pod = spec.pod_uid, %error, "undoing a sandbox failed");
                }
            }
            remove(network).await;
            return Err(error);
        }
        let sandbox = Sandbox { message: pod, is_ready: true, network };
        self.0.pods.tables().sandboxes.insert(id, sandbox);
        Ok(())
    }

    async fn new_network(&self, spec: &SandboxSpec) -> Result<Option<Arc<PodNetwork>>, String> {
        let Ok(networks) = self.networks() else { return Ok(None) };
        if spec.host_network {
            return Ok(None);
        }
        // A name of its own, which no sandbox has: as with a real runtime, nobody must derive one from the other.
        let name = format!("cni-{}", new_id("network").get(..32).unwrap_or_default());
        let created = tokio::task::spawn_blocking(move || networks.create(&name)).await;
        match created {
            Ok(Ok(network)) => Ok(Some(Arc::new(network))),
            Ok(Err(error)) => Err(format!("set up the network: {error}")),
            Err(error) => Err(format!("set up the network: {error}")),
        }
    }

    /// Stops the sandboxes of a pod, and its containers if one still runs, and removes its network.
    pub(super) async fn stop_pod(&self, pod_uid: &str) {
        let lock = self.0.pods.lock_of(pod_uid);
        let _pod = lock.lock().await;
        let _operation = self.0.nri.operation().await;
        self.end_containers(pod_uid).await;
        for sandbox in self.0.pods.of_pod(pod_uid).into_iter().filter(|sandbox| sandbox.is_ready) {
            if let Err(error) = self.0.nri.stop_pod_sandbox(&sandbox.message).await {
                tracing::warn!(pod = pod_uid, %error, "nri: a plugin failed to stop a sandbox");
            }
            let id = sandbox.message.id.clone();
            drop(sandbox);
            let network = self.0.pods.set_stopped(&id);
            remove(network).await;
        }
    }

    /// Removes the sandboxes of a pod, and before that its containers.
    pub(super) async fn remove_pod(&self, pod_uid: &str) {
        self.stop_pod(pod_uid).await;
        let lock = self.0.pods.lock_of(pod_uid);
        let _pod = lock.lock().await;
        let _operation = self.0.nri.operation().await;
        self.announce_removals(pod_uid).await;
        for sandbox in self.0.pods.of_pod(pod_uid) {
            if let Err(error) = self.0.nri.remove_pod_sandbox(&sandbox.message).await {
                tracing::warn!(pod = pod_uid, %error, "nri: a plugin failed to remove a sandbox");
            }
        }
        self.0.pods.forget(pod_uid);
    }
}

/// Removes a network, which blocks.
async fn remove(network: Option<Arc<PodNetwork>>) {
    if tokio::task::spawn_blocking(move || drop(network)).await.is_err() {
        tracing::error!("removing the network of a pod panicked");
    }
}

/// Returns an id of 64 hexadecimal digits, as sandboxes have.
fn new_id(seed: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let hash = Sha256::digest(format!("{seed}/{:?}/{count}/{}", SystemTime::now(), std::process::id()));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
