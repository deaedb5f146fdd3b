//! A cluster of one node, with an API server that behaves as a real one.

use std::time::Duration;

use drakkar_node::api::{Config, RequestLine};
use drakkar_node::{ApiServer, Identity};
use drakkar_plugin::{DriverResources, Helper, PluginBuilder, PublishStatus};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use tempfile::TempDir;

use crate::support::{DRIVER, TestDriver, in_time};

/// A cluster of one node.
pub struct Cluster {
    pub server: ApiServer,
    pub root: TempDir,
    pub node_uid: String,
}

/// The service account that the driver runs under.
pub fn driver_identity() -> Identity {
    Identity::Driver {
        namespace: "kube-system".into(),
        service_account: "gpu-driver".into(),
        node_name: "node-1".into(),
    }
}

impl Cluster {
    pub async fn new() -> Self {
        Self::with(|_| ()).await
    }

    /// With an API server that is otherwise than usual.
    pub async fn with(set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        set(&mut config);
        let server = ApiServer::start(config).await.unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        let mut node = Node::default();
        node.metadata.name = Some("node-1".into());
        let node = Api::<Node>::all(server.admin()).create(&PostParams::default(), &node).await.unwrap();
        Self { server, root, node_uid: node.metadata.uid.unwrap() }
    }

    /// Makes the node anew, and gives its new UID.
    pub async fn replace_node(&self) -> String {
        let nodes = Api::<Node>::all(self.server.admin());
        let _ = nodes.delete("node-1", &DeleteParams::default()).await.unwrap();
        let mut node = Node::default();
        node.metadata.name = Some("node-1".into());
        nodes.create(&PostParams::default(), &node).await.unwrap().metadata.uid.unwrap()
    }

    /// A driver on the node.
    pub fn builder(&self) -> PluginBuilder {
        PluginBuilder::new(DRIVER)
            .client(self.server.client(&driver_identity()).unwrap())
            .node_name("node-1")
            .kubelet_root(self.root.path())
            .cdi_directory(self.root.path().join("cdi"))
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    pub fn api(&self) -> Api<ResourceSlice> {
        Api::all(self.server.admin())
    }

    /// All slices, in the order of their names.
    pub async fn slices(&self) -> Vec<ResourceSlice> {
        let mut slices = self.api().list(&ListParams::default()).await.unwrap().items;
        slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        slices
    }

    /// Deletes all slices, as a kubelet does that starts.
    pub async fn wipe(&self) {
        let selector = ListParams::default().fields("spec.nodeName=node-1");
        let kubelet = self.server.client(&Identity::Node("node-1".into())).unwrap();
        let api: Api<ResourceSlice> = Api::all(kubelet);
        let _ = api.delete_collection(&DeleteParams::default(), &selector).await.unwrap();
    }

    /// What the driver asked of the server about slices since the last time, but for the watches.
    pub fn take_requests(&self) -> Vec<String> {
        let user = driver_identity().user_name();
        let ours =
            |line: &RequestLine| line.user == user && line.path.contains("resourceslices") && line.verb != "watch";
        let requests = self.server.requests();
        self.server.forget_requests();
        requests.iter().filter(|line| ours(line)).map(|line| line.verb.to_owned()).collect()
    }

    /// Waits until slices are as somebody wants them.
    pub async fn until(&self, what: &str, is_so: impl Fn(&[ResourceSlice]) -> bool) -> Vec<ResourceSlice> {
        let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
        loop {
            let slices = self.slices().await;
            if is_so(&slices) {
                return slices;
            }
            assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}: {slices:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Publishes, and waits until it is done.
pub async fn publish(helper: &Helper, resources: DriverResources) {
    helper.publish_resources(resources).unwrap();
    published(helper).await;
}

/// Waits until what was published last is what the API server has.
pub async fn published(helper: &Helper) {
    status(helper, |status| *status == PublishStatus::Published).await;
}

/// Waits for a status.
pub async fn status(helper: &Helper, is_so: impl FnMut(&PublishStatus) -> bool) -> PublishStatus {
    let mut status = helper.resource_publisher().status();
    in_time(status.wait_for(is_so)).await.unwrap().clone()
}

/// The names of a slice's devices.
pub fn names(slice: &ResourceSlice) -> Vec<&str> {
    slice.spec.devices.iter().flatten().map(|device| device.name.as_str()).collect()
}

/// Generation and number of slices, as a slice says it.
pub fn pool(slice: &ResourceSlice) -> (i64, i64) {
    (slice.spec.pool.generation, slice.spec.pool.resource_slice_count)
}
