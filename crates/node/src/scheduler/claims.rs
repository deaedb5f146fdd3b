//! The claim controller: generates claims from templates, and ends reservations, allocations and generated claims.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::cache::{Key, POD_CLAIM_NAME, PodState, owning_pod};
use super::controller::Controller;
use super::job::{Reservation, has_finalizer, reserved_for};

impl Controller {
    /// Starts a job if a claim is reserved for a pod that is done, or must be deleted.
    pub(super) fn reconcile_claim(&mut self, key: &Key) {
        let Some(claim) = self.cache.claims.get(key) else { return };
        if self.claims_in_flight.contains(key) {
            // The end of the job enqueues it again.
            return;
        }
        let state = |name: &str, uid: &str| self.cache.pod_state(&Key::new(&key.namespace, name), uid);
        let reservations = reserved_for(claim).iter().map(|consumer| {
            let is_pod = consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty();
            // Consumers other than pods remove their reservations themselves.
            let state = if is_pod { state(&consumer.name, &consumer.uid) } else { PodState::Live };
            Reservation { consumer: consumer.clone(), state }
        });
        let reservations: Vec<_> = reservations.collect();
        let owner = owning_pod(claim).map_or(PodState::Live, |(name, uid)| state(name, uid));
        let done = reservations.iter().any(|reservation| reservation.state != PodState::Live);
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let orphan = reservations.is_empty() && owner != PodState::Live && !deleting;
        let unprotected = reservations.is_empty() && deleting && has_finalizer(claim);
        if done || orphan || unprotected {
            let keep = reservations.into_iter().filter(|reservation| reservation.state != PodState::Done).collect();
            self.claims_in_flight.insert(key.clone());
            self.running.spawn(self.jobs.clone().release(claim.clone(), keep, owner, false));
        }
    }
}

/// Returns the claim that a template generates for one of a pod's claims.
pub(super) fn from_template(template: &ResourceClaimTemplate, pod: &Pod, pod_claim_name: &str) -> ResourceClaim {
    let template = template.spec.clone().unwrap_or_default();
    let metadata = template.metadata.unwrap_or_default();
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.to_owned(), pod_claim_name.to_owned());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod_name.clone(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{pod_name}-{pod_claim_name}-")),
            namespace: pod.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
