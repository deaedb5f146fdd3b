//! The embedded node: its parts, their directory, and what tests do with it.

mod builder;
mod directory;
mod driver;
mod error;
mod leftovers;
mod node_containers;
mod pod;
mod resources;
mod wait;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_apiserver::{ApiServer, Identity};
use drakkar_client::NodeEnvironment;
use tokio::sync::Mutex;

pub use self::builder::NodeBuilder;
use self::directory::Directory;
pub use self::driver::DriverProcess;
pub use self::error::NodeError;
pub use self::leftovers::Leftovers;
use self::node_containers::NodeContainers;
pub use self::pod::{AllocatedClaim, PodHandle};
use crate::kubelet::{self, Containers, Kubelet, Release, Timing};
use crate::nri::Nri;
use crate::runner::Runner;
use crate::runtime::RuntimeHandle;
use crate::scheduler::Scheduler;

/// An embedded node: an API server, a scheduler, a kubelet and a container runner for the drivers under test, connected by
/// the sockets and files of a real node.
///
/// Each node has a temporary directory and a port of its own, so many nodes can run at once. Dropping a node removes its
/// containers, sockets and files. A node needs a tokio runtime with IO and time enabled.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use drakkar_node::{ClaimSpec, Container, Node, Pod};
///
/// let node = Node::start().await?;
/// // A driver in any language. One on `drakkar-plugin` can also run in the test's own process: see `Node::environment`.
/// let mut driver = node.spawn("gpu.example.com", std::process::Command::new("./my-driver"))?;
/// node.wait_published("gpu.example.com").await?;
/// node.create(ClaimSpec::default().request("gpu", "gpu.example.com", 1).claim("my-claim")).await?;
/// let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
/// let pod = node.create_pod(Pod::new("trainer").claim("gpus", "my-claim").container(main)).await?;
///
/// let file = "/var/run/dra-device-attributes/my-claim/gpu/gpu.example.com-metadata.json";
/// assert!(pod.running().await?.exec("main", ["cat", file]).await?.status.success());
/// pod.delete().await?;
/// assert_eq!(node.leftovers("gpu.example.com").await?, Vec::<String>::new());
/// driver.terminate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Node {
    name: String,
    timing: Timing,
    release: Release,
    // Fields are dropped in this order.
    kubelet: Mutex<Option<Kubelet>>,
    scheduler: Mutex<Option<Scheduler>>,
    /// With NRI only.
    runtime: Option<RuntimeHandle>,
    runner: Arc<Runner>,
    api: ApiServer,
    directory: Arc<Directory>,
}

impl Node {
    /// Starts a node with the defaults, and with a kubelet whose delays are short enough for tests.
    pub async fn start() -> Result<Self, NodeError> {
        Self::builder().start().await
    }

    /// Returns a builder for a node that differs from the default.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Stops all parts in order. Drivers that still run lose their kubelet.
    pub async fn stop(self) -> Result<(), NodeError> {
        self.stop_kubelet().await;
        if let Some(scheduler) = self.scheduler.lock().await.take() {
            scheduler.stop().await;
        }
        if let Some(runtime) = self.runtime {
            runtime.stop().await;
        }
        drop(self.runner);
        self.directory.remove().map_err(NodeError::Directory)
    }

    /// Returns the node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory that holds all of the node's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the kubelet's root directory, as `/var/lib/kubelet` on a real node.
    pub fn kubelet_root(&self) -> PathBuf {
        kubelet_root(self.directory())
    }

    /// Returns the directory for drivers' CDI specs, as `/var/run/cdi` on a real node.
    pub fn cdi_directory(&self) -> PathBuf {
        cdi_directory(self.directory())
    }

    /// Returns the node's API server.
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// Writes a kubeconfig with full permissions, for `kubectl`, and returns its path.
    pub fn write_admin_kubeconfig(&self) -> Result<PathBuf, NodeError> {
        let path = self.directory().join("admin.kubeconfig");
        write_secret(&path, &self.api.kubeconfig(&Identity::Admin)?).map_err(NodeError::Directory)?;
        Ok(path)
    }

    /// Returns a client with full permissions.
    pub fn client(&self) -> kube::Client {
        self.api.admin()
    }

