//! The cluster of a test: an API server and one node, with a driver that has no more permissions than it needs.
//!
//! The server is embedded, or a real one if `DRAKKAR_KUBECONFIG` is the path of its kubeconfig. All names are unique to a
//! cluster, so that tests on a real server do not affect each other.

mod claims;
mod permissions;
mod real;
mod slices;

use std::io::Write as _;

use drakkar_node::ApiServer;
use drakkar_node::api::{Config, DraVersion, Gates, Identity, Snapshot};
use drakkar_plugin::{Helper, PluginBuilder};
use http::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::claims::SHARE;
use self::permissions::Permissions;
use self::real::RealServer;
use super::{ApiProxy, TestDriver};

/// The pool of most tests.
pub const POOL: &str = "pool-1";
/// The service account of the driver, in the cluster's namespace.
const ACCOUNT: &str = "gpu";

/// A cluster with one node. On a real server, dropping it deletes all its objects.
pub struct Cluster {
    /// The proxy between the driver and the server. Fields drop in order, so it stops before the server.
    pub proxy: ApiProxy,
    pub root: TempDir,
    pub names: Names,
    pub node_uid: String,
    /// The version of resource.k8s.io that the driver sees.
    version: &'static str,
    server: Server,
}

/// The names of a cluster's objects.
#[derive(Clone, Debug)]
pub struct Names {
    pub id: String,
    pub driver: String,
    pub node: String,
    pub namespace: String,
}

enum Server {
    Embedded(ApiServer),
    RealServer(Box<RealServer>),
}

impl Names {
    fn new() -> Self {
        use std::hash::BuildHasher as _;
        let id = format!("{:016x}", std::hash::RandomState::new().hash_one("a cluster"));
        let id = id[..10].to_owned();
        Self {
            driver: format!("gpu-{id}.example.com"),
            node: format!("node-{id}"),
            namespace: format!("drakkar-test-{id}"),
            id,
        }
    }
}

impl Server {
    fn admin(&self) -> kube::Client {
        match self {
            Self::Embedded(server) => server.admin(),
            Self::RealServer(real) => real.admin(),
        }
    }

    fn kubelet(&self, names: &Names) -> kube::Client {
        match self {
            Self::Embedded(server) => server.client(&Identity::Node(names.node.clone())).unwrap(),
            Self::RealServer(real) => real.kubelet(),
        }
    }

    /// Returns a client of the driver's service account, whose token is bound to the node or not.
    async fn account(&self, names: &Names, on_node: bool) -> kube::Client {
        let namespace = names.namespace.clone();
        let name = ACCOUNT.to_owned();
        match self {
            Self::RealServer(real) => real.account(on_node).await,
            Self::Embedded(server) if on_node => {
                let node_name = names.node.clone();
                server.client(&Identity::Driver { namespace, service_account: name, node_name }).unwrap()
            }
            Self::Embedded(server) => server.client(&Identity::ServiceAccount { namespace, name }).unwrap(),
        }
    }
}

impl Cluster {
    pub async fn new() -> Self {
        Self::with(&[], DraVersion::V1).await.expect("a server with resource.k8s.io/v1")
    }

    /// Starts a cluster with an embedded server, which can be restored from a snapshot. Returns `None` if the server is real.
    pub async fn embedded() -> Option<Self> {
        let cluster = Self::new().await;
        if let Server::RealServer(_) = cluster.server {
            skip("it cannot be restored from a backup");
            return None;
        }
        Some(cluster)
    }

    /// Returns a snapshot of all objects of the server.
    pub fn snapshot(&self) -> Snapshot {
        match &self.server {
            Server::Embedded(server) => server.snapshot(),
            Server::RealServer(_) => panic!("a real server has no snapshots"),
        }
    }

    /// Restores the server from a backup.
    pub fn restore(&self, snapshot: &Snapshot) {
        match &self.server {
            Server::Embedded(server) => server.restore(snapshot),
            Server::RealServer(_) => panic!("a real server has no snapshots"),
        }
    }

    /// Starts a cluster with feature gates on or off. Returns `None` if a real server has them set otherwise.
    pub async fn with_gates(gates: &[(&str, bool)]) -> Option<Self> {
        Self::with(gates, DraVersion::V1).await
    }

