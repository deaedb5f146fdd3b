//! All the parts of a node together, in a directory of their own.

mod builder;
mod directory;
mod driver;
mod error;
mod housed;
mod left;
mod pod;
mod resources;
mod wait;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_client::NodeEnvironment;
use tokio::sync::Mutex;

pub use self::builder::NodeBuilder;
use self::directory::Directory;
pub use self::driver::DriverProcess;
pub use self::error::NodeError;
use self::housed::Housed;
pub use self::left::Leftovers;
pub use self::pod::{AllocatedClaim, PodHandle};
use crate::kubelet::{self, Kubelet, Release, Timing};
use crate::runner::Runner;
use crate::scheduler::Scheduler;
use drakkar_apiserver::{ApiServer, Identity};

/// An embedded node: an API server, a scheduler, a kubelet and a container runner around the drivers under test, over the
/// real sockets and files.
///
/// Everything is in a temporary directory and on a port of its own, so that there can be many nodes at once. What is left
/// when a node is dropped goes with it: containers, sockets and files. Needs a tokio runtime with IO and time.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use drakkar_node::{ClaimSpec, Container, Node, Pod};
///
/// let node = Node::start().await?;
/// // A driver in any language; one on `drakkar-plugin` can also run in the process of the test: `Node::environment`.
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
    /// The order of these is the order in which they end.
    kubelet: Mutex<Option<Kubelet>>,
    scheduler: Mutex<Option<Scheduler>>,
    runner: Arc<Runner>,
    api: ApiServer,
    directory: Arc<Directory>,
}

impl Node {
    /// A node with everything as it is by default, and a kubelet that does not make tests wait.
    pub async fn start() -> Result<Self, NodeError> {
        Self::builder().start().await
    }

