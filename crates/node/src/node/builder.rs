//! The builder of a node.

use drakkar_apiserver::{self as api, ApiServer, Identity};
use std::sync::Arc;
use tokio::sync::Mutex;

use super::directory::Directory;
use super::{Node, NodeError, cdi_directory, kubelet_root, static_cdi_directory};
use crate::kubelet::{Release, Timing};
use crate::nri;
use crate::runner::{self, Isolation, Runner};
use crate::runtime::RuntimeHandle;
use crate::scheduler::Scheduler;

/// Configures and starts a [`Node`].
#[derive(Debug)]
pub struct NodeBuilder {
    name: String,
    timing: Timing,
    release: Release,
    isolation: Isolation,
    api: api::Config,
    has_scheduler: bool,
    has_kubelet: bool,
    nri: Option<nri::Config>,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            name: "node-1".to_owned(),
            timing: Timing::fast(),
            release: Release::default(),
            isolation: Isolation::default(),
            // Go's clients send a bearer token only over TLS.
            api: api::Config { tls: true, ..api::Config::default() },
            has_scheduler: true,
            has_kubelet: true,
            nri: None,
        }
    }
}

impl NodeBuilder {
    /// Sets the node's name; `node-1` by default.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the kubelet's delays and timeouts: [`Timing::fast`] by default; [`Timing::default`] has a real kubelet's.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Sets the Kubernetes release whose kubelet is emulated; the newest by default.
    #[must_use]
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// Sets how containers are isolated.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Configures the API server: TLS, feature gates, versions.
    #[must_use]
    pub fn api(mut self, config: api::Config) -> Self {
        self.api = config;
        self
    }

    /// Gives the node's container runtime NRI, and pods sandboxes with networks of their own; see [`nri`](crate::nri). Without
    /// it there are no sandboxes, and pods have the host's network.
    #[must_use]
    pub fn nri(mut self, config: nri::Config) -> Self {
        self.nri = Some(config);
        self
    }

    /// Runs no scheduler: the test allocates claims itself.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.has_scheduler = false;
        self
    }

    /// Starts without a kubelet; [`Node::start_kubelet`] starts it later.
    #[must_use]
    pub fn without_kubelet(mut self) -> Self {
        self.has_kubelet = false;
        self
    }

    /// Starts the node.
    pub async fn start(self) -> Result<Node, NodeError> {
        let directory = Directory::new().map_err(NodeError::Directory)?;
        // A driver needs the registry even while no kubelet runs, as on a real node whose kubelet is down. And it warns if the
        // directory of CDI specs is missing, which is the case on few nodes.
        for needed in [kubelet_root(directory.path()).join("plugins_registry"), cdi_directory(directory.path())] {
            std::fs::create_dir_all(needed).map_err(NodeError::Directory)?;
        }
        let api = ApiServer::start(self.api).await?;
        let runner = Runner::new(runner::Config {
            cdi_dirs: vec![static_cdi_directory(directory.path()), cdi_directory(directory.path())],
            state_dir: directory.path().join("containers"),
            isolation: self.isolation,
        })?;
        let scheduler = if self.has_scheduler {
            Some(Scheduler::start(api.client(&Identity::Scheduler)?, &self.name))
        } else {
            None
        };
        let directory = Arc::new(directory);
        let runner = Arc::new(runner);
        let runtime = match self.nri {
            Some(config) => {
                let started = RuntimeHandle::start(runner.clone(), config, directory.path(), directory.clone());
                Some(started.map_err(NodeError::Nri)?)
            }
            None => None,
        };
        let node = Node {
            name: self.name,
            timing: self.timing,
            release: self.release,
            kubelet: Mutex::new(None),
            scheduler: Mutex::new(scheduler),
            runtime,
            runner,
            api,
            directory,
        };
        node.create(serde_json::json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
        }))
        .await?;
        if self.has_kubelet {
            node.start_kubelet().await?;
        }
        Ok(node)
    }
}
