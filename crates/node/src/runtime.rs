//! The container runtime of a node with NRI: pod sandboxes, each with a network, and containers in them, announced to plugins
//! in containerd's order.
//!
//! | step | then |
//! |---|---|
//! | the kubelet has prepared the claims | the network namespace is made, then what a CNI plugin adds |
//! | `RunPodSandbox` | an error: `StopPodSandbox`, `RemovePodSandbox`, the network is removed, and the kubelet tries again |
//! | for each container: its CDI devices are resolved | `CreateContainer`, its adjustments, `PostCreateContainer` |
//! | `StartContainer` | the container starts, `PostStartContainer` |
//! | a container has exited | `StopContainer` |
//! | all containers have stopped | `StopPodSandbox`, then the network is removed |
//! | the kubelet has unprepared the claims | `RemoveContainer`, `RemovePodSandbox` |
//!
//! An operation goes on if the kubelet that asked for it is killed, and the next kubelet finds its result.

mod container;
mod message;
mod netlink;
mod network;
mod pods;
mod sandbox;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drakkar_apiserver::{ExecOptions, ExecSession};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::network::Networks;
use self::pods::Pods;
use crate::kubelet::{Containers, SandboxSpec, StartError};
use crate::nri::{self, Sandbox, Service};
use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Runner, State};

/// A container runtime with NRI. Clones of its [`PodRuntime`] are for kubelets.
#[derive(Debug)]
pub(crate) struct RuntimeHandle {
    runtime: PodRuntime,
    _end: DropGuard,
}

/// The runtime as kubelets use it.
#[derive(Debug, Clone)]
pub(crate) struct PodRuntime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runner: Arc<Runner>,
    nri: Arc<Service>,
    pods: Arc<Pods>,
    /// `Err` with the reason if pods cannot have networks; `None` when the runtime has ended. Dropped after the pods.
    networks: Mutex<Option<Result<Arc<Networks>, String>>>,
    tasks: TaskTracker,
    token: CancellationToken,
    /// Whatever must outlive the runtime: the node's directory.
    _keep: Box<dyn std::fmt::Debug + Send + Sync>,
}

impl RuntimeHandle {
    /// Starts a runtime with files in a directory. Blocks for some milliseconds.
    pub(crate) fn start(
        runner: Arc<Runner>,
        config: nri::Config,
        directory: &Path,
        keep: impl std::fmt::Debug + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let pods = Arc::new(Pods::default());
        let networks = Networks::new(runner.isolation(), directory.join("netns"), config.pod_network);
        if let Err(reason) = &networks {
            tracing::warn!(reason, "pods have no networks of their own");
        }
        let nri = Arc::new(Service::new(config, directory.join("nri/nri.sock"), pods.clone()));
        nri.start()?;
        let token = CancellationToken::new();
        let runtime = PodRuntime(Arc::new(Inner {
            runner,
            nri,
            pods,
            networks: Mutex::new(Some(networks.map(Arc::new))),
            tasks: TaskTracker::new(),
            token: token.clone(),
            _keep: Box::new(keep),
        }));
        drop(runtime.spawn(|runtime| async move { runtime.watch_exits().await }));
        Ok(Self { runtime, _end: token.drop_guard() })
    }

    pub(crate) fn runtime(&self) -> &PodRuntime {
        &self.runtime
    }

    /// Ends all operations, and removes the networks of all pods.
    pub(crate) async fn stop(self) {
        let inner = &self.runtime.0;
        inner.token.cancel();
        inner.nri.kill();
        inner.tasks.close();
        inner.tasks.wait().await;
        inner.nri.tasks_ended().await;
        let networks = inner.networks.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pods = inner.pods.clear();
        // Removing them blocks.
        let removed = tokio::task::spawn_blocking(move || {
            drop(pods);
            drop(networks);
        });
        if removed.await.is_err() {
            tracing::error!("removing the networks of pods panicked");
        }
    }

