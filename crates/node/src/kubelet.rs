//! The kubelet of an embedded node. It finds plugins by their sockets, registers them, prepares the claims of the pods that
//! are bound to its node, starts their containers, and reports the status of both. Towards a plugin it does what a real
//! kubelet does, in the same order, with the same timeouts, over the same sockets.

mod checkpoint;
mod claim;
mod containers;
mod h2;
mod health;
mod manager;
mod node;
mod peer;
mod plugins;
mod pods;
mod registration;
mod registry;
mod release;
mod rpc_error;
mod service;
mod slices;
mod streams;
mod tasks;
mod timing;

pub use self::checkpoint::CheckpointError;
pub use self::claim::{ClaimId, Device};
pub use self::containers::{Containers, SandboxSpec, StartError};
pub use self::health::{DeviceHealth, HealthStatus, HealthVersion};
pub use self::manager::CachedClaim;
pub use self::peer::{Peer, PeerError, PeerInfo};
pub use self::plugins::RegisteredPlugin;
pub use self::release::Release;
pub use self::service::DraService;
pub use self::timing::{JitteredDelay, Timing};
pub use drakkar_client::Backoff;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::checkpoint::{StateFile, WriteGate};
use self::health::Health;
use self::manager::Manager;
use self::plugins::Plugins;
use self::pods::{Context, Pods};
use self::registration::Registrar;
use self::registry::{Watcher, create_directory};
use self::slices::Slices;
use self::streams::Streams;
use self::tasks::Tasks;

/// The configuration of a kubelet.
#[derive(Clone)]
pub struct Config {
    /// The client for the API server.
    pub client: kube::Client,
    /// The name of the node.
    pub node_name: String,
    /// The root directory, `/var/lib/kubelet` on a real node: the plugin registry, the kubelet's state, the pods' volumes.
    pub root: PathBuf,
    /// The container runtime.
    pub runner: Arc<dyn Containers>,
    /// Intervals and timeouts.
    pub timing: Timing,
    /// The Kubernetes release whose kubelet is emulated.
    pub release: Release,
    /// Whether to create the Node object if it does not exist, and to set its `Ready` condition.
    pub register_node: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node_name, root, timing, release, .. } = self;
        f.debug_struct("Config")
            .field("node_name", node_name)
            .field("root", root)
            .field("timing", timing)
            .field("release", release)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Configures a kubelet of the newest release with the timing of a real one.
    pub fn new(
        client: kube::Client,
        node_name: impl Into<String>,
        root: impl Into<PathBuf>,
        runner: Arc<dyn Containers>,
    ) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            root: root.into(),
            runner,
            timing: Timing::default(),
            release: Release::default(),
            register_node: true,
        }
    }
}

/// Why a kubelet did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be created or watched.
    #[error("kubelet directory {}: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The state of an earlier kubelet cannot be read.
    #[error("kubelet state: {0}")]
    State(#[from] CheckpointError),
}

/// A running kubelet. Dropping it kills it.
pub struct Kubelet {
    tasks: Tasks,
    write_gate: WriteGate,
    registrar: Registrar,
    plugins: Plugins,
    health: Health,
    slices: Slices,
    pods: Pods,
    streams: Arc<dyn drakkar_apiserver::Kubelet>,
    root: PathBuf,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet").field("root", &self.root).field("pods", &self.pods).finish_non_exhaustive()
    }
}

impl Kubelet {
    /// Starts a kubelet. It continues from the state of an earlier kubelet on the same directory.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let Config { client, node_name, root, runner, timing, release, register_node } = config;
        let directory = |name: &str| {
            let path = root.join(name);
            let created = create_directory(&path);
            created.map(|()| path.clone()).map_err(|source| Error::Directory { path, source })
        };
        let registry = directory("plugins_registry")?;
        directory("plugins")?;
        let pods = directory("pods")?;
        let tasks = Tasks::default();
        let write_gate = WriteGate::default();
        let file = |name: &str| StateFile::new(root.join(name), write_gate.clone());
        let (health, mut changes) = Health::restore(file("dra_health_state"), timing.clone())?;
        let slices = Slices::new(client.clone(), &node_name, timing.clone(), tasks.clone());
        let plugins = Plugins::new(release, timing.clone(), tasks.clone(), slices.clone(), health.clone());
        let manager = Manager::restore(
            client.clone(),
            plugins.clone(),
            health.clone(),
            file("dra_manager_state"),
            timing.clone(),
        )?;
        let watcher = Watcher::new(&registry).map_err(|source| Error::Directory { path: registry.clone(), source })?;
        let registrar = Registrar::new(watcher.sockets(), plugins.clone(), timing.clone(), tasks.clone());
        let streams: Arc<dyn drakkar_apiserver::Kubelet> = Arc::new(Streams::new(Arc::clone(&runner)));
        let context = Context { client, node: node_name, manager, containers: runner, timing, tasks: tasks.clone() };
        let pods = Pods::new(context, pods);

        if register_node {
            let Context { client, node, timing, .. } = pods.context();
            tasks.spawn(node::register(client.clone(), node.clone(), release, timing.clone()));
        }
        slices.delete_all();
        tasks.spawn(async move {
            if let Err(error) = watcher.run().await {
                tracing::error!(registry = %registry.display(), %error, "kubelet: plugin registry watch failed");
            }
        });
        tasks.spawn(registrar.clone().run());
        tasks.spawn(pods.clone().run());
        let notified = pods.clone();
        tasks.spawn(async move {
            while let Some(change) = changes.recv().await {
                notified.health_changed(&change);
            }
        });
        Ok(Self { tasks, write_gate, registrar, plugins, health, slices, pods, streams, root })
    }

    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory for plugins' registration sockets.
    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// Returns the registered driver instances, by driver, in the order of their registration.
    pub fn registered(&self) -> Vec<RegisteredPlugin> {
        self.plugins.registered()
    }

    /// Returns the registration sockets whose plugins could not be registered, each with the error of the last attempt.
    pub fn registration_failures(&self) -> Vec<(PathBuf, String)> {
        self.registrar.failures()
    }

    /// Waits until the kubelet has deleted the slices that existed when it started; later slices stay. Drivers see the deletion
    /// and publish again; a test that publishes on behalf of a driver waits for it.
    pub fn slices_deleted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.slices.deleted_all()
    }

    /// Returns the device health that plugins have reported.
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.health.all()
    }

    /// Returns the claims that pods of this node use.
    pub fn claims(&self) -> Vec<CachedClaim> {
        self.pods.manager().claims()
    }

    /// Returns the part of the kubelet that answers for `kubectl logs` and `kubectl exec`, for
    /// [`ApiServer::register_kubelet`](drakkar_apiserver::ApiServer::register_kubelet). It ends with the kubelet.
    pub fn streams(&self) -> &Arc<dyn drakkar_apiserver::Kubelet> {
        &self.streams
    }

    /// Stops the kubelet and waits for its tasks to end. Containers keep running, as with a real one.
    pub async fn stop(self) {
        self.tasks.cancel();
        self.tasks.wait().await;
    }

    /// Aborts the kubelet immediately, in the middle of whatever it does. Only its files survive.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.write_gate.close();
        self.tasks.cancel();
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
