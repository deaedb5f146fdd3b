//! Jobs: the API requests that follow from decisions. A job is about one pod or one claim. It ends when all its writes
//! succeeded, or when it has read its objects again after a failure: no decision is based on a guess.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::RETRY;
use super::cache::{Key, PodState, is_done, owning_pod};

/// The finalizer that protects an allocated claim from deletion.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// What a job learned about an object.
#[derive(Debug)]
pub(super) enum Observed {
    Pod(Box<Pod>),
    PodGone(Key),
    /// The pod was bound to the node.
    Bound(Key),
    Claim(Box<ResourceClaim>),
    ClaimGone(Key),
    /// The job deleted the claim; the watch may not have reported it yet.
    ClaimDeleted(Key),
}

/// The result of a job.
#[derive(Debug)]
pub(super) struct JobOutcome {
    pub(super) pod: Option<Key>,
    pub(super) claims: Vec<Key>,
    pub(super) observed: Vec<Observed>,
    pub(super) error: Option<kube::Error>,
}

/// A write to a claim for a pod: an allocation with a reservation, or only a reservation.
#[derive(Debug)]
pub(super) struct ClaimWrite {
    pub(super) claim: ResourceClaim,
    pub(super) allocation: Option<AllocationResult>,
}

/// Starts jobs with a client of the API server.
#[derive(Clone)]
pub(super) struct Jobs {
    pub(super) client: Client,
    pub(super) node_name: String,
}

