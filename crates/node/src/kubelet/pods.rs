//! The pods of this node: one worker for each, driven by a watch of the API server.

mod directory;
mod events;
mod plan;
mod report;
mod spec;
mod status;
mod watch;
mod worker;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::sync::{Notify, watch as latest};
use tokio::time::{MissedTickBehavior, interval};

use self::directory::Directories;
pub(super) use self::status::time;
use self::worker::Worker;
use super::containers::Containers;
use super::health::Change;
use super::manager::Manager;
use super::tasks::Tasks;
use super::timing::Timing;

/// What all workers share.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) manager: Manager,
    pub(super) containers: Arc<dyn Containers>,
    pub(super) timing: Timing,
    pub(super) tasks: Tasks,
}

/// The pods of the node. Clones share them.
#[derive(Clone)]
pub(super) struct Pods {
    context: Arc<Context>,
    directories: Directories,
    workers: Arc<Mutex<HashMap<String, Handle>>>,
    /// The UIDs of pods that may still have claims to unprepare.
    active: Arc<Mutex<HashSet<String>>>,
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("node", &self.context.node).finish_non_exhaustive()
    }
}

/// The handle of a worker.
#[derive(Debug)]
struct Handle {
    /// The pod as the API server had it last; `None` when it is gone.
    pod: latest::Sender<Option<Arc<Pod>>>,
    /// Triggers a sync.
    resync: Arc<Notify>,
}

impl Pods {
    pub(super) fn new(context: Context, directory: PathBuf) -> Self {
        let directories = Directories::new(directory);
        Self { context: Arc::new(context), directories, workers: Arc::default(), active: Arc::default() }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn manager(&self) -> &Manager {
        &self.context.manager
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<String, Handle>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn active(&self) -> MutexGuard<'_, HashSet<String>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the pods of the node.
    pub(super) async fn run(self) {
        watch::run(&self).await;
    }

    /// Takes a list of all pods; others are gone. `first` is set for the first list of this kubelet.
    fn replace(&self, pods: Vec<Pod>, first: bool) {
        let listed: HashSet<String> = pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        let mut known: BTreeSet<String> = self.workers().keys().cloned().collect();
        if first {
            // Pods that an earlier kubelet had.
            known.extend(self.directories.pods());
            known.extend(self.context.manager.pods());
        }
        pods.into_iter().for_each(|pod| self.apply(pod));
        for uid in known.difference(&listed.into_iter().collect()) {
            self.send(uid, None);
        }
        if first {
            let pods = self.clone();
            self.context.tasks.spawn(async move { pods.unprepare_orphans().await });
        }
    }

    fn apply(&self, pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        self.send(&uid, Some(Arc::new(pod)));
    }

    fn removed(&self, uid: &str) {
        if self.workers().contains_key(uid) {
            self.send(uid, None);
        }
    }

    /// Sends a pod to its worker, which is started if necessary.
    fn send(&self, uid: &str, pod: Option<Arc<Pod>>) {
        let mut workers = self.workers();
        if let Some(handle) = workers.get(uid) {
            handle.pod.send_replace(pod);
            return;
        }
        let (sender, receiver) = latest::channel(pod);
        let resync = Arc::new(Notify::new());
        workers.insert(uid.to_owned(), Handle { pod: sender, resync: resync.clone() });
        drop(workers);
        self.active().insert(uid.to_owned());
        let worker = Worker::new(self.clone(), uid.to_owned(), receiver, resync);
        let pods = self.clone();
        let uid = uid.to_owned();
        self.context.tasks.spawn(async move {
            worker.run().await;
            pods.workers().remove(&uid);
        });
    }

    /// Records that the claims of a pod are unprepared, and will not be prepared again.
    fn unprepared(&self, uid: &str) {
        self.active().remove(uid);
    }

    async fn unprepare_orphans(&self) {
        let mut ticks = interval(self.context.timing.orphan_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.context.manager.unprepare_orphans(|pod| self.active().contains(pod)).await;
        }
    }

    /// Syncs the pods that use devices whose health has changed.
    pub(super) fn health_changed(&self, change: &Change) {
        let workers = self.workers();
        for handle in self.context.manager.pods_using(change).iter().filter_map(|uid| workers.get(uid)) {
            handle.resync.notify_one();
        }
    }
}

#[cfg(test)]
mod sandbox_tests;
#[cfg(test)]
mod tests;
