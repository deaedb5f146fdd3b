//! A runner that has its directory for as long as anybody has the runner. Tasks of a kubelet that was killed end a little
//! later than the kubelet, and with them the last containers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::directory::Directory;
use crate::kubelet::{Containers, StartError};
use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Runner};

/// A runner and its directory. The order of these is the order in which they end.
#[derive(Debug)]
pub(super) struct Housed {
    pub(super) runner: Arc<Runner>,
    pub(super) _directory: Arc<Directory>,
}

impl Containers for Housed {
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
}
