//! The cache of API objects, from watches and from the answers to our own writes, with the indexes that decisions need.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation of a generated claim that names the pod's claim it was generated for.
pub(super) const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// An object's namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The cached objects.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) pods: HashMap<Key, Pod>,
    pub(super) claims: HashMap<Key, ResourceClaim>,
    pub(super) templates: HashMap<Key, ResourceClaimTemplate>,
    pub(super) classes: BTreeMap<String, DeviceClass>,
    pub(super) slices: BTreeMap<String, ResourceSlice>,
    pub(super) node: Option<Node>,
    /// The pods that refer to a claim, in their spec or status.
    pods_of_claim: HashMap<Key, BTreeSet<Key>>,
    /// The claims that are owned by a pod or reserved for it, by the pod's UID.
    claims_of_pod: HashMap<String, BTreeSet<Key>>,
    /// The UIDs of deleted claims that the watch may still report as they were before.
    deleted: HashSet<String>,
}

impl Cache {
    /// Stores a pod; returns whether it is newer than the cached one.
    pub(super) fn apply_pod(&mut self, pod: Pod) -> bool {
        let key = Key::of(&pod.metadata);
        if self.pods.get(&key).is_some_and(|known| !is_newer(&pod.metadata, &known.metadata)) {
            return false;
        }
        self.remove_pod(&key);
        for claim in claims_named_by(&pod) {
            self.pods_of_claim.entry(claim).or_default().insert(key.clone());
        }
        self.pods.insert(key, pod);
        true
    }

    pub(super) fn remove_pod(&mut self, key: &Key) -> Option<Pod> {
        let pod = self.pods.remove(key)?;
        for claim in claims_named_by(&pod) {
            if let Some(pods) = self.pods_of_claim.get_mut(&claim) {
                pods.remove(key);
                if pods.is_empty() {
                    self.pods_of_claim.remove(&claim);
                }
            }
        }
        Some(pod)
    }

    /// Stores a claim; returns whether it is newer than the cached one.
    pub(super) fn apply_claim(&mut self, claim: ResourceClaim) -> bool {
        let key = Key::of(&claim.metadata);
        let deleted = claim.metadata.uid.as_ref().is_some_and(|uid| self.deleted.contains(uid));
        if deleted || self.claims.get(&key).is_some_and(|known| !is_newer(&claim.metadata, &known.metadata)) {
            return false;
        }
        self.remove_claim(&key);
        for uid in pods_in(&claim) {
            self.claims_of_pod.entry(uid).or_default().insert(key.clone());
        }
        self.claims.insert(key, claim);
        true
    }

    /// Marks a claim as deleted, so that later events of the watch do not bring it back.
    pub(super) fn mark_claim_deleted(&mut self, key: &Key) {
        self.deleted.extend(self.claims.get(key).and_then(|claim| claim.metadata.uid.clone()));
    }

    /// Removes the mark of a deleted claim, after the watch has reported the deletion.
    pub(super) fn forget_deleted_claim(&mut self, uid: Option<&str>) {
        match uid {
            Some(uid) => drop(self.deleted.remove(uid)),
            None => self.deleted.clear(),
        }
    }

    /// Removes all marks of deleted claims, after the watch has listed all claims.
    pub(super) fn forget_deleted_claims(&mut self) {
        self.deleted.clear();
    }

    pub(super) fn remove_claim(&mut self, key: &Key) -> Option<ResourceClaim> {
        let claim = self.claims.remove(key)?;
        for uid in pods_in(&claim) {
            if let Some(claims) = self.claims_of_pod.get_mut(&uid) {
                claims.remove(key);
                if claims.is_empty() {
                    self.claims_of_pod.remove(&uid);
                }
            }
        }
        Some(claim)
    }

    /// Returns the pods that a change of the claim can affect.
    pub(super) fn pods_of_claim(&self, key: &Key) -> Vec<Key> {
        let owner = self.claims.get(key).and_then(owning_pod).map(|(name, _)| Key::new(&key.namespace, name));
        let named = self.pods_of_claim.get(key).into_iter().flatten().cloned();
        named.chain(owner).collect()
    }

    /// Returns the claims that are owned by the pod or reserved for it.
    pub(super) fn claims_of_pod(&self, uid: &str) -> Vec<Key> {
        self.claims_of_pod.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Returns the claim that was generated for one of the pod's claims.
    pub(super) fn generated_claim(&self, pod_uid: &str, pod_claim_name: &str) -> Option<&ResourceClaim> {
        let claims = self.claims_of_pod.get(pod_uid)?.iter().filter_map(|key| self.claims.get(key));
        let mut generated = claims.filter(|claim| {
            let annotations = claim.metadata.annotations.as_ref();
            owning_pod(claim).is_some_and(|(_, uid)| uid == pod_uid)
                && annotations.and_then(|all| all.get(POD_CLAIM_NAME)).is_some_and(|name| name == pod_claim_name)
                && claim.metadata.deletion_timestamp.is_none()
        });
        generated.next()
    }

    /// Returns whether the pod exists and may still need the claims that are reserved for it.
    pub(super) fn pod_state(&self, key: &Key, uid: &str) -> PodState {
        match self.pods.get(key) {
            None => PodState::Unknown,
            Some(pod) if pod.metadata.uid.as_deref() != Some(uid) || is_done(pod) => PodState::Done,
            Some(_) => PodState::Live,
        }
    }
}

/// The state of a pod that a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    Live,
    /// The pod is done, or replaced by another of the same name.
    Done,
    /// The pod does not exist, or has not been seen yet.
    Unknown,
}

/// Reports whether a pod has ended, or was deleted before it was bound.
pub(super) fn is_done(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let never_started = pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none();
    matches!(phase, Some("Succeeded" | "Failed")) || never_started
}

/// Returns the node that a pod is bound to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns the name and UID of the pod that a claim was generated for.
pub(super) fn owning_pod(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut owners =
        owners.filter(|owner| owner.kind == "Pod" && owner.api_version == "v1" && owner.controller == Some(true));
    owners.next().map(|owner| (owner.name.as_str(), owner.uid.as_str()))
}

fn pods_in(claim: &ResourceClaim) -> BTreeSet<String> {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let reserved = reserved.filter(|consumer| consumer.resource == "pods").map(|consumer| consumer.uid.clone());
    reserved.chain(owning_pod(claim).map(|(_, uid)| uid.to_owned())).collect()
}

fn claims_named_by(pod: &Pod) -> Vec<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let spec = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let status = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let names = spec.filter_map(|claim| claim.resource_claim_name.as_deref());
    names
        .chain(status.filter_map(|claim| claim.resource_claim_name.as_deref()))
        .map(|name| Key::new(namespace, name))
        .collect()
}

/// Reports whether an object is newer than the cached one. Versions of the same object can be compared as numbers.
fn is_newer(metadata: &ObjectMeta, known: &ObjectMeta) -> bool {
    let number =
        |metadata: &ObjectMeta| metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
    match (number(metadata), number(known)) {
        (Some(new), Some(old)) => new > old,
        _ => true,
    }
}
