//! What a kubelet wants from whoever runs its containers.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Runner, State};

/// A container runtime. It outlives kubelets: a restarted kubelet finds its containers again. [`Runner`] is one.
pub trait Containers: Send + Sync + 'static {
    /// Starts a container.
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>>;
    /// The containers of a pod, those that have exited too until they are removed.
    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo>;
    /// Ends a container: politely, and after the grace period by force. Returns when it has exited.
    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()>;
    /// Forgets a container that has exited.
    fn remove(&self, id: &ContainerId);
    /// Changes whenever the state of a container changes.
    fn subscribe(&self) -> watch::Receiver<u64>;
}

/// Why a container does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// For humans.
    pub message: String,
    /// Whether there is a container that has exited, in the list, because only its program did not start.
    pub created: bool,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartError {}

impl Containers for Runner {
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>> {
        Box::pin(async move {
            let failed = |error: crate::runner::Error| StartError {
                message: error.to_string(),
                created: error.is_start_error(),
            };
            Self::start(self, spec).await.map_err(failed)
        })
    }

    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        Self::list(self, pod_uid)
    }

    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = Self::stop(self, id, grace).await {
                tracing::error!(container = %id, %error, "kubelet: a container is not stopped");
            }
        })
    }

    fn remove(&self, id: &ContainerId) {
        if let Err(error) = Self::remove(self, id) {
            tracing::error!(container = %id, %error, "kubelet: a container is not removed");
        }
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        Self::subscribe(self)
    }
}

pub(super) fn is_running(info: &ContainerInfo) -> bool {
    matches!(info.state, State::Running { .. })
}
