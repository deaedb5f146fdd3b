//! What is known of the API server's objects, from watches and from the answers to our own writes, with the indexes that
//! decisions need.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation by which a generated claim says for which of the pod's claims it is.
pub(super) const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Namespace and name of an object.
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

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) pods: HashMap<Key, Pod>,
    pub(super) claims: HashMap<Key, ResourceClaim>,
    pub(super) templates: HashMap<Key, ResourceClaimTemplate>,
    pub(super) classes: BTreeMap<String, DeviceClass>,
    pub(super) slices: BTreeMap<String, ResourceSlice>,
    pub(super) node: Option<Node>,
    /// The pods that name a claim, or have got it generated.
    pods_of_claim: HashMap<Key, BTreeSet<Key>>,
    /// The claims that are owned by a pod or reserved for it, by the UID of the pod.
    claims_of_pod: HashMap<String, BTreeSet<Key>>,
    /// The UIDs of claims that are deleted, but may still come from the watch as they were before.
    deleted: HashSet<String>,
}

impl Cache {
    /// Takes a pod; says whether it is newer than what was known.
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

    /// Takes a claim; says whether it is newer than what was known.
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

    /// Takes a claim as deleted, whatever the watch still tells.
    pub(super) fn claim_is_deleted(&mut self, key: &Key) {
        self.deleted.extend(self.claims.get(key).and_then(|claim| claim.metadata.uid.clone()));
    }

    /// The watch knows now that the claim is deleted, or lists all that there are.
    pub(super) fn watch_knows_deleted(&mut self, uid: Option<&String>) {
        match uid {
            Some(uid) => drop(self.deleted.remove(uid)),
            None => self.deleted.clear(),
        }
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

    /// The pods that a change of the claim can matter to.
    pub(super) fn pods_of_claim(&self, key: &Key) -> Vec<Key> {
        let owner = self.claims.get(key).and_then(owning_pod).map(|(name, _)| Key::new(&key.namespace, name));
        let named = self.pods_of_claim.get(key).into_iter().flatten().cloned();
        named.chain(owner).collect()
    }

    /// The claims that are owned by the pod or reserved for it.
    pub(super) fn claims_of_pod(&self, uid: &str) -> Vec<Key> {
        self.claims_of_pod.get(uid).into_iter().flatten().cloned().collect()
    }

    /// The claim that was generated for one of the pod's claims.
    pub(super) fn generated_claim(&self, pod_uid: &str, pod_claim_name: &str) -> Option<&ResourceClaim> {
        let claims = self.claims_of_pod.get(pod_uid)?.iter().filter_map(|key| self.claims.get(key));
        let mut fitting = claims.filter(|claim| {
            let annotations = claim.metadata.annotations.as_ref();
            owning_pod(claim).is_some_and(|(_, uid)| uid == pod_uid)
                && annotations.and_then(|all| all.get(POD_CLAIM_NAME)).is_some_and(|name| name == pod_claim_name)
                && claim.metadata.deletion_timestamp.is_none()
        });
        fitting.next()
    }

    /// Whether a pod is there, is this one, and may still need what is reserved for it.
    pub(super) fn needs_claims(&self, key: &Key, uid: &str) -> PodState {
        match self.pods.get(key) {
            None => PodState::Unknown,
            Some(pod) if pod.metadata.uid.as_deref() != Some(uid) || is_done(pod) => PodState::Done,
            Some(_) => PodState::Live,
        }
    }
}

/// What is known of a pod that a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    Live,
    /// It is over, or replaced by another.
    Done,
    /// There is none, or none was seen yet.
    Unknown,
}

/// Whether a pod will not run (any more).
pub(super) fn is_done(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let never_started = pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none();
    matches!(phase, Some("Succeeded" | "Failed")) || never_started
}

/// The node that a pod is bound to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Name and UID of the pod that a claim was generated for.
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

/// Whether an object is a later one than what is known. Versions are numbers, and only of the same object comparable.
fn is_newer(metadata: &ObjectMeta, known: &ObjectMeta) -> bool {
    let number =
        |metadata: &ObjectMeta| metadata.resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
    match (number(metadata), number(known)) {
        (Some(new), Some(old)) => new > old,
        _ => true,
    }
}
