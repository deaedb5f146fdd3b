//! From a pod to the claims that it may use: which they are, and whether the pod may have them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};

use super::PrepareError;
use crate::kubelet::claim::ClaimId;

/// A claim that a pod may use, and the drivers whose devices it has.
#[derive(Debug)]
pub(super) struct Usable {
    pub(super) claim: ClaimId,
    pub(super) drivers: BTreeSet<String>,
}

/// The claim behind an entry of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::kubelet) enum ClaimName {
    /// By this name, and whether it must have been made for this pod.
    Is { name: String, owned: bool },
    /// It was decided that the pod needs none.
    NotNeeded,
    /// It has not been made yet.
    Missing,
}

pub(in crate::kubelet) fn claim_name(pod: &Pod, entry: &PodResourceClaim) -> ClaimName {
    if let Some(name) = &entry.resource_claim_name {
        return ClaimName::Is { name: name.clone(), owned: false };
    }
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.into_iter().find(|status| status.name == entry.name) {
        None => ClaimName::Missing,
        Some(status) => match &status.resource_claim_name {
            Some(name) => ClaimName::Is { name: name.clone(), owned: true },
            None => ClaimName::NotNeeded,
        },
    }
}

/// The claims of a pod, as the API server has them now.
pub(super) async fn usable_claims(client: &Client, pod: &Pod) -> Result<Vec<Usable>, PrepareError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut names = Vec::new();
    for entry in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        match claim_name(pod, entry) {
            ClaimName::Is { name, owned } => names.push((name, owned)),
            ClaimName::NotNeeded => {}
            ClaimName::Missing => return Err(PrepareError::NotCreated { entry: entry.name.clone() }),
        }
    }
    // Made by the scheduler, for resources that the pod asks for without a claim.
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    names.extend(extended.map(|extended| (extended.resource_claim_name.clone(), true)));

    // Two entries may name the same claim: it is prepared once.
    let mut seen = BTreeSet::new();
    names.retain(|(name, _)| seen.insert(name.clone()));

    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    let mut claims = Vec::new();
    for (name, owned) in names {
        let fetched = api.get(&name).await;
        let claim = fetched
            .map_err(|source| PrepareError::Fetch { claim: format!("{namespace}/{name}"), source: Box::new(source) })?;
        claims.push(check(pod, &claim, owned)?);
    }
    Ok(claims)
}

fn check(pod: &Pod, object: &ResourceClaim, owned: bool) -> Result<Usable, PrepareError> {
    let (claim, pod_uid) = (Box::new(ClaimId::from(object)), pod.metadata.uid.as_deref().unwrap_or_default());
    if owned {
        let mut owners = object.metadata.owner_references.iter().flatten();
        if !owners.any(|owner| owner.controller == Some(true) && owner.uid == pod_uid) {
            return Err(PrepareError::NotOwned { claim });
        }
    }
    let status = object.status.as_ref();
    let mut consumers = status.into_iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !consumers.any(|consumer| consumer.uid == pod_uid) {
        return Err(PrepareError::NotReserved { claim });
    }
    let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) else {
        return Err(PrepareError::NotAllocated { claim });
    };
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    Ok(Usable { claim: *claim, drivers: results.map(|result| result.driver.clone()).collect() })
}
