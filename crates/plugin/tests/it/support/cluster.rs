//! The cluster of a test: one node, a driver with the least rights on it, and an API server.
//!
//! The server is embedded, or the real one that the kubeconfig in `DRAKKAR_KUBECONFIG` names; the tests are the same.
//! Names are a cluster's own, so that tests do not see each other on a real server.

mod claims;
mod real;
mod rights;
mod slices;

use std::io::Write as _;

use drakkar_node::ApiServer;
use drakkar_node::api::{Config, DraVersion, Gates, Identity, Snapshot};
use drakkar_plugin::{Helper, PluginBuilder};
use http::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::claims::SHARE;
use self::real::Real;
use self::rights::Rights;
use super::{TestDriver, Wire};

/// The pool of most tests.
pub const POOL: &str = "pool-1";
/// The service account of the driver, in the cluster's namespace.
const ACCOUNT: &str = "gpu";

/// A cluster of one node. On a real server, everything that is in it goes with it.
pub struct Cluster {
    /// What is between the driver and the server. It ends before the server.
    pub wire: Wire,
    pub root: TempDir,
    pub names: Names,
    pub node_uid: String,
    /// The version of resource.k8s.io that there is.
    version: &'static str,
    server: Server,
}

/// The names in a cluster.
#[derive(Clone, Debug)]
pub struct Names {
    pub id: String,
    pub driver: String,
    pub node: String,
    pub namespace: String,
}

enum Server {
    Embedded(ApiServer),
    Real(Box<Real>),
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
            Self::Real(real) => real.admin(),
        }
    }

    fn kubelet(&self, names: &Names) -> kube::Client {
        match self {
            Self::Embedded(server) => server.client(&Identity::Node(names.node.clone())).unwrap(),
            Self::Real(real) => real.kubelet(),
        }
    }

    /// The driver's service account, on the node or nowhere.
    async fn account(&self, names: &Names, on_node: bool) -> kube::Client {
        let (namespace, name) = (names.namespace.clone(), ACCOUNT.to_owned());
        match self {
            Self::Real(real) => real.account(on_node).await,
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

    /// With an embedded server, which can be restored from a snapshot. None if the server is real.
    pub async fn embedded() -> Option<Self> {
        let cluster = Self::new().await;
        if let Server::Real(_) = cluster.server {
            skip("it cannot be restored from a backup");
            return None;
        }
        Some(cluster)
    }

    /// All objects of the server as they are now.
    pub fn snapshot(&self) -> Snapshot {
        match &self.server {
            Server::Embedded(server) => server.snapshot(),
            Server::Real(_) => panic!("a real server has no snapshots"),
        }
    }

    /// Restores the server from a backup.
    pub fn restore(&self, snapshot: &Snapshot) {
        match &self.server {
            Server::Embedded(server) => server.restore(snapshot),
            Server::Real(_) => panic!("a real server has no snapshots"),
        }
    }

    /// With feature gates on or off. None if the server is real and otherwise.
    pub async fn with_gates(gates: &[(&str, bool)]) -> Option<Self> {
        Self::with(gates, DraVersion::V1).await
    }

    /// With only one version of resource.k8s.io, as far as the driver can see. None if a real server does not have it.
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
        let (server, shown) = match std::env::var_os("DRAKKAR_KUBECONFIG") {
            Some(kubeconfig) => {
                let real = Box::new(Real::new(kubeconfig.as_ref(), names.clone()).await);
                if let Some(otherwise) = real.is_otherwise(gates, version_name).await {
                    skip(&otherwise);
                    return None;
                }
                (Server::Real(real), (version != DraVersion::V1).then_some(version_name))
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
        ask(&admin, "POST", "/api/v1/namespaces", "application/json", &namespace).await;
        if let Server::Real(real) = &server {
            real.furnish().await;
        }
        allow(&server, &names, Rights::least()).await;
        let wire = Wire::to(server.account(&names, true).await, shown);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        Some(Self { wire, root, names, node_uid, version: version_name, server })
    }

    /// A driver on the node.
    pub fn builder(&self) -> PluginBuilder {
        PluginBuilder::new(&self.names.driver)
            .client(self.wire.client())
            .node_name(&self.names.node)
            .kubelet_root(self.root.path())
            .cdi_directory(self.root.path().join("cdi"))
    }

    pub async fn start(&self, driver: &TestDriver) -> Helper {
        self.builder().start(driver.clone()).await.unwrap()
    }

    /// Who may do everything, past the wire.
    pub fn admin(&self) -> kube::Client {
        self.server.admin()
    }

    /// The driver's service account with a token that tells no node, past the wire.
    pub async fn account_without_node(&self) -> kube::Client {
        self.server.account(&self.names, false).await
    }

    /// Takes the driver's rights to a resource, if one is given, and gives it all others.
    pub async fn withhold(&self, resource: Option<&str>) {
        allow(&self.server, &self.names, Rights::least().without(resource)).await;
    }

    /// Makes the node anew, and gives its new UID.
    pub async fn replace_node(&self) -> String {
        let path = format!("/api/v1/nodes/{}", self.names.node);
        ask(&self.admin(), "DELETE", &path, "application/json", &json!({})).await;
        create_node(&self.admin(), &self.names).await
    }
}

async fn create_node(admin: &kube::Client, names: &Names) -> String {
    let node = json!({"metadata": {"name": names.node, "labels": {"drakkar-test": names.id}}});
    let node = ask(admin, "POST", "/api/v1/nodes", "application/json", &node).await;
    node["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn allow(server: &Server, names: &Names, rights: Rights) {
    match server {
        Server::Embedded(server) => server.set_policy(rights.policy(names)),
        Server::Real(real) => real.allow(&rights).await,
    }
}

/// Says that a test is not run, past the test runner, which shows nothing of tests that pass.
fn skip(why: &str) {
    let thread = std::thread::current();
    let text = format!("{}: skipped on a real API server: {why}\n", thread.name().unwrap_or_default());
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

/// Asks a server, and fails the test if it refuses.
async fn ask(client: &kube::Client, method: &str, path: &str, kind: &str, body: &Value) -> Value {
    try_ask(client, method, path, kind, body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

async fn try_ask(
    client: &kube::Client,
    method: &str,
    path: &str,
    kind: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await
}
