#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod binding;
mod call;
mod codec;
mod core;
mod core_protobuf;
mod delete;
mod discovery;
mod faults;
mod identity;
mod json_patch;
mod kubeconfig;
mod kubelet;
mod listener;
mod media;
mod openapi;
mod ownership;
mod patch;
mod prepare;
mod query;
mod read;
mod resource;
mod reviews;
mod rules;
mod selector;
mod serve;
mod status;
mod store;
mod strategic;
mod streams;
mod table;
mod tls;
mod version;
mod view;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use drakkar_client::DraVersion;
use serde_json::json;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

pub use self::core::RequestRecord;
pub use self::faults::{Fault, Faults, Filter, Partition, Times};
pub use self::identity::Identity;
pub use self::kubelet::{ContainerRef, ExecOptions, ExecSession, Kubelet, KubeletError, LogOptions, LogStream};
pub use self::resource::Resource;
pub use self::rules::{GateError, Gates, Policy, Rule, Subject};
pub use self::store::Snapshot;
pub use self::tls::TlsError;

use self::core::Core;
use self::listener::Port;
use self::store::Store;
use self::tls::Tls;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether to serve HTTPS, with a new certificate authority. Default: plain HTTP.
    pub tls: bool,
    /// The feature gates. Default: those of Kubernetes 1.37.
    pub gates: Gates,
    /// The RBAC rules, besides the built-in rules for nodes. Default: see [`Policy`].
    pub policy: Policy,
    /// The served versions of `resource.k8s.io`, the preferred one first. Default: v1 only.
    pub versions: Vec<DraVersion>,
    /// The number of events to keep per resource; a watch from an older version gets 410 Gone. Default: 10,000.
    pub event_window: usize,
    /// The interval between bookmarks of a watch that asks for them. Default: one minute.
    pub bookmark_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tls: false,
            gates: Gates::default(),
            policy: Policy::default(),
            versions: vec![DraVersion::V1],
            event_window: 10_000,
            bookmark_interval: Duration::from_secs(60),
        }
    }
}