impl Jobs {
    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates claims for a pod, each with the name of the pod's claim, and records them in the pod's status.
    pub(super) async fn generate(
        self,
        pod: Pod,
        claims: Vec<(String, ResourceClaim)>,
        mut statuses: Vec<PodResourceClaimStatus>,
    ) -> JobOutcome {
        let key = Key::of(&pod.metadata);
        let mut observed = Vec::new();
        let result = async {
            for (name, claim) in &claims {
                let created = self.claims(&key.namespace).create(&PostParams::default(), claim).await?;
                statuses.retain(|status| status.name != *name);
                let resource_claim_name = created.metadata.name.clone();
                statuses.push(PodResourceClaimStatus { name: name.clone(), resource_claim_name });
                observed.push(Observed::Claim(Box::new(created)));
            }
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses}});
            self.patch_pod_status(&key, patch).await.map(|pod| observed.push(Observed::Pod(Box::new(pod))))
        };
        let error = result.await.err();
        self.finish(Some(key), Vec::new(), observed, error).await
    }

    /// Writes claims for a pod, and then binds the pod if asked to.
    pub(super) async fn reserve_and_bind(self, pod: Pod, writes: Vec<ClaimWrite>, bind: bool) -> JobOutcome {
        let key = Key::of(&pod.metadata);
        let claims = writes.iter().map(|write| Key::of(&write.claim.metadata)).collect();
        let mut observed = Vec::new();
        let result = async {
            for ClaimWrite { claim, allocation } in &writes {
                let claim = self.reserve(claim, allocation.as_ref(), &pod).await?;
                observed.push(Observed::Claim(Box::new(claim)));
            }
            if bind {
                self.bind(&key, &pod).await?;
                observed.push(Observed::Bound(key.clone()));
            }
            Ok(())
        };
        let error = result.await.err();
        self.finish(Some(key), claims, observed, error).await
    }

    /// Replaces the conditions in a pod's status.
    pub(super) async fn report(self, pod: Pod, conditions: Value) -> JobOutcome {
        let key = Key::of(&pod.metadata);
        let uid = &pod.metadata.uid;
        let version = &pod.metadata.resource_version;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"conditions": conditions}});
        let (observed, error) = match self.patch_pod_status(&key, patch).await {
            Ok(pod) => (vec![Observed::Pod(Box::new(pod))], None),
            Err(error) => (Vec::new(), Some(error)),
        };
        self.finish(Some(key), Vec::new(), observed, error).await
    }

    /// Removes the reservations of pods that are done from a claim, or all of them with `free`. A claim without reservations
    /// loses its allocation, and a generated claim whose pod is done is deleted.
    pub(super) async fn release(
        self,
        claim: ResourceClaim,
        keep: Vec<Reservation>,
        owner: PodState,
        free: bool,
    ) -> JobOutcome {
        let key = Key::of(&claim.metadata);
        let mut observed = Vec::new();
        let result = self.try_release(claim, keep, owner, free, &mut observed).await;
        self.finish(None, vec![key], observed, result.err()).await
    }

    async fn try_release(
        &self,
        mut claim: ResourceClaim,
        keep: Vec<Reservation>,
        owner: PodState,
        free: bool,
        observed: &mut Vec<Observed>,
    ) -> kube::Result<()> {
        let key = Key::of(&claim.metadata);
        let before = reserved_for(&claim).len();
        let mut remaining = Vec::new();
        let mut done = HashSet::new();
        for Reservation { consumer, state } in keep {
            if state == PodState::Unknown && self.is_pod_done(&key.namespace, &consumer.name, &consumer.uid).await? {
                done.insert(consumer.uid);
            } else if !free {
                remaining.push(consumer);
            }
        }
        let unused = remaining.is_empty() && (before > 0 || free || claim.metadata.deletion_timestamp.is_some());
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        if remaining.len() < before || (unused && allocated) {
            let status = if remaining.is_empty() {
                json!({"reservedFor": null, "allocation": null})
            } else {
                json!({"reservedFor": remaining})
            };
            claim = self.patch_claim_status(&claim, status).await?;
            observed.push(Observed::Claim(Box::new(claim.clone())));
        }
        if unused && has_finalizer(&claim) {
            let others: Vec<_> = claim.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
            let patch = patch_of(&claim.metadata, json!({"finalizers": others}), None);
            claim = self.claims(&key.namespace).patch(&key.name, &PatchParams::default(), &patch).await?;
            observed.push(Observed::Claim(Box::new(claim.clone())));
        }
        if !remaining.is_empty() || free || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let orphan = match (owner, owning_pod(&claim)) {
            (PodState::Done, Some(_)) => true,
            (PodState::Unknown, Some((name, uid))) => {
                done.contains(uid) || self.is_pod_done(&key.namespace, name, uid).await?
            }
            (PodState::Live, _) | (_, None) => false,
        };
        if orphan {
            let preconditions = Some(Preconditions { uid: claim.metadata.uid.clone(), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let answer = self.claims(&key.namespace).delete(&key.name, &parameters).await?;
            // The answer can be the claim as it was; it still exists only if it has another finalizer.
            let protected = answer.left().filter(|claim| claim.metadata.finalizers.iter().flatten().next().is_some());
            observed
                .push(protected.map_or_else(|| Observed::ClaimDeleted(key), |claim| Observed::Claim(Box::new(claim))));
        }
        Ok(())
    }

    /// Asks the API server whether the pod does not exist, or will not run again.
    async fn is_pod_done(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<bool> {
        let pod = self.pods(namespace).get_opt(name).await?;
        Ok(pod.is_none_or(|pod| pod.metadata.uid.as_deref() != Some(uid) || is_done(&pod)))
    }

    /// Writes a reservation. Sets the finalizer before an allocation, so that an allocated claim always has it.
    async fn reserve(
        &self,
        claim: &ResourceClaim,
        allocation: Option<&AllocationResult>,
        pod: &Pod,
    ) -> kube::Result<ResourceClaim> {
        let key = Key::of(&claim.metadata);
        let mut claim = claim.clone();
        if allocation.is_some() && !has_finalizer(&claim) {
            let mut finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(FINALIZER.to_owned());
            let patch = patch_of(&claim.metadata, json!({"finalizers": finalizers}), None);
            claim = self.claims(&key.namespace).patch(&key.name, &PatchParams::default(), &patch).await?;
        }
        let mut consumers = reserved_for(&claim).to_vec();
        consumers.push(ResourceClaimConsumerReference {
            api_group: None,
            name: pod.metadata.name.clone().unwrap_or_default(),
            resource: "pods".to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        });
        let mut status = json!({"reservedFor": consumers});
        if let Some(allocation) = allocation {
            status["allocation"] = serde_json::to_value(allocation).map_err(kube::Error::SerdeError)?;
        }
        self.patch_claim_status(&claim, status).await
    }

    async fn bind(&self, key: &Key, pod: &Pod) -> kube::Result<()> {
        let metadata = ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        };
        let target = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.node_name.clone()),
            ..ObjectReference::default()
        };
        let binding = Binding { metadata, target };
        let pods = self.pods(&key.namespace);
        pods.create_subresource::<_, Status>("binding", &key.name, &PostParams::default(), &binding).await.map(drop)
    }

    async fn patch_pod_status(&self, key: &Key, patch: Value) -> kube::Result<Pod> {
        self.pods(&key.namespace).patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await
    }

    async fn patch_claim_status(&self, claim: &ResourceClaim, status: Value) -> kube::Result<ResourceClaim> {
        let key = Key::of(&claim.metadata);
        let patch = patch_of(&claim.metadata, json!({}), Some(status));
        self.claims(&key.namespace).patch_status(&key.name, &PatchParams::default(), &patch).await
    }

    /// Ends a job. After an error, reads its objects again, and retries that until it succeeds.
    async fn finish(
        self,
        pod: Option<Key>,
        claims: Vec<Key>,
        mut observed: Vec<Observed>,
        error: Option<kube::Error>,
    ) -> JobOutcome {
        if error.is_some() {
            if let Some(key) = &pod {
                let found = retry_until_ok(|| async { self.pods(&key.namespace).get_opt(&key.name).await }).await;
                observed.push(found.map_or_else(|| Observed::PodGone(key.clone()), |pod| Observed::Pod(Box::new(pod))));
            }
            for key in &claims {
                let found = retry_until_ok(|| async { self.claims(&key.namespace).get_opt(&key.name).await }).await;
                observed.push(
                    found.map_or_else(|| Observed::ClaimGone(key.clone()), |claim| Observed::Claim(Box::new(claim))),
                );
            }
        }
        JobOutcome { pod, claims, observed, error }
    }
}

/// A consumer of a claim, with the state of its pod.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) consumer: ResourceClaimConsumerReference,
    pub(super) state: PodState,
}

pub(super) fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

pub(super) fn has_finalizer(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

/// Returns a patch of exactly this version of an object: if the object has changed, the server answers with a conflict.
fn patch_of(metadata: &ObjectMeta, mut changes: Value, status: Option<Value>) -> Patch<Value> {
    changes["uid"] = json!(metadata.uid);
    changes["resourceVersion"] = json!(metadata.resource_version);
    let mut patch = json!({"metadata": changes});
    if let Some(status) = status {
        patch["status"] = status;
    }
    Patch::Merge(patch)
}

async fn retry_until_ok<T, F: Future<Output = kube::Result<T>>>(request: impl Fn() -> F) -> T {
    let mut retry = RETRY.retry();
    loop {
        match request().await {
            Ok(answer) => return answer,
            Err(error) => tracing::debug!(%error, "reading an object failed, retrying"),
        }
        retry.wait().await;
    }
}
