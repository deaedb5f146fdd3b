//! Many nodes, each with a driver as an author would write it, with its own sockets, files and connections.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drakkar_node::kubelet::{ClaimId, Peer};
use drakkar_node::{ApiServer, Identity};
use drakkar_plugin::{
    BackgroundError, BoxError, Claim, ClaimRef, Device, DeviceStatus, DraPlugin, DriverResources, Helper,
    PluginBuilder, Pool, PublishStatus, PublishedDevice,
};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

const DRIVER: &str = "gpu.example.com";
/// The number of devices of a node.
const DEVICES: usize = 8;

/// The errors that the drivers reported.
pub(crate) type Errors = Arc<Mutex<Vec<String>>>;

/// Prepares what was allocated.
struct Driver(Errors);

impl DraPlugin for Driver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        Ok(claim.results().map(Device::from).collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }

    fn handle_error(&self, error: &BackgroundError) {
        self.0.lock().unwrap().push(error.to_string());
    }
}

/// The timers of a driver.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    /// The delay after a start before claims of an earlier process are looked up.
    pub(crate) orphan_grace: Duration,
    /// The time within which the first publish starts.
    pub(crate) publish_within: Duration,
}

/// A node with a driver.
pub(crate) struct Node {
    name: String,
    root: PathBuf,
    client: kube::Client,
    claims: Vec<ClaimId>,
    errors: Errors,
    running: Option<(Helper, Peer)>,
}

impl Node {
    /// Creates a node with allocated claims, one for each of its pods. The driver is not started yet.
    pub(crate) async fn new(
        server: &ApiServer,
        number: usize,
        pods: usize,
        directory: &TempDir,
        errors: &Errors,
    ) -> Self {
        let name = format!("node-{number}");
        let root = directory.path().join(number.to_string());
        std::fs::create_dir_all(root.join("plugins_registry")).unwrap();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        request(server, "POST", "/api/v1/nodes", "application/json", &node).await;
        let mut claims = Vec::new();
        for pod in 0..pods {
            claims.push(claim(server, &name, pod).await);
        }
        let client = client(server, &name).await;
        Self { name, root, client, claims, errors: errors.clone(), running: None }
    }

    /// Starts the driver, publishes its devices, and connects to it as a kubelet.
    pub(crate) async fn start(&mut self, timing: Timing) {
        let builder = PluginBuilder::new(DRIVER)
            .client(self.client.clone())
            .node_name(&self.name)
            .kubelet_root(&self.root)
            .cdi_directory(self.root.join("cdi"))
            .device_metadata(true)
            .orphan_grace(timing.orphan_grace)
            .publish_within(timing.publish_within);
        let helper = builder.start(Driver(self.errors.clone())).await.unwrap();
        let devices = (0..DEVICES).map(|device| {
            PublishedDevice::new(format!("gpu-{device}"))
                .attribute("model", "LATEST-GPU-MODEL")
                .capacity("memory", "80Gi")
        });
        helper
            .handles()
            .publish_resources(DriverResources::default().pool(&self.name, Pool::default().devices(devices)))
            .unwrap();
        let peer = Peer::connect(helper.dra_socket().unwrap()).await.unwrap();
        self.running = Some((helper, peer));
    }

    /// Waits until the API server stores what the driver published.
    pub(crate) async fn published(&self) {
        let mut status = self.helper().handles().publisher().status();
        status.wait_for(|status| *status == PublishStatus::Published).await.unwrap();
    }

    pub(crate) async fn stop(&mut self) {
        let (helper, peer) = self.running.take().unwrap();
        drop(peer);
        helper.stop().await.unwrap();
    }

    /// Starts a pod: its claim is prepared, and the driver reports the status of the device.
    pub(crate) async fn pod(&self, number: usize) {
        let claim = &self.claims[number];
        let answers = self.running.as_ref().unwrap().1.prepare([claim.clone()]).await.unwrap();
        let devices = answers[&claim.uid].as_ref().unwrap();
        assert_eq!(devices.len(), 1);
        self.report(number);
    }

    /// Reports the status of a claim's device.
    pub(crate) fn report(&self, number: usize) {
        let claim = &self.claims[number];
        let reference = ClaimRef {
            namespace: claim.namespace.parse().unwrap(),
            name: claim.name.parse().unwrap(),
            uid: claim.uid.parse().unwrap(),
        };
        let device = DeviceStatus::new(&self.name, format!("gpu-{}", number % DEVICES)).ready("Ready", "in use");
        self.helper().handles().report_device_status(&reference, [device]).unwrap();
    }

    /// Ends a pod.
    pub(crate) async fn end_of_pod(&self, number: usize) {
        let claim = &self.claims[number];
        let answers = self.running.as_ref().unwrap().1.unprepare([claim.clone()]).await.unwrap();
        answers[&claim.uid].as_ref().unwrap();
    }

    fn helper(&self) -> &Helper {
        &self.running.as_ref().unwrap().0
    }
}

/// Returns a client like that of a driver in a pod, without retries of its own.
async fn client(server: &ApiServer, node: &str) -> kube::Client {
    let identity = Identity::Driver {
        namespace: "kube-system".to_owned(),
        service_account: "gpu-driver".to_owned(),
        node_name: node.to_owned(),
    };
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig(&identity).unwrap()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    // HTTP needs none, and reading those of the system takes long, for each client.
    config.root_cert = Some(Vec::new());
    kube::Client::try_from(config).unwrap()
}

/// Creates the claim of a pod, which is allocated on the node. A device is allocated to one pod after the other.
async fn claim(server: &ApiServer, node: &str, pod: usize) -> ClaimId {
    const PATH: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let name = format!("{node}-{pod}");
    let device = pod % DEVICES;
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    });
    let created = request(server, "POST", PATH, "application/json", &claim).await;
    let requirement = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let status = json!({"status": {"allocation": {
        "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": node, "device": format!("gpu-{device}")}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [requirement]}]},
    }}});
    request(server, "PATCH", &format!("{PATH}/{name}/status"), "application/merge-patch+json", &status).await;
    ClaimId { namespace: "default".to_owned(), name, uid: created["metadata"]["uid"].as_str().unwrap().to_owned() }
}

async fn request(server: &ApiServer, method: &str, path: &str, media_type: &str, body: &Value) -> Value {
    let builder = Request::builder().method(method).uri(path).header("content-type", media_type);
    server.admin().request(builder.body(body.to_string().into_bytes()).unwrap()).await.unwrap()
}
