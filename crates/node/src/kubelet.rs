//! The kubelet of an embedded node: it finds plugins by their sockets, registers them, prepares the claims of the pods that
//! are bound to its node, has their containers run, and reports on both. It does to a plugin what a real kubelet does, in
//! the same order, with the same deadlines, over the same sockets.

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
mod service;
mod slices;
mod tasks;
mod timing;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::checkpoint::CheckpointError;
pub use self::claim::{ClaimId, Device};
pub use self::containers::{Containers, StartError};
pub use self::health::{DeviceHealth, HealthStatus, HealthVersion};
pub use self::manager::CachedClaim;
pub use self::peer::{Peer, PeerError, PeerInfo};
pub use self::plugins::RegisteredPlugin;
pub use self::release::Release;
pub use self::service::DraService;
pub use self::timing::{Jittered, Timing};
pub use drakkar_client::Backoff;

use self::checkpoint::{Life, StateFile};
use self::health::Health;
use self::manager::Manager;
use self::plugins::Plugins;
use self::pods::{Context, Pods};
use self::registration::Registrar;
use self::registry::{Watcher, create_directory};
use self::slices::Slices;
use self::tasks::Tasks;

/// What a kubelet needs.
#[derive(Clone)]
pub struct Config {
    /// How it reaches the API server.
    pub client: kube::Client,
    /// The node that it is the kubelet of.
    pub node_name: String,
    /// Its directory, `/var/lib/kubelet` on a real node: the registry of plugins, its state, the pods' volumes.
    pub root: PathBuf,
    /// What runs the containers.
    pub runner: Arc<dyn Containers>,
    /// How long it waits for what.
    pub timing: Timing,
    /// Which release of Kubernetes it speaks like.
    pub release: Release,
    /// Whether it creates the Node object if there is none, and says that it is ready.
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
    /// A kubelet as of the newest release, with the intervals of a real one.
    pub fn new(
        client: kube::Client,
        node_name: impl Into<String>,
        root: impl Into<PathBuf>,
        runner: Arc<dyn Containers>,
    ) -> Self {
        let (node_name, root) = (node_name.into(), root.into());
        Self {
            client,
            node_name,
            root,
            runner,
            timing: Timing::default(),
            release: Release::default(),
            register_node: true,
        }
    }
}

/// Why a kubelet does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be made or watched.
    #[error("kubelet directory {}: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state of an earlier kubelet cannot be read.
    #[error("kubelet state: {0}")]
    State(#[from] CheckpointError),
}

/// A kubelet that runs. When it is dropped it ends as if it were killed.
#[derive(Debug)]
pub struct Kubelet {
    tasks: Tasks,
    life: Life,
    plugins: Plugins,
    health: Health,
    slices: Slices,
    pods: Pods,
    root: PathBuf,
}

impl Kubelet {
    /// Starts a kubelet. It goes on where an earlier one on the same directory ended.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let Config { client, node_name, root, runner, timing, release, register_node } = config;
        let directory = |name: &str| {
            let path = root.join(name);
            let created = create_directory(&path);
            created.map(|()| path.clone()).map_err(|source| Error::Directory { path, source })
        };
        let (registry, _, pods) = (directory("plugins_registry")?, directory("plugins")?, directory("pods")?);
        let (tasks, life) = (Tasks::default(), Life::new());
        let file = |name: &str| StateFile::new(root.join(name), life.clone());
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
        let context = Context { client, node: node_name, manager, containers: runner, timing, tasks: tasks.clone() };
        let pods = Pods::new(context, pods);

        if register_node {
            let Context { client, node, timing, .. } = pods.context();
            tasks.spawn(node::register(client.clone(), node.clone(), timing.clone()));
        }
        slices.delete_all();
        tasks.spawn(async move {
            if let Err(error) = watcher.run().await {
                tracing::error!(registry = %registry.display(), %error, "kubelet: the registry is not watched any more");
            }
        });
        tasks.spawn(registrar.run());
        tasks.spawn(pods.clone().run());
        let told = pods.clone();
        tasks.spawn(async move {
            while let Some(change) = changes.recv().await {
                told.health_changed(&change);
            }
        });
        Ok(Self { tasks, life, plugins, health, slices, pods, root })
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where plugins put their registration sockets.
    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// The instances of drivers that are registered, by driver, in the order in which they registered.
    pub fn registered(&self) -> Vec<RegisteredPlugin> {
        self.plugins.registered()
    }

    /// Waits until it has deleted the slices that there were when it started; those that are made from then on stay. Drivers
    /// see the deletion and publish again; whoever publishes for a driver waits for it.
    pub fn slices_deleted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.slices.deleted_all()
    }

    /// What plugins have said of the health of their devices.
    pub fn health(&self) -> Vec<DeviceHealth> {
        self.health.all()
    }

    /// The claims that pods of this node use.
    pub fn claims(&self) -> Vec<CachedClaim> {
        self.pods.manager().claims()
    }

    /// Ends the kubelet, and waits until it has. Containers go on running, as with a real one.
    pub async fn stop(self) {
        self.tasks.cancel();
        self.tasks.ended().await;
    }

    /// Ends the kubelet at once, wherever it is. Only its files survive.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.life.end();
        self.tasks.cancel();
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
