//! The container runner as the kubelet uses it. It keeps the node's directory: the tasks of a killed kubelet, and with them
//! the last containers, can end a little later than the node.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drakkar_apiserver::{ExecOptions, ExecSession};
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::directory::Directory;
use crate::kubelet::{Containers, StartError};
use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Runner};

/// The container runner and the directory it works in. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct NodeContainers {
    pub(super) runner: Arc<Runner>,
    pub(super) _directory: Arc<Directory>,
}

impl Containers for NodeContainers {
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>> {
        Containers::start(&*self.runner, spec)
    }

    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        self.runner.list(pod_uid)
    }

    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()> {
        Containers::stop(&*self.runner, id, grace)
    }

    fn remove(&self, id: &ContainerId) {
        Containers::remove(&*self.runner, id);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.runner.subscribe()
    }

    fn log_file(&self, id: &ContainerId) -> io::Result<PathBuf> {
        self.runner.log_file(id)
    }

    fn exec<'a>(&'a self, id: &'a ContainerId, options: ExecOptions) -> BoxFuture<'a, Result<ExecSession, String>> {
        Containers::exec(&*self.runner, id, options)
    }
}
