//! The interface between a kubelet and a container runtime.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Runner, State};

/// A container runtime. It outlives kubelets: a restarted kubelet finds its containers again. [`Runner`] implements it.
pub trait Containers: Send + Sync + 'static {
    /// Starts a container.
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>>;
    /// Returns the containers of a pod, including exited ones until they are removed.
    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo>;
    /// Stops a container: sends SIGTERM, and SIGKILL after the grace period. Returns when it has exited.
    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()>;
    /// Removes a container that has exited.
    fn remove(&self, id: &ContainerId);
    /// Returns a value that changes whenever the state of a container changes.
    fn subscribe(&self) -> watch::Receiver<u64>;
}

/// Why a container did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// The cause.
    pub message: String,
    /// Whether the container was created, and is listed as exited, because only its program failed to start.
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
                tracing::error!(container = %id, %error, "kubelet: stopping a container failed");
            }
        })
    }

    fn remove(&self, id: &ContainerId) {
        if let Err(error) = Self::remove(self, id) {
            tracing::error!(container = %id, %error, "kubelet: removing a container failed");
        }
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        Self::subscribe(self)
    }
}

pub(super) fn is_running(info: &ContainerInfo) -> bool {
    matches!(info.state, State::Running { .. })
}
