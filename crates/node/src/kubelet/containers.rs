//! The interface between a kubelet and a container runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use drakkar_apiserver::{ExecOptions, ExecSession};
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

    /// Reports whether a pod has a sandbox in which containers can be started. A runtime without sandboxes reports whether the
    /// pod has containers.
    fn has_sandbox(&self, pod_uid: &str) -> bool {
        !self.list(pod_uid).is_empty()
    }

    /// Makes the sandbox of a pod, unless it has one. The error is for people.
    fn run_sandbox(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), String>> {
        drop(spec);
        Box::pin(async { Ok(()) })
    }

    /// Stops the sandboxes of a pod, after its containers.
    fn stop_sandbox<'a>(&'a self, _pod_uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Removes the sandboxes of a pod, after its containers.
    fn remove_sandbox<'a>(&'a self, _pod_uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Returns the file with the output of a container.
    fn log_file(&self, id: &ContainerId) -> io::Result<PathBuf> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("the runtime keeps no log of container {id}")))
    }

    /// Starts a program in a running container. The error is for people.
    fn exec<'a>(&'a self, id: &'a ContainerId, _options: ExecOptions) -> BoxFuture<'a, Result<ExecSession, String>> {
        Box::pin(async move { Err(format!("the runtime runs no other program in container {id}")) })
    }

    /// Returns the addresses of a pod.
    fn pod_ips(&self, _pod_uid: &str) -> Vec<String> {
        Vec::new()
    }
}

/// A pod to make a sandbox for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// The UID of the pod.
    pub pod_uid: String,
    /// The name of the pod.
    pub pod_name: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// The annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Whether the pod has the network of the host.
    pub host_network: bool,
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

    fn log_file(&self, id: &ContainerId) -> io::Result<PathBuf> {
        Self::log_file(self, id)
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, options: ExecOptions) -> BoxFuture<'a, Result<ExecSession, String>> {
        Box::pin(async move { self.attach(id, options).await.map_err(|error| error.to_string()) })
    }
}

pub(super) fn is_running(info: &ContainerInfo) -> bool {
    matches!(info.state, State::Running { .. })
}
