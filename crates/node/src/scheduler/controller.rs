//! The one task that decides: it takes in watch events, and starts jobs for what follows from them.
//!
//! Only this task touches the cache. A pod and the claims that a job writes are not considered until the job is done.
//! The devices of an allocation count as in use from the decision on, before it is written.

use std::collections::{BTreeSet, HashMap, HashSet};

use drakkar_client::Retry;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::RETRY;
use super::allocator::{InUse, Inventory};
use super::cache::{Cache, Key, is_done};
use super::job::{JobOutcome, Jobs, Observed};
use super::node::NodeInfo;
use super::watch::Change;

/// The most jobs that run at once.
const MAX_JOBS: usize = 32;
/// The number of watched collections.
const COLLECTIONS: usize = 6;

/// An event of one of the watches.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each is destructured at once")]
pub(super) enum Event {
    Pods(Change<Pod>),
    Claims(Change<ResourceClaim>),
    Templates(Change<ResourceClaimTemplate>),
    Classes(Change<DeviceClass>),
    Slices(Change<ResourceSlice>),
    Nodes(Change<Node>),
}

/// The state of the scheduler.
pub(super) struct Controller {
    pub(super) jobs: Jobs,
    pub(super) cache: Cache,
    pub(super) in_use: InUse,
    /// The devices on the node; `None` if they must be read from the slices again.
    pub(super) inventory: Option<Inventory>,
    pub(super) node: NodeInfo,
    /// The order in which pods were first seen, and the queue of pods to reconcile in that order.
    order: HashMap<Key, u64>,
    seen: u64,
    dirty_pods: BTreeSet<(u64, Key)>,
    pub(super) dirty_claims: BTreeSet<Key>,
    /// Unschedulable pods, to be retried when something is freed or added.
    pub(super) unschedulable: BTreeSet<Key>,
    /// Refusals by the claims' specs, since something was last freed or added: until then the answer is the same.
    pub(super) refused: HashMap<String, String>,
    pub(super) pods_in_flight: HashSet<Key>,
    pub(super) claims_in_flight: HashSet<Key>,
    failures: HashMap<Key, Retry>,
    listed: HashSet<&'static str>,
    pub(super) running: JoinSet<JobOutcome>,
    retries: JoinSet<Key>,
}

impl Controller {
    pub(super) fn new(jobs: Jobs) -> Self {
        let node = NodeInfo::new(&jobs.node_name, None);
        Self {
            jobs,
            cache: Cache::default(),
            in_use: InUse::default(),
            inventory: None,
            node,
            order: HashMap::new(),
            seen: 0,
            dirty_pods: BTreeSet::new(),
            dirty_claims: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            refused: HashMap::new(),
            pods_in_flight: HashSet::new(),
            claims_in_flight: HashSet::new(),
            failures: HashMap::new(),
            listed: HashSet::new(),
            running: JoinSet::new(),
            retries: JoinSet::new(),
        }
    }

