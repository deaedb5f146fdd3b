#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod binding;
mod call;
mod codec;
mod core;
mod delete;
mod discovery;
mod faults;
mod identity;
mod json_patch;
mod kubeconfig;
mod listener;
mod media;
mod ownership;
mod patch;
mod prepare;
mod query;
mod read;
mod resource;
mod rules;
mod selector;
mod serve;
mod status;
mod store;
mod strategic;
mod tls;
mod version;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

pub use self::core::RequestLine;
pub use self::faults::{Faults, Filter, Partition, Times, Trouble};
pub use self::identity::Identity;
pub use self::resource::Resource;
pub use self::rules::{GateError, Gates, Policy, Rule, Subject};
pub use self::store::Snapshot;
pub use self::tls::TlsError;
pub use drakkar_client::DraVersion;

use self::core::Core;
use self::listener::Port;
use self::store::Store;
use self::tls::Tls;

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether to serve HTTPS, with a certificate authority of its own. Default: plain HTTP.
    pub tls: bool,
    /// The feature gates. Default: those of Kubernetes 1.37.
    pub gates: Gates,
    /// Who may do what, besides what Kubernetes itself allows its components.
    pub policy: Policy,
    /// The versions of `resource.k8s.io` that are served, the preferred one first. Default: only v1.
    pub versions: Vec<DraVersion>,
    /// How many events of each resource are remembered; a watch that would start before them gets 410 Gone. Default: 10,000.
    pub event_window: usize,
    /// How often a watch that wants bookmarks gets one. Default: a minute.
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

/// Why a server or a client of it could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no port to listen on.
    #[error("API server: listen on a port of 127.0.0.1")]
    Listen(#[source] io::Error),
    /// TLS was asked for and cannot be had.
    #[error("API server: TLS")]
    Tls(#[from] TlsError),
    /// The kernel gave no random bytes for a token.
    #[error("API server: make a token for {user}")]
    Token {
        /// Whose token.
        user: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A client could not be made.
    #[error("API server: make a client for {user}")]
    Client {
        /// Whose client.
        user: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An API server. A clone is the same server, which ends with the last of them.
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
    /// Starts a server, with the namespaces `default` and `kube-system` in it.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let port = Port::take().map_err(Error::Listen)?;
        let address = port.address();
        let tls = config.tls.then(|| Tls::new(address.ip())).transpose()?;
        let store = Store::new(config.event_window);
        let Config { gates, policy, versions, bookmark_interval, .. } = config;
        let core = Arc::new(Core::new(store, gates, policy, versions, bookmark_interval, address.to_string()));
        let admin = client(&core, tls.as_ref(), address, &Identity::Admin)?;
        for name in ["default", "kube-system"] {
            add_namespace(&core, name)?;
        }
        let server = Self { inner: Arc::new(Inner { core, port, tls, admin, serving: Mutex::new(None) }) };
        server.resume().await?;
        Ok(server)
    }

    /// Stops serving: all connections are gone at once, and new ones are refused. The objects stay.
    pub async fn stop(&self) {
        let Some(serving) = self.inner.serving.lock().await.take() else { return };
        serving.abort();
        // Cancelled, as it should be: there is no other way for it to end.
        let _ = serving.await;
    }

    /// Serves again after [`Self::stop`], at the same address. Does nothing while the server serves.
    pub async fn resume(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let mut serving = inner.serving.lock().await;
        if serving.is_none() {
            let acceptor = inner.tls.as_ref().map(|tls| tls.acceptor.clone());
            *serving = Some(listener::run(&inner.port, inner.core.clone(), acceptor).map_err(Error::Listen)?);
        }
        Ok(())
    }

    /// Where the server is.
    pub fn url(&self) -> String {
        url(self.inner.tls.as_ref(), self.inner.port.address())
    }

    /// A client with connections and a token of its own.
    pub fn client(&self, who: &Identity) -> Result<kube::Client, Error> {
        client(&self.inner.core, self.inner.tls.as_ref(), self.inner.port.address(), who)
    }

    /// The client of an administrator, who may do everything.
    pub fn admin(&self) -> kube::Client {
        self.inner.admin.clone()
    }

    /// A kubeconfig file for `kubectl`, `kube` and the like.
    pub fn kubeconfig(&self, who: &Identity) -> Result<String, Error> {
        let token = token(&self.inner.core, who)?;
        let ca = self.inner.tls.as_ref().map(|tls| tls.ca_pem.as_str());
        Ok(kubeconfig::kubeconfig(&self.url(), ca, &who.user_name(), &token))
    }

    /// All objects as they are now, for [`Self::restore`].
    pub fn snapshot(&self) -> Snapshot {
        self.inner.core.store.snapshot()
    }

    /// Has the objects of a snapshot again, as a cluster whose `etcd` is restored from a backup: resource versions go back,
    /// what was written since is gone without an event, and watches end.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.inner.core.store.restore(snapshot);
        self.faults().drop_watches();
    }

    /// Trouble on demand.
    pub fn faults(&self) -> &Faults {
        &self.inner.core.faults
    }

    /// The requests that were answered, the oldest first; a watch is in it from its beginning. At most 100,000.
    pub fn requests(&self) -> Vec<RequestLine> {
        self.inner.core.requests()
    }

    /// Begins the log of requests anew.
    pub fn forget_requests(&self) {
        self.inner.core.forget_requests();
    }

    /// Changes who may do what, from the next request on.
    pub fn set_policy(&self, policy: Policy) {
        self.inner.core.set_policy(policy);
    }
}

fn url(tls: Option<&Tls>, address: SocketAddr) -> String {
    format!("{}://{address}", if tls.is_some() { "https" } else { "http" })
}

fn token(core: &Core, who: &Identity) -> Result<String, Error> {
    core.tokens.issue(who).map_err(|source| Error::Token { user: who.user_name(), source: source.into() })
}

fn client(core: &Core, tls: Option<&Tls>, address: SocketAddr, who: &Identity) -> Result<kube::Client, Error> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Client { user: who.user_name(), source };
    let address = url(tls, address).parse::<http::Uri>().map_err(|error| failed(error.into()))?;
    let mut config = kube::Config::new(address);
    // Without TLS none are needed; what is not said is read from the system, for every client, which takes long.
    config.root_cert = Some(tls.map(|tls| tls.ca_der.clone()).into_iter().collect());
    // As the client that a driver has on a node: its framework tries again by itself.
    config.default_retry = !matches!(who, Identity::Driver { .. });
    config.auth_info =
        serde_json::from_value(json!({ "token": token(core, who)? })).map_err(|error| failed(error.into()))?;
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
        tracing::debug!(name, "API server: the namespace exists already");
    }
    Ok(())
}