    /// Starts a cluster whose driver sees only one version of resource.k8s.io. Returns `None` if a real server does not serve it.
    pub async fn with_version(version: DraVersion) -> Option<Self> {
        Self::with(&[], version).await
    }

    async fn with(gates: &[(&str, bool)], version: DraVersion) -> Option<Self> {
        let names = Names::new();
        let version_name = match version {
            DraVersion::V1 => "v1",
            DraVersion::V1beta2 => "v1beta2",
            DraVersion::V1beta1 => "v1beta1",
        };
        let (server, visible_version) = match std::env::var_os("DRAKKAR_KUBECONFIG") {
            Some(kubeconfig) => {
                let real = Box::new(RealServer::new(kubeconfig.as_ref(), names.clone()).await);
                if let Some(mismatch) = real.mismatch(gates, version_name).await {
                    skip(&mismatch);
                    return None;
                }
                (Server::RealServer(real), (version != DraVersion::V1).then_some(version_name))
            }
            None => {
                let mut all = Gates::default();
                for (gate, on) in gates {
                    all = all.with(gate, *on).unwrap();
                }
                let config = Config { gates: all, versions: vec![version], ..Config::default() };
                (Server::Embedded(ApiServer::start(config).await.unwrap()), None)
            }
        };
        let admin = server.admin();
        let node_uid = create_node(&admin, &names).await;
        let namespace = json!({"metadata": {"name": names.namespace, "labels": {"drakkar-test": names.id}}});
        request(&admin, "POST", "/api/v1/namespaces", "application/json", &namespace).await;
        if let Server::RealServer(real) = &server {
            real.create_objects().await;
        }
        allow(&server, &names, Permissions::required()).await;
        let proxy = ApiProxy::to(server.account(&names, true).await, visible_version);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        Some(Self { proxy, root, names, node_uid, version: version_name, server })
    }

    /// Returns the builder of a driver on the node.
    pub fn builder(&self) -> PluginBuilder {
        PluginBuilder::new(&self.names.driver)
            .client(self.proxy.client())
            .node_name(&self.names.node)
            .kubelet_root(self.root.path())
            .cdi_directory(self.root.path().join("cdi"))
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    /// Returns an administrator's client, which does not use the proxy.
    pub fn admin(&self) -> kube::Client {
        self.server.admin()
    }

    /// Returns a client of the driver's service account with a token that is not bound to a node. It does not use the proxy.
    pub async fn account_without_node(&self) -> kube::Client {
        self.server.account(&self.names, false).await
    }

    /// Grants the driver all permissions that it needs, except those for `resource`, if it is given.
    pub async fn grant_all_except(&self, resource: Option<&str>) {
        allow(&self.server, &self.names, Permissions::required().without(resource)).await;
    }

    /// Deletes the node, creates it again, and returns its new UID.
    pub async fn replace_node(&self) -> String {
        let path = format!("/api/v1/nodes/{}", self.names.node);
        request(&self.admin(), "DELETE", &path, "application/json", &json!({})).await;
        create_node(&self.admin(), &self.names).await
    }
}

async fn create_node(admin: &kube::Client, names: &Names) -> String {
    let node = json!({"metadata": {"name": names.node, "labels": {"drakkar-test": names.id}}});
    let node = request(admin, "POST", "/api/v1/nodes", "application/json", &node).await;
    node["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn allow(server: &Server, names: &Names, permissions: Permissions) {
    match server {
        Server::Embedded(server) => server.set_policy(permissions.policy(names)),
        Server::RealServer(real) => real.allow(&permissions).await,
    }
}

/// Reports that a test is skipped. The test runner hides the output of tests that pass, so this writes to stderr directly.
fn skip(reason: &str) {
    let thread = std::thread::current();
    let text = format!("{}: skipped on a real API server: {reason}\n", thread.name().unwrap_or_default());
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

/// Sends a request, and fails the test if the server returns an error.
async fn request(client: &kube::Client, method: &str, path: &str, content_type: &str, body: &Value) -> Value {
    try_request(client, method, path, content_type, body)
        .await
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

async fn try_request(
    client: &kube::Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let builder = Request::builder().method(method).uri(path).header("content-type", content_type);
    client.request(builder.body(body.to_string().into_bytes()).unwrap()).await
}