    /// A node that differs.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Ends all parts in order. What drivers still run lose their kubelet.
    pub async fn stop(self) -> Result<(), NodeError> {
        self.stop_kubelet().await;
        if let Some(scheduler) = self.scheduler.lock().await.take() {
            scheduler.stop().await;
        }
        drop(self.runner);
        self.directory.remove().map_err(NodeError::Directory)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where all its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The kubelet's directory.
    pub fn kubelet_root(&self) -> PathBuf {
        kubelet_root(self.directory())
    }

    /// Where drivers put CDI specs, as `/var/run/cdi` on a real node.
    pub fn cdi_directory(&self) -> PathBuf {
        cdi_directory(self.directory())
    }

    /// Its API server.
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// Writes a kubeconfig of somebody who may do everything, for `kubectl`, and says where.
    pub fn write_admin_kubeconfig(&self) -> Result<PathBuf, NodeError> {
        let path = self.directory().join("admin.kubeconfig");
        write_secret(&path, &self.api.kubeconfig(&Identity::Admin)?).map_err(NodeError::Directory)?;
        Ok(path)
    }

    /// A client of somebody who may do everything.
    pub fn client(&self) -> kube::Client {
        self.api.admin()
    }

    /// What runs its containers.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Who a driver on this node is to the API server.
    pub fn driver_identity(&self, driver: &str) -> Identity {
        Identity::Driver {
            namespace: "kube-system".to_owned(),
            service_account: driver.to_owned(),
            node_name: self.name.clone(),
        }
    }

    /// Returns what a driver in this process must know of this node. With `drakkar-plugin`:
    /// `PluginBuilder::new(driver).on(node.environment(driver)?)`.
    pub fn environment(&self, driver: &str) -> Result<NodeEnvironment, NodeError> {
        Ok(NodeEnvironment {
            client: self.api.client(&self.driver_identity(driver))?,
            node_name: self.name.clone(),
            kubelet_root: self.kubelet_root(),
            cdi_directory: self.cdi_directory(),
        })
    }

    /// Starts a driver in a process of its own, with this node in its environment: `KUBECONFIG`, `NODE_NAME`,
    /// `KUBELET_ROOT_DIR`, `CDI_DIR`.
    pub fn spawn(&self, driver: &str, command: std::process::Command) -> Result<DriverProcess, NodeError> {
        // It is part of file names.
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
        DriverProcess::start(command, &directory.join(format!("{driver}.log")))
    }

    /// Starts the kubelet, if it does not run.
    pub async fn start_kubelet(&self) -> Result<(), NodeError> {
        let mut kubelet = self.kubelet.lock().await;
        if kubelet.is_none() {
            *kubelet = Some(self.new_kubelet().await?);
        }
        Ok(())
    }

    /// Stops the kubelet in order. Containers go on running.
    pub async fn stop_kubelet(&self) {
        if let Some(kubelet) = self.kubelet.lock().await.take() {
            kubelet.stop().await;
        }
    }

    /// Ends the kubelet at once, wherever it is. Containers go on running.
    pub async fn kill_kubelet(&self) {
        if let Some(kubelet) = self.kubelet.lock().await.take() {
            kubelet.kill();
        }
    }

    /// As after a crash of the machine: the kubelet is gone and comes back, containers are gone, and so are the CDI specs,
    /// which are in memory on a real node.
    pub async fn reboot(&self) -> Result<(), NodeError> {
        self.kill_kubelet().await;
        for container in self.runner.all() {
            self.runner.kill(&container.id).await?;
            self.runner.remove(&container.id)?;
        }
        match std::fs::remove_dir_all(self.cdi_directory()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(NodeError::Directory(error)),
            _ => {}
        }
        self.start_kubelet().await
    }

    /// The plugins that are registered with the kubelet.
    pub async fn registered(&self) -> Vec<kubelet::RegisteredPlugin> {
        self.kubelet.lock().await.as_ref().map(Kubelet::registered).unwrap_or_default()
    }

    /// Waits until the kubelet has registered a driver.
    pub async fn wait_registered(&self, driver: &str) -> Result<(), NodeError> {
        let patience = crate::Patience::default();
        while !self.registered().await.iter().any(|plugin| plugin.driver == driver) {
            patience.pause().await.map_err(|waited| NodeError::NotRegistered { driver: driver.to_owned(), waited })?;
        }
        Ok(())
    }

    /// Waits until the kubelet has registered any driver, and gives its name.
    pub async fn wait_any_registered(&self) -> Result<String, NodeError> {
        let patience = crate::Patience::default();
        loop {
            if let Some(plugin) = self.registered().await.into_iter().next() {
                return Ok(plugin.driver);
            }
            let driver = || "(any)".to_owned();
            patience.pause().await.map_err(|waited| NodeError::NotRegistered { driver: driver(), waited })?;
        }
    }

    /// The claims that the kubelet knows.
    pub async fn kubelet_claims(&self) -> Vec<kubelet::CachedClaim> {
        self.kubelet.lock().await.as_ref().map(Kubelet::claims).unwrap_or_default()
    }

    /// What the kubelet knows of the health of devices.
    pub async fn health(&self) -> Vec<kubelet::DeviceHealth> {
        self.kubelet.lock().await.as_ref().map(Kubelet::health).unwrap_or_default()
    }

    async fn new_kubelet(&self) -> Result<Kubelet, NodeError> {
        let config = kubelet::Config {
            client: self.api.client(&Identity::Node(self.name.clone()))?,
            node_name: self.name.clone(),
            root: self.kubelet_root(),
            runner: Arc::new(Housed { runner: self.runner.clone(), _directory: self.directory.clone() }),
            timing: self.timing.clone(),
            release: self.release,
            register_node: true,
        };
        Ok(Kubelet::start(config).await?)
    }
}

/// Writes a file that nobody else may read.
fn write_secret(path: &Path, content: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}

fn kubelet_root(directory: &Path) -> PathBuf {
    directory.join("kubelet")
}

/// For CDI specs that stay, as `/etc/cdi` on a real node.
fn static_cdi_directory(directory: &Path) -> PathBuf {
    directory.join("etc-cdi")
}

fn cdi_directory(directory: &Path) -> PathBuf {
    directory.join("cdi")
}