    /// Runs until the watches end.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.handle_event(event);
                    // Events that are already queued are taken in before anything is decided.
                    while let Ok(event) = events.try_recv() {
                        self.handle_event(event);
                    }
                }
                Some(outcome) = self.running.join_next() => match outcome {
                    Ok(outcome) => self.job_finished(outcome),
                    Err(error) => tracing::error!(%error, "scheduler job failed"),
                },
                Some(Ok(key)) = self.retries.join_next() => self.enqueue_pod_or_claim(key),
            }
            if self.listed.len() == COLLECTIONS {
                self.reconcile_queued();
            }
        }
    }

    /// Reconciles queued claims and pods until the queues are empty or the limit of jobs is reached.
    fn reconcile_queued(&mut self) {
        while self.running.len() < MAX_JOBS {
            if let Some(key) = self.dirty_claims.pop_first() {
                self.reconcile_claim(&key);
            } else if let Some((_, key)) = self.dirty_pods.pop_first() {
                self.reconcile_pod(&key);
            } else {
                return;
            }
        }
    }

    pub(super) fn enqueue_pod(&mut self, key: &Key) {
        if self.cache.pods.contains_key(key) {
            let order = *self.order.entry(key.clone()).or_insert_with(|| {
                self.seen += 1;
                self.seen
            });
            self.dirty_pods.insert((order, key.clone()));
        }
    }

    fn enqueue_pod_or_claim(&mut self, key: Key) {
        self.enqueue_pod(&key);
        self.dirty_claims.insert(key);
    }

    /// Retries unschedulable pods, after something was freed or added.
    pub(super) fn retry_unschedulable(&mut self) {
        self.refused.clear();
        for key in std::mem::take(&mut self.unschedulable) {
            self.enqueue_pod(&key);
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Pods(Change::Listed(pods)) => {
                self.listed.insert("pods");
                let known: HashSet<_> = pods.iter().map(|pod| Key::of(&pod.metadata)).collect();
                let gone: Vec<_> = self.cache.pods.keys().filter(|key| !known.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.pod_gone(key, None));
                pods.into_iter().for_each(|pod| self.pod_applied(pod));
            }
            Event::Pods(Change::Applied(pod)) => self.pod_applied(pod),
            Event::Pods(Change::Deleted(pod)) => self.pod_gone(&Key::of(&pod.metadata), pod.metadata.uid.as_deref()),
            Event::Claims(Change::Listed(claims)) => {
                self.listed.insert("claims");
                self.cache.forget_deleted_claims();
                let known: HashSet<_> = claims.iter().map(|claim| Key::of(&claim.metadata)).collect();
                let gone: Vec<_> = self.cache.claims.keys().filter(|key| !known.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.claim_gone(key, None));
                claims.into_iter().for_each(|claim| self.claim_applied(claim));
            }
            Event::Claims(Change::Applied(claim)) => self.claim_applied(claim),
            Event::Claims(Change::Deleted(claim)) => {
                self.cache.forget_deleted_claim(claim.metadata.uid.as_deref());
                self.claim_gone(&Key::of(&claim.metadata), claim.metadata.uid.as_deref());
            }
            Event::Templates(change) => {
                self.listed.insert("templates");
                let templates = &mut self.cache.templates;
                match change {
                    Change::Listed(all) => {
                        *templates = all.into_iter().map(|one| (Key::of(&one.metadata), one)).collect();
                    }
                    Change::Applied(one) => drop(templates.insert(Key::of(&one.metadata), one)),
                    Change::Deleted(one) => drop(templates.remove(&Key::of(&one.metadata))),
                }
                self.retry_unschedulable();
            }
            Event::Classes(change) => {
                self.listed.insert("classes");
                let classes = &mut self.cache.classes;
                match change {
                    Change::Listed(all) => {
                        *classes = all.into_iter().map(|one| (Key::of(&one.metadata).name, one)).collect();
                    }
                    Change::Applied(one) => drop(classes.insert(Key::of(&one.metadata).name, one)),
                    Change::Deleted(one) => drop(classes.remove(&Key::of(&one.metadata).name)),
                }
                self.retry_unschedulable();
            }
            Event::Slices(change) => {
                self.listed.insert("slices");
                let slices = &mut self.cache.slices;
                match change {
                    Change::Listed(all) => {
                        *slices = all.into_iter().map(|one| (Key::of(&one.metadata).name, one)).collect();
                    }
                    Change::Applied(one) => drop(slices.insert(Key::of(&one.metadata).name, one)),
                    Change::Deleted(one) => drop(slices.remove(&Key::of(&one.metadata).name)),
                }
                self.inventory = None;
                self.retry_unschedulable();
            }
            Event::Nodes(change) => self.node_changed(change),
        }
    }

    fn node_changed(&mut self, change: Change<Node>) {
        self.listed.insert("nodes");
        self.cache.node = match change {
            Change::Listed(nodes) => nodes.into_iter().next(),
            Change::Applied(node) => Some(node),
            Change::Deleted(_) => None,
        };
        let node = NodeInfo::new(&self.jobs.node_name, self.cache.node.as_ref());
        // Heartbeats change nodes all the time.
        if node != self.node {
            self.node = node;
            self.inventory = None;
            self.retry_unschedulable();
        }
    }

    pub(super) fn pod_applied(&mut self, pod: Pod) {
        let key = Key::of(&pod.metadata);
        let done = is_done(&pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let replaced =
            self.cache.pods.get(&key).and_then(|known| known.metadata.uid.clone()).filter(|known| *known != uid);
        if self.cache.apply_pod(pod) {
            for uid in replaced.into_iter().chain(done.then_some(uid)) {
                self.dirty_claims.extend(self.cache.claims_of_pod(&uid));
            }
            self.enqueue_pod(&key);
        }
    }

    /// Removes a pod from the cache; with a UID, only that pod, since another may have its name by now.
    fn pod_gone(&mut self, key: &Key, uid: Option<&str>) {
        let known = self.cache.pods.get(key).and_then(|pod| pod.metadata.uid.as_deref());
        if uid.is_some() && known != uid {
            return;
        }
        if let Some(uid) = self.cache.remove_pod(key).and_then(|pod| pod.metadata.uid) {
            self.dirty_claims.extend(self.cache.claims_of_pod(&uid));
        }
        if let Some(order) = self.order.remove(key) {
            self.dirty_pods.remove(&(order, key.clone()));
        }
        self.unschedulable.remove(key);
        self.failures.remove(key);
    }

    fn claim_applied(&mut self, claim: ResourceClaim) {
        let key = Key::of(&claim.metadata);
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let before = self.cache.claims.get(&key).and_then(|known| known.metadata.uid.clone());
        if !self.cache.apply_claim(claim) {
            return;
        }
        if let Some(before) = before.filter(|before| *before != uid) {
            self.update_in_use(&before, &key);
        }
        self.update_in_use(&uid, &key);
        self.dirty_claims.insert(key.clone());
        self.cache.pods_of_claim(&key).iter().for_each(|pod| self.enqueue_pod(pod));
    }

    /// Removes a claim from the cache; with a UID, only that claim.
    fn claim_gone(&mut self, key: &Key, uid: Option<&str>) {
        let known = self.cache.claims.get(key).and_then(|claim| claim.metadata.uid.as_deref());
        if uid.is_some() && known != uid {
            return;
        }
        let pods = self.cache.pods_of_claim(key);
        if let Some(uid) = self.cache.remove_claim(key).and_then(|claim| claim.metadata.uid) {
            self.update_in_use(&uid, key);
        }
        pods.iter().for_each(|pod| self.enqueue_pod(pod));
    }

    /// Updates the devices in use by a claim's allocation in the cache.
    fn update_in_use(&mut self, uid: &str, key: &Key) {
        let claim = self.cache.claims.get(key).filter(|claim| claim.metadata.uid.as_deref() == Some(uid));
        let allocation = claim.and_then(|claim| claim.status.as_ref()?.allocation.clone());
        // While the allocation is being written, the cache is older than the decision.
        if allocation.is_none() && claim.is_some() && self.claims_in_flight.contains(key) {
            return;
        }
        let freed = allocation.is_none();
        if self.in_use.set(uid, allocation.as_ref()) && freed {
            self.retry_unschedulable();
        }
    }

    fn job_finished(&mut self, outcome: JobOutcome) {
        for key in &outcome.claims {
            self.claims_in_flight.remove(key);
        }
        if let Some(key) = &outcome.pod {
            self.pods_in_flight.remove(key);
        }
        for observed in outcome.observed {
            match observed {
                // The watch may have reported the deletion meanwhile.
                Observed::Pod(pod) if !self.cache.pods.contains_key(&Key::of(&pod.metadata)) => {}
                Observed::Claim(claim) if is_gone(&self.cache, &outcome.claims, &claim) => {}
                Observed::Pod(pod) => self.pod_applied(*pod),
                Observed::PodGone(key) => self.pod_gone(&key, None),
                Observed::Bound(key) => {
                    let spec = self.cache.pods.get_mut(&key).and_then(|pod| pod.spec.as_mut());
                    spec.into_iter().for_each(|spec| spec.node_name = Some(self.jobs.node_name.clone()));
                }
                Observed::Claim(claim) => self.claim_applied(*claim),
                Observed::ClaimGone(key) => self.claim_gone(&key, None),
                Observed::ClaimDeleted(key) => {
                    self.cache.mark_claim_deleted(&key);
                    self.claim_gone(&key, None);
                }
            }
        }
        // Devices of an allocation that was not written are free again.
        for key in &outcome.claims {
            // Its events were ignored while the job ran.
            self.dirty_claims.insert(key.clone());
            if let Some(uid) = self.cache.claims.get(key).and_then(|claim| claim.metadata.uid.clone()) {
                self.update_in_use(&uid, key);
            }
            self.cache.pods_of_claim(key).iter().for_each(|pod| self.enqueue_pod(pod));
        }
        let Some(subject) = outcome.pod.or_else(|| outcome.claims.first().cloned()) else { return };
        let Some(error) = outcome.error else {
            self.failures.remove(&subject);
            return self.enqueue_pod_or_claim(subject);
        };
        let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
        let first = !self.failures.contains_key(&subject);
        let delay = self.failures.entry(subject.clone()).or_insert_with(|| RETRY.retry()).next_delay();
        if first && matches!(code, 404 | 409) {
            // Another client was faster; the job has read the objects again.
            tracing::debug!(%subject, %error, "scheduler request conflicted, retrying with the current objects");
            return self.enqueue_pod_or_claim(subject);
        }
        tracing::warn!(%subject, %error, ?delay, "scheduler request failed, retrying");
        self.retries.spawn(async move {
            tokio::time::sleep(delay).await;
            subject
        });
    }
}

/// Reports whether a job was about a claim that is gone. Claims that a job created are not in the cache yet.
fn is_gone(cache: &Cache, subjects: &[Key], claim: &ResourceClaim) -> bool {
    let key = Key::of(&claim.metadata);
    subjects.contains(&key) && !cache.claims.contains_key(&key)
}
