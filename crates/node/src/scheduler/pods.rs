//! The scheduler proper: what a pod still needs before it can be bound, and why it cannot be.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::allocator::{Inventory, allocate};
use super::cache::{Key, PodState, is_done, node_of, owning_pod};
use super::claims::from_template;
use super::controller::Controller;
use super::job::{Reservation, Write, reserved_for};
use drakkar_client::uuid;

/// The most pods that can share a claim.
const MAX_RESERVATIONS: usize = 256;
/// The scheduler that pods get who name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// What came of looking at a pod.
enum Verdict {
    /// There is nothing to do, or nothing before something changes that will bring the pod here again.
    Nothing,
    /// A job was started.
    Started,
    /// It cannot be scheduled, for this reason.
    Refused(String),
}

/// What a claim of a pod is called.
enum Name {
    Known(String),
    NotNeeded,
    /// It is generated and not yet in the pod's status.
    Unknown,
}

impl Controller {
    pub(super) fn consider_pod(&mut self, key: &Key) {
        let Some(pod) = self.cache.pods.get(key).filter(|pod| !is_done(pod)).cloned() else { return };
        if self.busy_pods.contains(key) {
            // The end of the job looks at it again.
            return;
        }
        match self.advance(key, &pod) {
            Verdict::Nothing => {}
            Verdict::Started => {
                self.busy_pods.insert(key.clone());
            }
            Verdict::Refused(why) => {
                self.waiting.insert(key.clone());
                self.report(key, pod, &why);
            }
        }
    }

    /// The next step for a pod.
    fn advance(&mut self, key: &Key, pod: &Pod) -> Verdict {
        let wanted = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
        let leaving = pod.metadata.deletion_timestamp.is_some();
        if !leaving && let Some(verdict) = self.generate(key, pod, wanted) {
            return verdict;
        }
        match node_of(pod) {
            Some(_) => self.reserve_for_bound(key, pod, wanted),
            None if leaving || !is_ours(pod) => Verdict::Nothing,
            None => match self.schedule(key, pod, wanted) {
                Ok(verdict) => verdict,
                Err(why) => Verdict::Refused(why),
            },
        }
    }

