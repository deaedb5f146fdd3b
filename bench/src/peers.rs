//! The driver's peers on its node: the kubelet's directories, and a minimal kubelet.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use drakkar_kubelet_api::dra_v1::dra_plugin_client::DraPluginClient;
use drakkar_kubelet_api::dra_v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use drakkar_kubelet_api::registration::registration_client::RegistrationClient;
use drakkar_kubelet_api::registration::{InfoRequest, RegistrationStatus};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::Cluster;
use crate::framework::Framework;
use crate::process::Process;

/// The timeout for the start of a driver, far longer than it takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The directories of a node.
#[derive(Debug)]
pub struct Node {
    root: TempDir,
}

impl Node {
    /// Creates a node in a directory, with a kubeconfig for drivers.
    pub fn new(directory: &Path, cluster: &Cluster) -> Self {
        let root = tempfile::tempdir_in(directory).unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        std::fs::write(root.path().join("kubeconfig"), cluster.kubeconfig()).unwrap();
        Self { root }
    }

    /// The directory of the node, with the kubeconfig.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Starts a driver, and registers it as soon as its socket exists.
    pub async fn start(self, framework: &Framework, devices: u64) -> Driver {
        let command = framework.command(self.root.path(), devices);
        self.start_command(framework.name, command).await
    }

    /// Starts a driver by a command, and registers it as soon as its socket exists.
    pub async fn start_command(self, name: &str, mut command: Command) -> Driver {
        let begin = Instant::now();
        let log = std::fs::File::create(self.root.path().join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut process = Process::new(child.unwrap());
        let (socket, channel) = loop {
            let found = self.socket();
            if let Some(socket) = found
                && let Ok(channel) = channel(&socket).await
            {
                break (socket, channel);
            }
            let log = || std::fs::read_to_string(self.root.path().join("log"));
            assert!(begin.elapsed() < TIMEOUT && process.is_running(), "{name} does not start: {:?}", log());
            std::thread::sleep(Duration::from_micros(100));
        };
        let mut registration = RegistrationClient::new(channel);
        let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        registration.notify_registration_status(status).await.unwrap();
        assert!(socket.exists(), "{name} has removed its socket");
        let dra_socket = info.endpoint.into();
        Driver { process, registration, dra_socket, started: begin, registered: begin.elapsed(), node: self }
    }

    /// The registration socket of a driver, if there is one.
    fn socket(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.root.path().join("plugins_registry")).unwrap();
        entries.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|end| end == "sock"))
    }
}

/// A registered driver.
#[derive(Debug)]
pub struct Driver {
    /// The driver's process.
    pub process: Process,
    /// When the driver was started.
    pub started: Instant,
    /// The time from the start to the registration.
    pub registered: Duration,
    registration: RegistrationClient<Channel>,
    dra_socket: PathBuf,
    node: Node,
}

impl Driver {
    /// Connects a kubelet to the driver.
    pub async fn kubelet(&self) -> Kubelet {
        Kubelet(DraPluginClient::new(channel(&self.dra_socket).await.unwrap()))
    }

    /// Stops the driver with SIGTERM, as the kubelet does, and waits until it has exited.
    pub async fn stop(self) {
        let Self { process, node, .. } = self;
        // On another thread: the driver waits for its connections to close, and our ends are served on this one.
        tokio::task::spawn_blocking(move || process.stop()).await.unwrap();
        node.root.close().unwrap();
    }

    /// Measures a call for which the driver does nothing.
    pub async fn echo(&self) -> Duration {
        let mut registration = self.registration.clone();
        let begin = Instant::now();
        registration.get_info(InfoRequest {}).await.unwrap();
        begin.elapsed()
    }
}

/// A kubelet. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Kubelet(DraPluginClient<Channel>);

impl Kubelet {
    /// Prepares claims in one call, and returns how long it took.
    pub async fn prepare(&self, numbers: Range<u64>) -> Duration {
        self.prepare_claims(numbers.map(named).collect()).await
    }

    /// Prepares claims by name in one call, and returns how long it took.
    pub async fn prepare_claims(&self, claims: Vec<Claim>) -> Duration {
        let mut client = self.0.clone();
        let request = NodePrepareResourcesRequest { claims };
        let count = request.claims.len();
        let begin = Instant::now();
        let response = client.node_prepare_resources(request).await.unwrap().into_inner();
        let took = begin.elapsed();
        assert_eq!(response.claims.len(), count);
        for answer in response.claims.values() {
            assert_eq!((answer.error.as_str(), answer.devices.len()), ("", 1));
            assert!(!answer.devices[0].cdi_device_ids.is_empty(), "without metadata: {answer:?}");
        }
        took
    }

    /// Unprepares claims in one call, and returns how long it took.
    pub async fn unprepare(&self, numbers: Range<u64>) -> Duration {
        self.unprepare_claims(numbers.map(named).collect()).await
    }

    /// Unprepares claims by name in one call, and returns how long it took.
    pub async fn unprepare_claims(&self, claims: Vec<Claim>) -> Duration {
        let mut client = self.0.clone();
        let request = NodeUnprepareResourcesRequest { claims };
        let begin = Instant::now();
        let response = client.node_unprepare_resources(request).await.unwrap().into_inner();
        let took = begin.elapsed();
        assert!(response.claims.values().all(|answer| answer.error.is_empty()), "{response:?}");
        took
    }
}

fn named(number: u64) -> Claim {
    Claim {
        namespace: "default".to_owned(),
        name: format!("claim-{number:06}"),
        uid: format!("5f3c1e0a-77a4-4f0e-8a55-{number:012}"),
    }
}

async fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap().connect().await
}
