//! The requests that decisions lead to. A job is about one pod or one claim; it ends when all its writes are through, or
//! when after a failure it is known again how its objects are: nobody decides upon guesses.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::RETRY;
use super::cache::{Key, PodState, is_done, owning_pod};

/// The finalizer that keeps an allocated claim from vanishing.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// What a job found out.
#[derive(Debug)]
pub(super) enum Fresh {
    Pod(Box<Pod>),
    PodGone(Key),
    /// The pod was bound to the node.
    Bound(Key),
    Claim(Box<ResourceClaim>),
    ClaimGone(Key),
    /// The claim was deleted by the job, of which the watch may not know yet.
    ClaimDeleted(Key),
}

/// The end of a job.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) pod: Option<Key>,
    pub(super) claims: Vec<Key>,
    pub(super) fresh: Vec<Fresh>,
    pub(super) error: Option<kube::Error>,
}

/// A claim that is to be written for a pod: with an allocation, or else with one more reservation.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) claim: ResourceClaim,
    pub(super) allocation: Option<AllocationResult>,
}

/// The way to the API server.
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

    /// Creates claims for a pod, each with the name of the pod's claim that it is for, and notes all in the pod's status.
    pub(super) async fn generate(
        self,
        pod: Pod,
        claims: Vec<(String, ResourceClaim)>,
        mut statuses: Vec<PodResourceClaimStatus>,
    ) -> Done {
        let key = Key::of(&pod.metadata);
        let mut fresh = Vec::new();
        let result = async {
            for (name, claim) in &claims {
                let created = self.claims(&key.namespace).create(&PostParams::default(), claim).await?;
                statuses.retain(|status| status.name != *name);
                let resource_claim_name = created.metadata.name.clone();
                statuses.push(PodResourceClaimStatus { name: name.clone(), resource_claim_name });
                fresh.push(Fresh::Claim(Box::new(created)));
            }
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses}});
            self.patch_pod_status(&key, patch).await.map(|pod| fresh.push(Fresh::Pod(Box::new(pod))))
        };
        let error = result.await.err();
        self.settle(Some(key), Vec::new(), fresh, error).await
    }

    /// Writes claims for a pod, and then binds the pod if it is time for that.
    pub(super) async fn place(self, pod: Pod, writes: Vec<Write>, bind: bool) -> Done {
        let key = Key::of(&pod.metadata);
        let claims = writes.iter().map(|write| Key::of(&write.claim.metadata)).collect();
        let mut fresh = Vec::new();
        let result = async {
            for Write { claim, allocation } in &writes {
                let claim = self.reserve(claim, allocation.as_ref(), &pod).await?;
                fresh.push(Fresh::Claim(Box::new(claim)));
            }
            if bind {
                self.bind(&key, &pod).await?;
                fresh.push(Fresh::Bound(key.clone()));
            }
            Ok(())
        };
        let error = result.await.err();
        self.settle(Some(key), claims, fresh, error).await
    }

    /// Puts a condition into the status of a pod, in place of the one of its type.
    pub(super) async fn report(self, pod: Pod, conditions: Value) -> Done {
        let key = Key::of(&pod.metadata);
        let (uid, version) = (&pod.metadata.uid, &pod.metadata.resource_version);
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"conditions": conditions}});
        let (fresh, error) = match self.patch_pod_status(&key, patch).await {
            Ok(pod) => (vec![Fresh::Pod(Box::new(pod))], None),
            Err(error) => (Vec::new(), Some(error)),
        };
        self.settle(Some(key), Vec::new(), fresh, error).await
    }

    /// Takes the reservations of pods that are over from a claim; `free` takes all of them. A claim without reservations
    /// loses its allocation, and a generated one whose pod is over is deleted.
    pub(super) async fn release(
        self,
        claim: ResourceClaim,
        keep: Vec<Reservation>,
        owner: PodState,
        free: bool,
    ) -> Done {
        let key = Key::of(&claim.metadata);
        let mut fresh = Vec::new();
        let result = self.try_release(claim, keep, owner, free, &mut fresh).await;
        self.settle(None, vec![key], fresh, result.err()).await
    }

    async fn try_release(
        &self,
        mut claim: ResourceClaim,
        keep: Vec<Reservation>,
        owner: PodState,
        free: bool,
        fresh: &mut Vec<Fresh>,
    ) -> kube::Result<()> {
        let key = Key::of(&claim.metadata);
        let before = reserved_for(&claim).len();
        let mut left = Vec::new();
        let mut over = HashSet::new();
        for Reservation { consumer, state } in keep {
            if state == PodState::Unknown && self.is_over(&key.namespace, &consumer.name, &consumer.uid).await? {
                over.insert(consumer.uid);
            } else if !free {
                left.push(consumer);
            }
        }
        let unused = left.is_empty() && (before > 0 || free || claim.metadata.deletion_timestamp.is_some());
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        if left.len() < before || (unused && allocated) {
            let status = if left.is_empty() {
                json!({"reservedFor": null, "allocation": null})
            } else {
                json!({"reservedFor": left})
            };
            claim = self.patch_claim_status(&claim, status).await?;
            fresh.push(Fresh::Claim(Box::new(claim.clone())));
        }
        if unused && has_finalizer(&claim) {
            let others: Vec<_> = claim.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
            let patch = patch_of(&claim.metadata, json!({"finalizers": others}), None);
            claim = self.claims(&key.namespace).patch(&key.name, &PatchParams::default(), &patch).await?;
            fresh.push(Fresh::Claim(Box::new(claim.clone())));
        }
        if !left.is_empty() || free || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let orphan = match (owner, owning_pod(&claim)) {
            (PodState::Done, Some(_)) => true,
            (PodState::Unknown, Some((name, uid))) => {
                over.contains(uid) || self.is_over(&key.namespace, name, uid).await?
            }
            (PodState::Live, _) | (_, None) => false,
        };
        if orphan {
            let preconditions = Some(Preconditions { uid: claim.metadata.uid.clone(), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let answer = self.claims(&key.namespace).delete(&key.name, &parameters).await?;
            // The answer can be the claim as it was; it is still there only if somebody else has a finalizer on it.
            let left = answer.left().filter(|claim| claim.metadata.finalizers.iter().flatten().next().is_some());
            fresh.push(left.map_or_else(|| Fresh::ClaimDeleted(key), |claim| Fresh::Claim(Box::new(claim))));
        }
        Ok(())
    }

    /// Whether the API server knows for sure that there is no such pod, or that it will not run any more.
    async fn is_over(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<bool> {
        let pod = self.pods(namespace).get_opt(name).await?;
        Ok(pod.is_none_or(|pod| pod.metadata.uid.as_deref() != Some(uid) || is_done(&pod)))
    }

    /// The finalizer comes first: an allocated claim is never without.
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

    /// Ends a job. After an error it looks how the objects are now, for as long as that takes.
    async fn settle(
        self,
        pod: Option<Key>,
        claims: Vec<Key>,
        mut fresh: Vec<Fresh>,
        error: Option<kube::Error>,
    ) -> Done {
        if error.is_some() {
            if let Some(key) = &pod {
                let found = patiently(|| async { self.pods(&key.namespace).get_opt(&key.name).await }).await;
                fresh.push(found.map_or_else(|| Fresh::PodGone(key.clone()), |pod| Fresh::Pod(Box::new(pod))));
            }
            for key in &claims {
                let found = patiently(|| async { self.claims(&key.namespace).get_opt(&key.name).await }).await;
                fresh.push(found.map_or_else(|| Fresh::ClaimGone(key.clone()), |claim| Fresh::Claim(Box::new(claim))));
            }
        }
        Done { pod, claims, fresh, error }
    }
}

/// A consumer of a claim, and what is known of it.
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

/// A change of exactly this version of an object: if it is another by now, the server answers with a conflict.
fn patch_of(metadata: &ObjectMeta, mut changes: Value, status: Option<Value>) -> Patch<Value> {
    changes["uid"] = json!(metadata.uid);
    changes["resourceVersion"] = json!(metadata.resource_version);
    let mut patch = json!({"metadata": changes});
    if let Some(status) = status {
        patch["status"] = status;
    }
    Patch::Merge(patch)
}

async fn patiently<T, F: Future<Output = kube::Result<T>>>(ask: impl Fn() -> F) -> T {
    let mut retry = RETRY.retry();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => tracing::debug!(%error, "looking how things are failed, and is tried again"),
        }
        retry.wait().await;
    }
}