/// An error from starting a server or creating a client for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Listening on a loopback port failed.
    #[error("API server: listen on a port of 127.0.0.1")]
    Listen(#[source] io::Error),
    /// The setup of TLS failed.
    #[error("API server: TLS")]
    Tls(#[from] TlsError),
    /// No random bytes for a token.
    #[error("API server: make a token for {user}")]
    Token {
        /// The user of the token.
        user: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Creating a client failed.
    #[error("API server: make a client for {user}")]
    Client {
        /// The user of the client.
        user: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An embedded API server. Clones share the server; it ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    port: Port,
    tls: Option<Tls>,
    admin: kube::Client,
    serving: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("port", &self.port).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Starts a server with the namespaces `default`, `kube-node-lease` and `kube-system`.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let port = Port::reserve().map_err(Error::Listen)?;
        let address = port.address();
        let tls = config.tls.then(|| Tls::new(address.ip())).transpose()?;
        let store = Store::new(config.event_window);
        let Config { gates, policy, versions, bookmark_interval, .. } = config;
        let core = Arc::new(Core::new(store, gates, policy, versions, bookmark_interval, address.to_string()));
        let admin = client(&core, tls.as_ref(), address, &Identity::Admin)?;
        for name in ["default", "kube-node-lease", "kube-system"] {
            add_namespace(&core, name)?;
        }
        let server = Self { inner: Arc::new(Inner { core, port, tls, admin, serving: Mutex::new(None) }) };
        server.resume().await?;
        Ok(server)
    }

    /// Stops serving: closes all connections and refuses new ones. The objects are kept.
    pub async fn stop(&self) {
        let Some(serving) = self.inner.serving.lock().await.take() else { return };
        serving.abort();
        // The only possible result is the cancellation above.
        let _ = serving.await;
    }

    /// Resumes serving after [`Self::stop`], at the same address. Does nothing if the server is running.
    pub async fn resume(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let mut serving = inner.serving.lock().await;
        if serving.is_none() {
            let acceptor = inner.tls.as_ref().map(|tls| tls.acceptor.clone());
            *serving = Some(listener::run(&inner.port, inner.core.clone(), acceptor).map_err(Error::Listen)?);
        }
        Ok(())
    }

    /// Returns the base URL.
    pub fn url(&self) -> String {
        url(self.inner.tls.as_ref(), self.inner.port.address())
    }

    /// Creates a client with its own connections and the token of the identity.
    pub fn client(&self, identity: &Identity) -> Result<kube::Client, Error> {
        client(&self.inner.core, self.inner.tls.as_ref(), self.inner.port.address(), identity)
    }

    /// Returns the client of [`Identity::Admin`], which is allowed everything.
    pub fn admin(&self) -> kube::Client {
        self.inner.admin.clone()
    }

    /// Returns a kubeconfig file for `kubectl` and other clients.
    pub fn kubeconfig(&self, identity: &Identity) -> Result<String, Error> {
        let token = token(&self.inner.core, identity)?;
        let ca = self.inner.tls.as_ref().map(|tls| tls.ca_pem.as_str());
        Ok(kubeconfig::kubeconfig(&self.url(), ca, &identity.user_name(), &token))
    }

    /// Registers the kubelet of a node, which answers for `kubectl logs` and `kubectl exec`. It replaces an earlier one of the
    /// node. When it is dropped, such requests fail, as when a real kubelet does not run.
    pub fn register_kubelet(&self, node_name: &str, kubelet: &Arc<dyn Kubelet>) {
        self.inner.core.kubelets.register(node_name, Arc::downgrade(kubelet));
    }

    /// Takes a snapshot of all objects for [`Self::restore`].
    pub fn snapshot(&self) -> Snapshot {
        self.inner.core.store.snapshot()
    }

    /// Restores a snapshot, like a restore of `etcd` from a backup: resource versions go back, later writes are lost without
    /// an event, and watches end.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.inner.core.store.restore(snapshot);
        self.faults().drop_watches();
    }

    /// Returns the fault injection of this server.
    pub fn faults(&self) -> &Faults {
        &self.inner.core.faults
    }

    /// Returns the request log, the oldest first: the last 100,000 requests. A watch is added when it starts.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.inner.core.requests()
    }

    /// Clears the request log.
    pub fn clear_requests(&self) {
        self.inner.core.clear_requests();
    }

    /// Replaces the RBAC rules, from the next request on.
    pub fn set_policy(&self, policy: Policy) {
        self.inner.core.set_policy(policy);
    }
}

fn url(tls: Option<&Tls>, address: SocketAddr) -> String {
    format!("{}://{address}", if tls.is_some() { "https" } else { "http" })
}

fn token(core: &Core, identity: &Identity) -> Result<String, Error> {
    core.tokens.issue(identity).map_err(|source| Error::Token { user: identity.user_name(), source: source.into() })
}

fn client(core: &Core, tls: Option<&Tls>, address: SocketAddr, identity: &Identity) -> Result<kube::Client, Error> {
    let failed =
        |source: Box<dyn std::error::Error + Send + Sync>| Error::Client { user: identity.user_name(), source };
    let address = url(tls, address).parse::<http::Uri>().map_err(|error| failed(error.into()))?;
    let mut config = kube::Config::new(address);
    // An empty list without TLS: `None` would load the system's certificates for every client, which is slow.
    config.root_cert = Some(tls.map(|tls| tls.ca_der.clone()).into_iter().collect());
    // Drivers get a client like the framework's own: the framework does the retries.
    config.default_retry = !matches!(identity, Identity::Driver { .. });
    config.auth_info =
        serde_json::from_value(json!({ "token": token(core, identity)? })).map_err(|error| failed(error.into()))?;
    kube::Client::try_from(config).map_err(|error| failed(error.into()))
}

fn add_namespace(core: &Core, name: &str) -> Result<(), Error> {
    let uid = drakkar_client::uuid();
    let object = json!({
        "metadata": {
            "name": name,
            "uid": uid,
            "creationTimestamp": prepare::now(),
            "labels": { "kubernetes.io/metadata.name": name },
        },
        "spec": { "finalizers": ["kubernetes"] },
        "status": { "phase": "Active" },
    });
    if core.store.create(Resource::Namespace, (String::new(), name.to_owned()), object).is_err() {
        tracing::debug!(name, "namespace exists already");
    }
    Ok(())
}
