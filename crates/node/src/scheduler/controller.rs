//! The one task that decides: it takes in what changed, and starts jobs for what follows from that.
//!
//! Only this task touches the cache. A pod and the claims that a job writes are left alone until the job is done.
//! Devices of an allocation that is being written count as taken from the moment of the decision.

use std::collections::{BTreeSet, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::RETRY;
use super::allocator::{InUse, Inventory};
use super::cache::{Cache, Key, is_done};
use super::job::{Done, Fresh, Jobs};
use super::node::NodeInfo;
use super::watch::Change;
use drakkar_client::Retry;

/// How many jobs may be on their way at once.
const MAX_JOBS: usize = 32;
/// How many collections are watched.
const COLLECTIONS: usize = 6;

/// What watches tell.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each is taken apart at once")]
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
    /// What there is on the node; nothing if that must be looked up again.
    pub(super) inventory: Option<Inventory>,
    pub(super) node: NodeInfo,
    /// Pods in the order in which they were first seen, and those that must be looked at.
    order: HashMap<Key, u64>,
    seen: u64,
    dirty_pods: BTreeSet<(u64, Key)>,
    pub(super) dirty_claims: BTreeSet<Key>,
    /// Pods for which there was nothing, to be looked at again when something is freed or added.
    pub(super) waiting: BTreeSet<Key>,
    /// What was refused since the world last changed for the better: the same would be refused again.
    pub(super) refused: HashMap<String, String>,
    pub(super) busy_pods: HashSet<Key>,
    pub(super) busy_claims: HashSet<Key>,
    failures: HashMap<Key, Retry>,
    listed: HashSet<&'static str>,
    pub(super) running: JoinSet<Done>,
    pauses: JoinSet<Key>,
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
            waiting: BTreeSet::new(),
            refused: HashMap::new(),
            busy_pods: HashSet::new(),
            busy_claims: HashSet::new(),
            failures: HashMap::new(),
            listed: HashSet::new(),
            running: JoinSet::new(),
            pauses: JoinSet::new(),
        }
    }

    /// Works until the watches are gone.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.take(event);
                    // What came meanwhile is one change for all decisions.
                    while let Ok(event) = events.try_recv() {
                        self.take(event);
                    }
                }
                Some(done) = self.running.join_next() => match done {
                    Ok(done) => self.finish(done),
                    Err(error) => tracing::error!(%error, "a job of the scheduler broke off"),
                },
                Some(Ok(key)) = self.pauses.join_next() => self.look_at_pod_or_claim(key),
            }
            if self.listed.len() == COLLECTIONS {
                self.work();
            }
        }
    }

    /// Decides as long as there is something to decide and room for jobs.
    fn work(&mut self) {
        while self.running.len() < MAX_JOBS {
            if let Some(key) = self.dirty_claims.pop_first() {
                self.consider_claim(&key);
            } else if let Some((_, key)) = self.dirty_pods.pop_first() {
                self.consider_pod(&key);
            } else {
                return;
            }
        }
    }

    pub(super) fn look_at_pod(&mut self, key: &Key) {
        if self.cache.pods.contains_key(key) {
            let order = *self.order.entry(key.clone()).or_insert_with(|| {
                self.seen += 1;
                self.seen
            });
            self.dirty_pods.insert((order, key.clone()));
        }
    }

    fn look_at_pod_or_claim(&mut self, key: Key) {
        self.look_at_pod(&key);
        self.dirty_claims.insert(key);
    }

    /// Something may be had now that could not be had before.
    pub(super) fn world_got_better(&mut self) {
        self.refused.clear();
        for key in std::mem::take(&mut self.waiting) {
            self.look_at_pod(&key);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Pods(Change::All(pods)) => {
                self.listed.insert("pods");
                let known: HashSet<_> = pods.iter().map(|pod| Key::of(&pod.metadata)).collect();
                let gone: Vec<_> = self.cache.pods.keys().filter(|key| !known.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.pod_gone(key, None));
                pods.into_iter().for_each(|pod| self.pod_applied(pod));
            }
            Event::Pods(Change::Applied(pod)) => self.pod_applied(pod),
            Event::Pods(Change::Gone(pod)) => self.pod_gone(&Key::of(&pod.metadata), pod.metadata.uid.as_deref()),
            Event::Claims(Change::All(claims)) => {
                self.listed.insert("claims");
                self.cache.watch_knows_deleted(None);
                let known: HashSet<_> = claims.iter().map(|claim| Key::of(&claim.metadata)).collect();
                let gone: Vec<_> = self.cache.claims.keys().filter(|key| !known.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.claim_gone(key, None));
                claims.into_iter().for_each(|claim| self.claim_applied(claim));
            }
            Event::Claims(Change::Applied(claim)) => self.claim_applied(claim),
            Event::Claims(Change::Gone(claim)) => {
                self.cache.watch_knows_deleted(claim.metadata.uid.as_ref());
                self.claim_gone(&Key::of(&claim.metadata), claim.metadata.uid.as_deref());
            }
            Event::Templates(change) => {
                self.listed.insert("templates");
                let templates = &mut self.cache.templates;
                match change {
                    Change::All(all) => *templates = all.into_iter().map(|one| (Key::of(&one.metadata), one)).collect(),
                    Change::Applied(one) => drop(templates.insert(Key::of(&one.metadata), one)),
                    Change::Gone(one) => drop(templates.remove(&Key::of(&one.metadata))),
                }
                self.world_got_better();
            }
            Event::Classes(change) => {
                self.listed.insert("classes");
                let classes = &mut self.cache.classes;
                match change {
                    Change::All(all) => {
                        *classes = all.into_iter().map(|one| (Key::of(&one.metadata).name, one)).collect();
                    }
                    Change::Applied(one) => drop(classes.insert(Key::of(&one.metadata).name, one)),
                    Change::Gone(one) => drop(classes.remove(&Key::of(&one.metadata).name)),
                }
                self.world_got_better();
            }
            Event::Slices(change) => {
                self.listed.insert("slices");
                let slices = &mut self.cache.slices;
                match change {
                    Change::All(all) => {
                        *slices = all.into_iter().map(|one| (Key::of(&one.metadata).name, one)).collect();
                    }
                    Change::Applied(one) => drop(slices.insert(Key::of(&one.metadata).name, one)),
                    Change::Gone(one) => drop(slices.remove(&Key::of(&one.metadata).name)),
                }
                self.inventory = None;
                self.world_got_better();
            }
            Event::Nodes(change) => self.node_changed(change),
        }
    }

    fn node_changed(&mut self, change: Change<Node>) {
        self.listed.insert("nodes");
        self.cache.node = match change {
            Change::All(nodes) => nodes.into_iter().next(),
            Change::Applied(node) => Some(node),
            Change::Gone(_) => None,
        };
        let node = NodeInfo::new(&self.jobs.node_name, self.cache.node.as_ref());
        // Heartbeats change nodes all the time.
        if node != self.node {
            self.node = node;
            self.inventory = None;
            self.world_got_better();
        }
    }

    pub(super) fn pod_applied(&mut self, pod: Pod) {
        let (key, over) = (Key::of(&pod.metadata), is_done(&pod));
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let replaced =
            self.cache.pods.get(&key).and_then(|known| known.metadata.uid.clone()).filter(|known| *known != uid);
        if self.cache.apply_pod(pod) {
            for uid in replaced.into_iter().chain(over.then_some(uid)) {
                self.dirty_claims.extend(self.cache.claims_of_pod(&uid));
            }
            self.look_at_pod(&key);
        }
    }

    /// There is no pod of that name; or, if a UID is given, not that one: its name can be another's by now.
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
        self.waiting.remove(key);
        self.failures.remove(key);
    }

    fn claim_applied(&mut self, claim: ResourceClaim) {
        let (key, uid) = (Key::of(&claim.metadata), claim.metadata.uid.clone().unwrap_or_default());
        let before = self.cache.claims.get(&key).and_then(|known| known.metadata.uid.clone());
        if !self.cache.apply_claim(claim) {
            return;
        }
        if let Some(before) = before.filter(|before| *before != uid) {
            self.note_use(&before, &key);
        }
        self.note_use(&uid, &key);
        self.dirty_claims.insert(key.clone());
        self.cache.pods_of_claim(&key).iter().for_each(|pod| self.look_at_pod(pod));
    }

    /// There is no claim of that name; or, if a UID is given, not that one.
    fn claim_gone(&mut self, key: &Key, uid: Option<&str>) {
        let known = self.cache.claims.get(key).and_then(|claim| claim.metadata.uid.as_deref());
        if uid.is_some() && known != uid {
            return;
        }
        let pods = self.cache.pods_of_claim(key);
        if let Some(uid) = self.cache.remove_claim(key).and_then(|claim| claim.metadata.uid) {
            self.note_use(&uid, key);
        }
        pods.iter().for_each(|pod| self.look_at_pod(pod));
    }

    /// Counts what the claim of that UID has by what is known of it.
    fn note_use(&mut self, uid: &str, key: &Key) {
        let claim = self.cache.claims.get(key).filter(|claim| claim.metadata.uid.as_deref() == Some(uid));
        let allocation = claim.and_then(|claim| claim.status.as_ref()?.allocation.clone());
        // While it is written, what is known is older than the decision.
        if allocation.is_none() && claim.is_some() && self.busy_claims.contains(key) {
            return;
        }
        let freed = allocation.is_none();
        if self.in_use.set(uid, allocation.as_ref()) && freed {
            self.world_got_better();
        }
    }

    fn finish(&mut self, done: Done) {
        for key in &done.claims {
            self.busy_claims.remove(key);
        }
        if let Some(key) = &done.pod {
            self.busy_pods.remove(key);
        }
        for fresh in done.fresh {
            match fresh {
                // What the watch knows to be gone by now stays gone.
                Fresh::Pod(pod) if !self.cache.pods.contains_key(&Key::of(&pod.metadata)) => {}
                Fresh::Claim(claim) if is_gone(&self.cache, &done.claims, &claim) => {}
                Fresh::Pod(pod) => self.pod_applied(*pod),
                Fresh::PodGone(key) => self.pod_gone(&key, None),
                Fresh::Bound(key) => {
                    let spec = self.cache.pods.get_mut(&key).and_then(|pod| pod.spec.as_mut());
                    spec.into_iter().for_each(|spec| spec.node_name = Some(self.jobs.node_name.clone()));
                }
                Fresh::Claim(claim) => self.claim_applied(*claim),
                Fresh::ClaimGone(key) => self.claim_gone(&key, None),
                Fresh::ClaimDeleted(key) => {
                    self.cache.claim_is_deleted(&key);
                    self.claim_gone(&key, None);
                }
            }
        }
        // What was decided and not written is not taken after all.
        for key in &done.claims {
            // What happened to it meanwhile was left for now.
            self.dirty_claims.insert(key.clone());
            if let Some(uid) = self.cache.claims.get(key).and_then(|claim| claim.metadata.uid.clone()) {
                self.note_use(&uid, key);
            }
            self.cache.pods_of_claim(key).iter().for_each(|pod| self.look_at_pod(pod));
        }
        let Some(subject) = done.pod.or_else(|| done.claims.first().cloned()) else { return };
        let Some(error) = done.error else {
            self.failures.remove(&subject);
            return self.look_at_pod_or_claim(subject);
        };
        let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
        let first = !self.failures.contains_key(&subject);
        let pause = self.failures.entry(subject.clone()).or_insert_with(|| RETRY.retry()).next_delay();
        if first && matches!(code, 404 | 409) {
            // Somebody else was faster; what there is now is known.
            tracing::debug!(%subject, %error, "tried again with the objects as they are now");
            return self.look_at_pod_or_claim(subject);
        }
        tracing::warn!(%subject, %error, "a request of the scheduler failed, and is tried again in {pause:?}");
        self.pauses.spawn(async move {
            tokio::time::sleep(pause).await;
            subject
        });
    }
}

/// Whether a job was about a claim that is not there any more. Claims that a job made are not known yet.
fn is_gone(cache: &Cache, subjects: &[Key], claim: &ResourceClaim) -> bool {
    let key = Key::of(&claim.metadata);
    subjects.contains(&key) && !cache.claims.contains_key(&key)
}
