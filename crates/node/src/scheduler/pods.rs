//! The scheduler: what a pod still needs before it can be bound, and why it is unschedulable.

use drakkar_client::uuid;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::allocator::{Inventory, allocate};
use super::cache::{Key, PodState, is_done, node_of, owning_pod};
use super::claims::from_template;
use super::controller::Controller;
use super::job::{ClaimWrite, Reservation, reserved_for};

/// The most pods that a claim can be reserved for.
const MAX_RESERVATIONS: usize = 256;
/// The scheduler of pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The result of reconciling a pod.
enum Verdict {
    /// Nothing to do until an event enqueues the pod again.
    Nothing,
    /// A job was started.
    Started,
    /// The pod is unschedulable, for this reason.
    Unschedulable(String),
}

/// The name of a pod's claim.
enum ClaimName {
    Known(String),
    /// The pod's status says that the claim is not needed.
    NotNeeded,
    /// The claim is generated, and not yet in the pod's status.
    Unknown,
}

impl Controller {
    pub(super) fn reconcile_pod(&mut self, key: &Key) {
        let Some(pod) = self.cache.pods.get(key).filter(|pod| !is_done(pod)).cloned() else { return };
        if self.pods_in_flight.contains(key) {
            // The end of the job enqueues it again.
            return;
        }
        match self.advance(key, &pod) {
            Verdict::Nothing => {}
            Verdict::Started => {
                self.pods_in_flight.insert(key.clone());
            }
            Verdict::Unschedulable(reason) => {
                self.unschedulable.insert(key.clone());
                self.report(key, pod, &reason);
            }
        }
    }

    /// Does the next thing that the pod needs.
    fn advance(&mut self, key: &Key, pod: &Pod) -> Verdict {
        let claims = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
        let deleting = pod.metadata.deletion_timestamp.is_some();
        if !deleting && let Some(verdict) = self.generate(key, pod, claims) {
            return verdict;
        }
        match node_of(pod) {
            Some(_) => self.reserve_for_bound(key, pod, claims),
            None if deleting || !is_ours(pod) => Verdict::Nothing,
            None => match self.schedule(key, pod, claims) {
                Ok(verdict) => verdict,
                Err(reason) => Verdict::Unschedulable(reason),
            },
        }
    }