    /// Sees to it that all claims from templates exist and are in the pod's status. Nothing if they do and are.
    fn generate(&mut self, key: &Key, pod: &Pod, wanted: &[PodResourceClaim]) -> Option<Verdict> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut statuses = statuses(pod).to_vec();
        let (mut missing, mut changed) = (Vec::new(), false);
        for claim in wanted {
            let Some(template) = &claim.resource_claim_template_name else { continue };
            match name_of(pod, claim) {
                Name::NotNeeded => continue,
                Name::Known(name) if self.cache.claims.contains_key(&Key::new(&key.namespace, &name)) => continue,
                Name::Known(_) | Name::Unknown => {}
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
                return Some(Verdict::Refused(format!(
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

    /// A pod that came with a node, past the scheduler: what is allocated is reserved for it, and nothing is allocated.
    fn reserve_for_bound(&mut self, key: &Key, pod: &Pod, wanted: &[PodResourceClaim]) -> Verdict {
        let Ok(claims) = self.claims_for(key, pod, wanted) else { return Verdict::Nothing };
        let writes: Vec<_> = claims
            .into_iter()
            .filter(|claim| allocation(claim).is_some() && !is_reserved(claim, pod))
            .filter(|claim| reserved_for(claim).len() < MAX_RESERVATIONS)
            .map(|claim| Write { claim, allocation: None })
            .collect();
        self.place(pod, writes, false)
    }

    fn schedule(&mut self, key: &Key, pod: &Pod, wanted: &[PodResourceClaim]) -> Result<Verdict, String> {
        self.check_node(pod)?;
        let claims = self.claims_for(key, pod, wanted)?;
        if claims.iter().any(|claim| self.busy_claims.contains(&Key::of(&claim.metadata))) {
            // The end of that job brings the pod here again.
            return Ok(Verdict::Nothing);
        }
        let (mut writes, mut to_allocate, mut ready) = (Vec::new(), Vec::new(), true);
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
                    return Err(format!("claim {name} is in use by {MAX_RESERVATIONS} pods, and can have no more"));
                }
                writes.push(Write { claim: claim.clone(), allocation: None });
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
                writes.push(Write { claim: (*claim).clone(), allocation: Some(allocation) });
            }
        }
        Ok(self.place(pod, writes, ready))
    }

    /// Devices for claims. The same claims are not looked at twice while nothing was freed or added.
    fn find_devices(&mut self, claims: &[&ResourceClaim]) -> Result<Vec<AllocationResult>, String> {
        let specs = claims.iter().map(|claim| serde_json::to_string(&claim.spec)).collect::<Result<Vec<_>, _>>();
        let question = specs.map_err(|error| error.to_string())?.join("\n");
        if let Some(why) = self.refused.get(&question) {
            return Err(why.clone());
        }
        let (slices, node) = (&self.cache.slices, &self.node);
        let inventory = self.inventory.get_or_insert_with(|| Inventory::new(slices.values(), node));
        let found = allocate(claims, &self.cache.classes, inventory, &self.in_use, node, &mut uuid);
        found.map_err(|refusal| {
            // Only the spec decides: the names in it are those of the first who asked.
            let why = match claims {
                [claim] => refusal.0.replacen(&format!("claim {}", Key::of(&claim.metadata)), "claim", 1),
                _ => refusal.0,
            };
            let why = format!("cannot allocate all claims: {why}");
            self.refused.insert(question, why.clone());
            why
        })
    }

    /// Whether the pod itself can be on the node.
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

    /// The claims of a pod, all of them usable.
    fn claims_for(&self, key: &Key, pod: &Pod, wanted: &[PodResourceClaim]) -> Result<Vec<ResourceClaim>, String> {
        let mut claims = Vec::new();
        for claim in wanted {
            let name = match name_of(pod, claim) {
                Name::Known(name) => name,
                Name::NotNeeded => continue,
                Name::Unknown => return Err(format!("claim {} of the pod names no claim and no template", claim.name)),
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
            // Two claims of a pod can be the same.
            if !claims.contains(found) {
                claims.push(found.clone());
            }
        }
        Ok(claims)
    }

    fn place(&mut self, pod: &Pod, writes: Vec<Write>, bind: bool) -> Verdict {
        if writes.is_empty() && !bind {
            return Verdict::Nothing;
        }
        let keys: Vec<_> = writes.iter().map(|write| Key::of(&write.claim.metadata)).collect();
        if keys.iter().any(|key| self.busy_claims.contains(key)) {
            return Verdict::Nothing;
        }
        self.busy_claims.extend(keys);
        self.waiting.remove(&Key::of(&pod.metadata));
        self.running.spawn(self.jobs.clone().place(pod.clone(), writes, bind));
        Verdict::Started
    }

    /// A device could not be made ready: the claim is allocated anew.
    fn free(&mut self, claim: &ResourceClaim) -> Verdict {
        let consumers = reserved_for(claim).iter().cloned();
        let keep = consumers.map(|consumer| Reservation { consumer, state: PodState::Live }).collect();
        self.busy_claims.insert(Key::of(&claim.metadata));
        self.running.spawn(self.jobs.clone().release(claim.clone(), keep, PodState::Live, true));
        Verdict::Nothing
    }

    /// Tells the pod's status why it waits, if it does not say so already.
    fn report(&mut self, key: &Key, pod: Pod, why: &str) {
        if node_of(&pod).is_some() {
            return;
        }
        let message = format!("0/1 nodes are available: {why}");
        let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let known = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
        if known.is_some_and(|known| known.status == "False" && known.message.as_deref() == Some(&message)) {
            return;
        }
        let since = known.filter(|known| known.status == "False").and_then(|known| known.last_transition_time.clone());
        conditions.retain(|condition| condition.type_ != "PodScheduled");
        tracing::info!(pod = %key, "unschedulable: {why}");
        conditions.push(PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some("Unschedulable".to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or_else(now)),
            ..PodCondition::default()
        });
        self.busy_pods.insert(key.clone());
        self.running.spawn(self.jobs.clone().report(pod, json!(conditions)));
    }
}

enum Binding {
    Ready,
    Waiting,
    Failed,
}

/// Whether the devices that must be made ready first are, by what their drivers say in the claim's status.
fn binding_state(claim: &ResourceClaim, allocation: &AllocationResult) -> Binding {
    let mut ready = true;
    for result in results(allocation) {
        let is_true = |wanted: &String| {
            let devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
            let mut devices = devices.filter(|device| {
                (&device.driver, &device.pool, &device.device, &device.share_id)
                    == (&result.driver, &result.pool, &result.device, &result.share_id)
            });
            devices.any(|device| {
                let mut conditions = device.conditions.iter().flatten();
                conditions.any(|condition| condition.type_ == *wanted && condition.status == "True")
            })
        };
        if conditions(&result.binding_failure_conditions).iter().any(is_true) {
            return Binding::Failed;
        }
        ready &= conditions(&result.binding_conditions).iter().all(is_true);
    }
    if ready { Binding::Ready } else { Binding::Waiting }
}

fn conditions(of: &Option<Vec<String>>) -> &[String] {
    of.as_deref().unwrap_or_default()
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

/// Whether a pod is for this scheduler, and ready to be scheduled.
fn is_ours(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER);
    let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
    (scheduler.is_empty() || scheduler == DEFAULT_SCHEDULER) && !gates
}

fn statuses(pod: &Pod) -> &[PodResourceClaimStatus] {
    pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default()
}

fn name_of(pod: &Pod, claim: &PodResourceClaim) -> Name {
    if let Some(name) = &claim.resource_claim_name {
        return Name::Known(name.clone());
    }
    match statuses(pod).iter().find(|status| status.name == claim.name) {
        Some(PodResourceClaimStatus { resource_claim_name: Some(name), .. }) => Name::Known(name.clone()),
        Some(_) => Name::NotNeeded,
        None => Name::Unknown,
    }
}

/// Kubernetes counts in seconds.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
