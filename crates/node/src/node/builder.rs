//! How a node differs from the usual one.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::directory::Directory;
use super::{Node, NodeError, cdi_directory, static_cdi_directory};
use crate::kubelet::{Release, Timing};
use crate::runner::{self, Isolation, Runner};
use crate::scheduler::Scheduler;
use drakkar_apiserver::{self as api, ApiServer, Identity};

/// A node to be.
#[derive(Debug)]
pub struct NodeBuilder {
    name: String,
    timing: Timing,
    release: Release,
    isolation: Isolation,
    api: api::Config,
    has_scheduler: bool,
    has_kubelet: bool,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            name: "node-1".to_owned(),
            timing: Timing::fast(),
            release: Release::default(),
            isolation: Isolation::default(),
            // Go's clients send no token without TLS.
            api: api::Config { tls: true, ..api::Config::default() },
            has_scheduler: true,
            has_kubelet: true,
        }
    }
}

impl NodeBuilder {
    /// Its name; `node-1` by default.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long its kubelet waits for what; [`Timing::fast`] by default, [`Timing::default`] is as a real one has it.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Which release of Kubernetes its kubelet speaks like; the newest by default.
    #[must_use]
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// How its containers are kept apart.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How its API server is: TLS, feature gates, versions.
    #[must_use]
    pub fn api(mut self, config: api::Config) -> Self {
        self.api = config;
        self
    }

    /// Without a scheduler: claims are allocated by hand.
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.has_scheduler = false;
        self
    }

    /// Without a kubelet at first; [`Node::start_kubelet`] starts it.
    #[must_use]
    pub fn without_kubelet(mut self) -> Self {
        self.has_kubelet = false;
        self
    }

    /// Starts it.
    pub async fn start(self) -> Result<Node, NodeError> {
        let directory = Directory::new().map_err(NodeError::Directory)?;
        let api = ApiServer::start(self.api).await?;
        let runner = Runner::new(runner::Config {
            cdi_dirs: vec![static_cdi_directory(directory.path()), cdi_directory(directory.path())],
            state_dir: directory.path().join("containers"),
            isolation: self.isolation,
        })?;
        let scheduler = match self.has_scheduler {
            true => Some(Scheduler::start(api.client(&Identity::Scheduler)?, &self.name)),
            false => None,
        };
        let node = Node {
            name: self.name,
            timing: self.timing,
            release: self.release,
            kubelet: Mutex::new(None),
            scheduler: Mutex::new(scheduler),
            runner: Arc::new(runner),
            api,
            directory: Arc::new(directory),
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