    /// Creates missing claims from templates and records them in the pod's status. Returns `None` if nothing is missing.
    fn generate(&mut self, key: &Key, pod: &Pod, pod_claims: &[PodResourceClaim]) -> Option<Verdict> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut statuses = statuses(pod).to_vec();
        let mut missing = Vec::new();
        let mut changed = false;
        for claim in pod_claims {
            let Some(template) = &claim.resource_claim_template_name else { continue };
            match name_of(pod, claim) {
                ClaimName::NotNeeded => continue,
                ClaimName::Known(name) if self.cache.claims.contains_key(&Key::new(&key.namespace, &name)) => continue,
                ClaimName::Known(_) | ClaimName::Unknown => {}
            }
            if let Some(found) = self.cache.generated_claim(uid, &claim.name) {
                statuses.retain(|status| status.name != claim.name);
                let resource_claim_name = found.metadata.name.clone();
                statuses.push(PodResourceClaimStatus { name: claim.name.clone(), resource_claim_name });
                changed = true;
                continue;
            }
            let Some(template) = self.cache.templates.get(&Key::new(&key.namespace, template)) else {
                let claim = &claim.name;
                return Some(Verdict::Unschedulable(format!(
                    "claim {claim} of the pod: resourceclaimtemplate {template} does not exist"
                )));
            };
            missing.push((claim.name.clone(), from_template(template, pod, &claim.name)));
        }
        if missing.is_empty() && !changed {
            return None;
        }
        self.running.spawn(self.jobs.clone().generate(pod.clone(), missing, statuses));
        Some(Verdict::Started)
    }

    /// Reserves claims for a pod that was created with a node name, past the scheduler. Allocates nothing.
    fn reserve_for_bound(&mut self, key: &Key, pod: &Pod, pod_claims: &[PodResourceClaim]) -> Verdict {
        let Ok(claims) = self.claims_for(key, pod, pod_claims) else { return Verdict::Nothing };
        let writes: Vec<_> = claims
            .into_iter()
            .filter(|claim| allocation(claim).is_some() && !is_reserved(claim, pod))
            .filter(|claim| reserved_for(claim).len() < MAX_RESERVATIONS)
            .map(|claim| ClaimWrite { claim, allocation: None })
            .collect();
        self.reserve_and_bind(pod, writes, false)
    }

    fn schedule(&mut self, key: &Key, pod: &Pod, pod_claims: &[PodResourceClaim]) -> Result<Verdict, String> {
        self.check_node(pod)?;
        let claims = self.claims_for(key, pod, pod_claims)?;
        if claims.iter().any(|claim| self.claims_in_flight.contains(&Key::of(&claim.metadata))) {
            // The end of that job enqueues the pod again.
            return Ok(Verdict::Nothing);
        }
        let mut writes = Vec::new();
        let mut to_allocate = Vec::new();
        let mut ready = true;
        for claim in &claims {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let Some(allocation) = allocation(claim) else {
                to_allocate.push(claim);
                continue;
            };
            if allocation.node_selector.as_ref().is_some_and(|selector| !self.node.is_selected_by(selector)) {
                return Err(format!("claim {name} is allocated for another node"));
            }
            if !is_reserved(claim, pod) {
                if reserved_for(claim).len() >= MAX_RESERVATIONS {
                    return Err(format!("claim {name} is in use by {MAX_RESERVATIONS} pods, the maximum"));
                }
                writes.push(ClaimWrite { claim: claim.clone(), allocation: None });
            }
            match binding_state(claim, allocation) {
                Binding::Ready => {}
                Binding::Waiting => ready = false,
                Binding::Failed => return Ok(self.free(claim)),
            }
        }
        if !to_allocate.is_empty() {
            for (claim, mut allocation) in to_allocate.iter().zip(self.find_devices(&to_allocate)?) {
                allocation.allocation_timestamp = Some(now());
                ready &= !results(&allocation).any(|result| !conditions(&result.binding_conditions).is_empty());
                let uid = claim.metadata.uid.as_deref().unwrap_or_default();
                self.in_use.set(uid, Some(&allocation));
                writes.push(ClaimWrite { claim: (*claim).clone(), allocation: Some(allocation) });
            }
        }
        Ok(self.reserve_and_bind(pod, writes, ready))
    }

    /// Allocates devices for claims. A refusal is remembered until something is freed or added.
    fn find_devices(&mut self, claims: &[&ResourceClaim]) -> Result<Vec<AllocationResult>, String> {
        let specs = claims.iter().map(|claim| serde_json::to_string(&claim.spec)).collect::<Result<Vec<_>, _>>();
        let cache_key = specs.map_err(|error| error.to_string())?.join("\n");
        if let Some(reason) = self.refused.get(&cache_key) {
            return Err(reason.clone());
        }
        let slices = &self.cache.slices;
        let node = &self.node;
        let inventory = self.inventory.get_or_insert_with(|| Inventory::new(slices.values(), node));
        let found = allocate(claims, &self.cache.classes, inventory, &self.in_use, node, &mut uuid);
        found.map_err(|refusal| {
            // The cache is keyed by specs, so the text must not name the claim that was refused first.
            let reason = match claims {
                [claim] => refusal.0.replacen(&format!("claim {}", Key::of(&claim.metadata)), "claim", 1),
                _ => refusal.0,
            };
            let reason = format!("cannot allocate all claims: {reason}");
            self.refused.insert(cache_key, reason.clone());
            reason
        })
    }

    /// Checks the pod's node selector and affinity, and that the node is schedulable.
    fn check_node(&self, pod: &Pod) -> Result<(), String> {
        let spec = pod.spec.as_ref();
        let name = &self.node.name;
        if spec.and_then(|spec| spec.node_selector.as_ref()).is_some_and(|labels| !self.node.has_labels(labels)) {
            return Err(format!("the pod's node selector does not match the labels of node {name}"));
        }
        let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
        let required =
            affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
        if required.is_some_and(|selector| !self.node.is_selected_by(selector)) {
            return Err(format!("the pod's node affinity does not match node {name}"));
        }
        let unschedulable = self.cache.node.as_ref().and_then(|node| node.spec.as_ref()?.unschedulable);
        if unschedulable == Some(true) { Err(format!("node {name} is unschedulable")) } else { Ok(()) }
    }

    /// Returns the pod's claims, or why one of them cannot be used.
    fn claims_for(&self, key: &Key, pod: &Pod, pod_claims: &[PodResourceClaim]) -> Result<Vec<ResourceClaim>, String> {
        let mut claims = Vec::new();
        for claim in pod_claims {
            let name = match name_of(pod, claim) {
                ClaimName::Known(name) => name,
                ClaimName::NotNeeded => continue,
                ClaimName::Unknown => {
                    return Err(format!("claim {} of the pod names no claim and no template", claim.name));
                }
            };
            let found = self.cache.claims.get(&Key::new(&key.namespace, &name));
            let found = found.ok_or_else(|| format!("resourceclaim {name} does not exist"))?;
            if found.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim {name} is being deleted"));
            }
            let of_pod = owning_pod(found).is_some_and(|(_, uid)| Some(uid) == pod.metadata.uid.as_deref());
            if claim.resource_claim_template_name.is_some() && !of_pod {
                return Err(format!("resourceclaim {name} was not created for this pod"));
            }
            // Two entries of a pod can refer to the same claim.
            if !claims.contains(found) {
                claims.push(found.clone());
            }
        }
        Ok(claims)
    }

    fn reserve_and_bind(&mut self, pod: &Pod, writes: Vec<ClaimWrite>, bind: bool) -> Verdict {
        if writes.is_empty() && !bind {
            return Verdict::Nothing;
        }
        let keys: Vec<_> = writes.iter().map(|write| Key::of(&write.claim.metadata)).collect();
        if keys.iter().any(|key| self.claims_in_flight.contains(key)) {
            return Verdict::Nothing;
        }
        self.claims_in_flight.extend(keys);
        self.unschedulable.remove(&Key::of(&pod.metadata));
        self.running.spawn(self.jobs.clone().reserve_and_bind(pod.clone(), writes, bind));
        Verdict::Started
    }

    /// Frees a claim after a binding failure condition, so that it is allocated again.
    fn free(&mut self, claim: &ResourceClaim) -> Verdict {
        let consumers = reserved_for(claim).iter().cloned();
        let keep = consumers.map(|consumer| Reservation { consumer, state: PodState::Live }).collect();
        self.claims_in_flight.insert(Key::of(&claim.metadata));
        self.running.spawn(self.jobs.clone().release(claim.clone(), keep, PodState::Live, true));
        Verdict::Nothing
    }

    /// Writes the reason into the pod's status, unless it is there already.
    fn report(&mut self, key: &Key, pod: Pod, reason: &str) {
        if node_of(&pod).is_some() {
            return;
        }
        let message = format!("0/1 nodes are available: {reason}");
        let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let known = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
        if known.is_some_and(|known| known.status == "False" && known.message.as_deref() == Some(&message)) {
            return;
        }
        let since = known.filter(|known| known.status == "False").and_then(|known| known.last_transition_time.clone());
        conditions.retain(|condition| condition.type_ != "PodScheduled");
        tracing::info!(pod = %key, reason, "pod is unschedulable");
        conditions.push(PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some("Unschedulable".to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or_else(now)),
            ..PodCondition::default()
        });
        self.pods_in_flight.insert(key.clone());
        self.running.spawn(self.jobs.clone().report(pod, json!(conditions)));
    }
}