    /// Forgets all pods, removes their networks, and starts NRI anew.
    pub(crate) async fn reboot(&self) -> io::Result<()> {
        let inner = &self.runtime.0;
        inner.nri.stop().await?;
        let pods = inner.pods.clear();
        let removed = tokio::task::spawn_blocking(move || drop(pods));
        removed.await.map_err(io::Error::other)?;
        inner.nri.start()
    }
}

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        self.runtime.0.nri.kill();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before what made their networks.
        drop(self.pods.clear());
    }
}

impl PodRuntime {
    pub(crate) fn nri(&self) -> &Arc<Service> {
        &self.0.nri
    }

    /// Describes all sandboxes.
    pub(crate) fn sandboxes(&self) -> Vec<Sandbox> {
        self.0.pods.all()
    }

    /// Returns why pods have no networks of their own, if they have none.
    pub(crate) fn network_problem(&self) -> Option<String> {
        self.networks().err()
    }

    fn networks(&self) -> Result<Arc<Networks>, String> {
        let networks = self.0.networks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        networks.unwrap_or_else(|| Err("the runtime has ended".to_owned()))
    }

    /// Runs an operation to its end, whether or not the caller waits for it; not beyond the end of the runtime.
    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        operation: impl FnOnce(Self) -> F,
    ) -> BoxFuture<'static, Option<T>> {
        let operation = self.0.token.clone().run_until_cancelled_owned(operation(self.clone()));
        let task = self.0.tasks.spawn(operation);
        Box::pin(async move { task.await.ok().flatten() })
    }

    /// Announces containers that exit by themselves.
    async fn watch_exits(self) {
        let mut changes = self.0.runner.subscribe();
        loop {
            changes.borrow_and_update();
            for info in self.0.runner.all() {
                if let State::Exited(exit) = &info.state
                    && self.0.pods.is_alive(&info.id)
                {
                    self.announce_exit(&info.id, exit).await;
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Containers for PodRuntime {
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>> {
        let started = self.spawn(|runtime| async move { runtime.start_container(spec).await });
        let ended = || StartError { message: "the container runtime has ended".to_owned(), created: false };
        Box::pin(async move { started.await.unwrap_or_else(|| Err(ended())) })
    }

    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        self.0.runner.list(pod_uid)
    }

    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()> {
        let id = id.clone();
        let stopped = self.spawn(move |runtime| async move { runtime.stop_container(&id, grace).await });
        Box::pin(async move { stopped.await.unwrap_or_default() })
    }

    fn remove(&self, id: &ContainerId) {
        self.remove_container(id);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.runner.subscribe()
    }

    fn log_file(&self, id: &ContainerId) -> io::Result<PathBuf> {
        self.0.runner.log_file(id)
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, options: ExecOptions) -> BoxFuture<'a, Result<ExecSession, String>> {
        Containers::exec(&*self.0.runner, id, options)
    }

    fn has_sandbox(&self, pod_uid: &str) -> bool {
        self.0.pods.ready(pod_uid).is_some()
    }

    fn run_sandbox(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), String>> {
        let running = self.spawn(|runtime| async move { runtime.run_pod(spec).await });
        let ended = || Err("the container runtime has ended".to_owned());
        Box::pin(async move { running.await.unwrap_or_else(ended) })
    }

    fn stop_sandbox<'a>(&'a self, pod_uid: &'a str) -> BoxFuture<'a, ()> {
        let uid = pod_uid.to_owned();
        let stopped = self.spawn(move |runtime| async move { runtime.stop_pod(&uid).await });
        Box::pin(async move { stopped.await.unwrap_or_default() })
    }

    fn remove_sandbox<'a>(&'a self, pod_uid: &'a str) -> BoxFuture<'a, ()> {
        let uid = pod_uid.to_owned();
        let removed = self.spawn(move |runtime| async move { runtime.remove_pod(&uid).await });
        Box::pin(async move { removed.await.unwrap_or_default() })
    }

    fn pod_ips(&self, pod_uid: &str) -> Vec<String> {
        self.0.pods.ready(pod_uid).map(|sandbox| sandbox.message.ips).unwrap_or_default()
    }
}