    /// Returns the container runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Returns the runtime's side of NRI. Fails unless the node was started with [`NodeBuilder::nri`].
    pub fn nri(&self) -> Result<Nri<'_>, NodeError> {
        let runtime = self.runtime.as_ref().ok_or(NodeError::NoNri)?;
        Ok(Nri::new(runtime.runtime()))
    }

    /// Returns the identity that a driver on this node has towards the API server.
    pub fn driver_identity(&self, driver: &str) -> Identity {
        Identity::Driver {
            namespace: "kube-system".to_owned(),
            service_account: driver.to_owned(),
            node_name: self.name.clone(),
        }
    }

    /// Returns what a driver in this process needs to run on this node: a client, the node's name and its directories.
    ///
    /// With `drakkar-plugin`: `PluginBuilder::new(driver).on(node.environment(driver)?)`.
    pub fn environment(&self, driver: &str) -> Result<NodeEnvironment, NodeError> {
        Ok(NodeEnvironment {
            client: self.api.client(&self.driver_identity(driver))?,
            node_name: self.name.clone(),
            kubelet_root: self.kubelet_root(),
            cdi_directory: self.cdi_directory(),
        })
    }

    /// Starts a driver as a process of its own, with the environment variables `KUBECONFIG`, `NODE_NAME`, `KUBELET_ROOT_DIR`
    /// and `CDI_DIR` of this node, and `NRI_SOCKET` if it has NRI.
    pub fn spawn(&self, driver: &str, command: std::process::Command) -> Result<DriverProcess, NodeError> {
        // The name becomes part of file names.
        drakkar_metadata::name::DriverName::new(driver)?;
        let directory = self.directory().join("drivers");
        std::fs::create_dir_all(&directory).map_err(NodeError::Directory)?;
        let kubeconfig = directory.join(format!("{driver}.kubeconfig"));
        let content = self.api.kubeconfig(&self.driver_identity(driver))?;
        write_secret(&kubeconfig, &content).map_err(NodeError::Directory)?;
        let mut command = tokio::process::Command::from(command);
        command
            .env("KUBECONFIG", kubeconfig)
            .env("NODE_NAME", &self.name)
            .env("KUBELET_ROOT_DIR", self.kubelet_root())
            .env("CDI_DIR", self.cdi_directory());
        if let Some(runtime) = &self.runtime {
            command.env("NRI_SOCKET", runtime.runtime().nri().socket());
        }
        DriverProcess::start(command, &directory.join(format!("{driver}.log")))
    }

    /// Starts the kubelet, unless it is running.
    pub async fn start_kubelet(&self) -> Result<(), NodeError> {
        let mut kubelet = self.kubelet.lock().await;
        if kubelet.is_none() {
            *kubelet = Some(self.new_kubelet().await?);
        }
        Ok(())
    }

    /// Stops the kubelet gracefully. Containers keep running.
    pub async fn stop_kubelet(&self) {
        if let Some(kubelet) = self.kubelet.lock().await.take() {
            kubelet.stop().await;
        }
    }

    /// Aborts the kubelet immediately, in the middle of whatever it does. Containers keep running.
    pub async fn kill_kubelet(&self) {
        if let Some(kubelet) = self.kubelet.lock().await.take() {
            kubelet.kill();
        }
    }

    /// Simulates a reboot: kills and restarts the kubelet, kills all containers, removes the networks of pods, and removes the
    /// CDI specs, which a real node keeps in memory.
    pub async fn reboot(&self) -> Result<(), NodeError> {
        self.kill_kubelet().await;
        for container in self.runner.all() {
            self.runner.kill(&container.id).await?;
            self.runner.remove(&container.id)?;
        }
        if let Some(runtime) = &self.runtime {
            runtime.reboot().await.map_err(NodeError::Nri)?;
        }
        match std::fs::remove_dir_all(self.cdi_directory()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(NodeError::Directory(error)),
            _ => {}
        }
        self.start_kubelet().await
    }

    /// Returns the plugins that are registered with the kubelet.
    pub async fn registered(&self) -> Vec<kubelet::RegisteredPlugin> {
        self.kubelet.lock().await.as_ref().map(Kubelet::registered).unwrap_or_default()
    }

    /// Returns the registration sockets whose plugins the kubelet could not register, each with the error of the last attempt.
    pub async fn registration_failures(&self) -> Vec<(PathBuf, String)> {
        self.kubelet.lock().await.as_ref().map(Kubelet::registration_failures).unwrap_or_default()
    }

    /// Waits until the kubelet has registered a driver.
    pub async fn wait_registered(&self, driver: &str) -> Result<(), NodeError> {
        let deadline = crate::Deadline::default();
        while !self.registered().await.iter().any(|plugin| plugin.driver == driver) {
            deadline.pause().await.map_err(|waited| NodeError::NotRegistered { driver: driver.to_owned(), waited })?;
        }
        Ok(())
    }

    /// Waits until the kubelet has registered any driver, and returns the driver's name.
    pub async fn wait_any_registered(&self) -> Result<String, NodeError> {
        let deadline = crate::Deadline::default();
        loop {
            if let Some(plugin) = self.registered().await.into_iter().next() {
                return Ok(plugin.driver);
            }
            let driver = || "(any)".to_owned();
            deadline.pause().await.map_err(|waited| NodeError::NotRegistered { driver: driver(), waited })?;
        }
    }

    /// Returns the claims in the kubelet's cache.
    pub async fn kubelet_claims(&self) -> Vec<kubelet::CachedClaim> {
        self.kubelet.lock().await.as_ref().map(Kubelet::claims).unwrap_or_default()
    }

    /// Returns the device health that the kubelet knows.
    pub async fn health(&self) -> Vec<kubelet::DeviceHealth> {
        self.kubelet.lock().await.as_ref().map(Kubelet::health).unwrap_or_default()
    }

    async fn new_kubelet(&self) -> Result<Kubelet, NodeError> {
        let containers: Arc<dyn Containers> = match &self.runtime {
            Some(runtime) => Arc::new(runtime.runtime().clone()),
            None => Arc::new(NodeContainers { runner: self.runner.clone(), _directory: self.directory.clone() }),
        };
        let config = kubelet::Config {
            client: self.api.client(&Identity::Node(self.name.clone()))?,
            node_name: self.name.clone(),
            root: self.kubelet_root(),
            runner: containers,
            timing: self.timing.clone(),
            release: self.release,
            register_node: true,
        };
        let kubelet = Kubelet::start(config).await?;
        self.api.register_kubelet(&self.name, kubelet.streams());
        Ok(kubelet)
    }
}

/// Writes a file that only its owner may read.
fn write_secret(path: &Path, content: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

fn kubelet_root(directory: &Path) -> PathBuf {
    directory.join("kubelet")
}

/// Returns the directory for static CDI specs, as `/etc/cdi` on a real node.
fn static_cdi_directory(directory: &Path) -> PathBuf {
    directory.join("etc-cdi")
}

fn cdi_directory(directory: &Path) -> PathBuf {
    directory.join("cdi")
}