/// Whether a pod with a claim can be bound, by the binding conditions of the claim's devices.
enum Binding {
    Ready,
    Waiting,
    Failed,
}

/// Evaluates the binding conditions of the allocated devices, by the conditions in the claim's status.
fn binding_state(claim: &ResourceClaim, allocation: &AllocationResult) -> Binding {
    let mut ready = true;
    for result in results(allocation) {
        let is_true = |type_: &String| {
            let devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
            let mut devices = devices.filter(|device| {
                (&device.driver, &device.pool, &device.device, &device.share_id)
                    == (&result.driver, &result.pool, &result.device, &result.share_id)
            });
            devices.any(|device| {
                let mut conditions = device.conditions.iter().flatten();
                conditions.any(|condition| condition.type_ == *type_ && condition.status == "True")
            })
        };
        if conditions(&result.binding_failure_conditions).iter().any(is_true) {
            return Binding::Failed;
        }
        ready &= conditions(&result.binding_conditions).iter().all(is_true);
    }
    if ready { Binding::Ready } else { Binding::Waiting }
}

fn conditions(types: &Option<Vec<String>>) -> &[String] {
    types.as_deref().unwrap_or_default()
}

fn results(allocation: &AllocationResult) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten())
}

fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

fn is_reserved(claim: &ResourceClaim, pod: &Pod) -> bool {
    reserved_for(claim).iter().any(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref())
}

/// Reports whether a pod is for this scheduler and has no scheduling gates.
fn is_ours(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER);
    let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
    (scheduler.is_empty() || scheduler == DEFAULT_SCHEDULER) && !gates
}

fn statuses(pod: &Pod) -> &[PodResourceClaimStatus] {
    pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default()
}

fn name_of(pod: &Pod, claim: &PodResourceClaim) -> ClaimName {
    if let Some(name) = &claim.resource_claim_name {
        return ClaimName::Known(name.clone());
    }
    match statuses(pod).iter().find(|status| status.name == claim.name) {
        Some(PodResourceClaimStatus { resource_claim_name: Some(name), .. }) => ClaimName::Known(name.clone()),
        Some(_) => ClaimName::NotNeeded,
        None => ClaimName::Unknown,
    }
}

/// Returns the current time in whole seconds, the precision of Kubernetes' timestamps.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
