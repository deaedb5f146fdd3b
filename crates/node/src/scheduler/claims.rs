//! The claim controller: claims from templates, and the end of reservations, allocations and generated claims.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::cache::{Key, POD_CLAIM_NAME, PodState, owning_pod};
use super::controller::Controller;
use super::job::{Reservation, has_finalizer, reserved_for};

impl Controller {
    /// Looks whether somebody for whom a claim is reserved is over, and what follows from that.
    pub(super) fn consider_claim(&mut self, key: &Key) {
        let Some(claim) = self.cache.claims.get(key) else { return };
        if self.busy_claims.contains(key) {
            // The end of the job looks at it again.
            return;
        }
        let state = |name: &str, uid: &str| self.cache.needs_claims(&Key::new(&key.namespace, name), uid);
        let reservations = reserved_for(claim).iter().map(|consumer| {
            let is_pod = consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty();
            // Whatever else has it says itself when it is done.
            let state = if is_pod { state(&consumer.name, &consumer.uid) } else { PodState::Live };
            Reservation { consumer: consumer.clone(), state }
        });
        let reservations: Vec<_> = reservations.collect();
        let owner = owning_pod(claim).map_or(PodState::Live, |(name, uid)| state(name, uid));
        let over = reservations.iter().any(|reservation| reservation.state != PodState::Live);
        let leaving = claim.metadata.deletion_timestamp.is_some();
        let orphan = reservations.is_empty() && owner != PodState::Live && !leaving;
        let unprotected = reservations.is_empty() && leaving && has_finalizer(claim);
        if over || orphan || unprotected {
            let keep = reservations.into_iter().filter(|reservation| reservation.state != PodState::Done).collect();
            self.busy_claims.insert(key.clone());
            self.running.spawn(self.jobs.clone().release(claim.clone(), keep, owner, false));
        }
    }
}

/// The claim that a template makes for one of the claims of a pod.
pub(super) fn from_template(template: &ResourceClaimTemplate, pod: &Pod, pod_claim_name: &str) -> ResourceClaim {
    let made = template.spec.clone().unwrap_or_default();
    let given = made.metadata.unwrap_or_default();
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
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
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: made.spec,
        status: None,
    }
}
