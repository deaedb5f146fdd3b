//! The sandboxes and containers of the runtime, as NRI's messages.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drakkar_nri_api::v1alpha1::{Container, ContainerState, PodSandbox};
use tokio::sync::Mutex as AsyncMutex;

use super::network::PodNetwork;
use crate::nri::{Inventory, Sandbox as SandboxInfo};
use crate::runner::ContainerId;

/// A sandbox.
#[derive(Debug, Clone)]
pub(super) struct Sandbox {
    pub(super) message: PodSandbox,
    /// Whether containers can be started in it.
    pub(super) is_ready: bool,
    pub(super) network: Option<Arc<PodNetwork>>,
}

/// A container.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) message: Container,
    /// The pod as it was when the container was created.
    pub(super) pod: PodSandbox,
    /// Whether the kubelet has removed it.
    pub(super) is_removed: bool,
}

/// All sandboxes and containers that are not removed.
#[derive(Debug, Default)]
pub(super) struct Pods(Mutex<Tables>);

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// By id.
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: HashMap<ContainerId, Record>,
    /// By UID of the pod: held while its sandbox is made, stopped or removed, and while a container of it starts.
    locks: HashMap<String, Arc<AsyncMutex<()>>>,
}

impl Pods {
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lock of a pod.
    pub(super) fn lock_of(&self, pod_uid: &str) -> Arc<AsyncMutex<()>> {
        self.tables().locks.entry(pod_uid.to_owned()).or_default().clone()
    }

    /// Returns the sandbox of a pod in which containers can be started.
    pub(super) fn ready(&self, pod_uid: &str) -> Option<Sandbox> {
        let is_ready = |sandbox: &&Sandbox| sandbox.message.uid == pod_uid && sandbox.is_ready;
        self.tables().sandboxes.values().find(is_ready).cloned()
    }

    /// Records that a sandbox is stopped; returns its network.
    pub(super) fn set_stopped(&self, id: &str) -> Option<Arc<PodNetwork>> {
        let mut tables = self.tables();
        let sandbox = tables.sandboxes.get_mut(id)?;
        sandbox.is_ready = false;
        sandbox.network.take()
    }

    /// Returns all sandboxes of a pod.
    pub(super) fn of_pod(&self, pod_uid: &str) -> Vec<Sandbox> {
        let sandboxes = self.tables().sandboxes.values().cloned().collect::<Vec<_>>();
        sandboxes.into_iter().filter(|sandbox| sandbox.message.uid == pod_uid).collect()
    }

    /// Reports whether a container is not known to have exited.
    pub(super) fn is_alive(&self, id: &ContainerId) -> bool {
        self.tables().containers.get(id).is_some_and(|record| record.message.finished_at == 0)
    }

    /// Changes a container, and returns it.
    pub(super) fn update(&self, id: &ContainerId, change: impl FnOnce(&mut Container)) -> Option<Record> {
        let mut tables = self.tables();
        let record = tables.containers.get_mut(id)?;
        change(&mut record.message);
        Some(record.clone())
    }

    /// Takes out the containers of a pod that the kubelet has removed.
    pub(super) fn take_removed(&self, pod_uid: &str) -> Vec<Record> {
        let mut tables = self.tables();
        let is_removed = |record: &Record| record.is_removed && record.pod.uid == pod_uid;
        let (removed, others) =
            std::mem::take(&mut tables.containers).into_iter().partition(|(_, record)| is_removed(record));
        tables.containers = others;
        let removed: HashMap<ContainerId, Record> = removed;
        removed.into_values().collect()
    }

    /// Forgets a pod whose sandboxes are removed.
    pub(super) fn forget(&self, pod_uid: &str) {
        let mut tables = self.tables();
        tables.sandboxes.retain(|_, sandbox| sandbox.message.uid != pod_uid);
        tables.locks.remove(pod_uid);
    }

    /// Forgets everything, and returns the networks.
    pub(super) fn clear(&self) -> Vec<Arc<PodNetwork>> {
        let tables = std::mem::take(&mut *self.tables());
        tables.sandboxes.into_values().filter_map(|sandbox| sandbox.network).collect()
    }

    /// Describes all sandboxes.
    pub(super) fn all(&self) -> Vec<SandboxInfo> {
        let info = |sandbox: &Sandbox| SandboxInfo {
            id: sandbox.message.id.clone(),
            pod_uid: sandbox.message.uid.clone(),
            namespace: sandbox.message.namespace.clone(),
            pod_name: sandbox.message.name.clone(),
            is_ready: sandbox.is_ready,
            network: sandbox.network.as_ref().map(|network| PathBuf::from(network.path())),
            ips: sandbox.message.ips.clone(),
        };
        self.tables().sandboxes.values().map(info).collect()
    }
}

impl Inventory for Pods {
    fn pods(&self) -> Vec<PodSandbox> {
        self.tables().sandboxes.values().map(|sandbox| sandbox.message.clone()).collect()
    }

    fn containers(&self) -> Vec<Container> {
        let alive = [ContainerState::ContainerCreated as i32, ContainerState::ContainerRunning as i32];
        let tables = self.tables();
        let mut containers: Vec<Container> = tables
            .containers
            .values()
            .map(|record| record.message.clone())
            .filter(|container| alive.contains(&container.state))
            .collect();
        containers.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        containers
    }
}
