//! What an allocation says: results, the configuration that goes with them, and where the claim can be used.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
};

use super::capacity;
use super::claim::{Plan, Want};
use super::inventory::{Candidate, Inventory};
use super::search::Chosen;
use crate::scheduler::node::NodeInfo;

/// The allocation of a claim with the devices that were chosen for it.
pub(super) fn build(
    plan: &Plan<'_>,
    chosen: &[Chosen],
    inventory: &Inventory,
    node: &NodeInfo,
    new_share_id: &mut dyn FnMut() -> String,
) -> AllocationResult {
    let results = chosen.iter().map(|chosen| {
        let candidate = &inventory.candidates[chosen.candidate];
        result(&plan.requests[chosen.request].wants[chosen.want], candidate, chosen, new_share_id)
    });
    let results: Vec<_> = results.collect();
    let config = config(plan, chosen);
    AllocationResult {
        allocation_timestamp: None,
        devices: Some(DeviceAllocationResult {
            config: (!config.is_empty()).then_some(config),
            results: (!results.is_empty()).then_some(results),
        }),
        node_selector: node_selector(chosen.iter().map(|chosen| &inventory.candidates[chosen.candidate]), node),
    }
}

fn result(
    want: &Want<'_>,
    candidate: &Candidate,
    chosen: &Chosen,
    new_share_id: &mut dyn FnMut() -> String,
) -> DeviceRequestAllocationResult {
    let consumed = chosen.share.as_ref().map(|amounts| capacity::for_status(amounts, candidate));
    DeviceRequestAllocationResult {
        request: want.name.clone(),
        driver: candidate.id.driver().to_owned(),
        pool: candidate.id.pool().to_owned(),
        device: candidate.id.device().to_owned(),
        admin_access: want.admin_access.then_some(true),
        tolerations: (!want.tolerations.is_empty()).then(|| want.tolerations.to_vec()),
        binding_conditions: candidate.device.binding_conditions.clone(),
        binding_failure_conditions: candidate.device.binding_failure_conditions.clone(),
        share_id: chosen.share.is_some().then(new_share_id),
        consumed_capacity: consumed.filter(|consumed| !consumed.is_empty()),
        skip_node_operations: None,
    }
}

/// First what classes say, each class once, then what the claim says. What is for all requests names none.
fn config(plan: &Plan<'_>, chosen: &[Chosen]) -> Vec<DeviceAllocationConfiguration> {
    // A request without devices (a count of none) is still served by its first want.
    let wants: Vec<&Want<'_>> = plan
        .requests
        .iter()
        .enumerate()
        .filter_map(|(number, request)| {
            let want = chosen.iter().find(|chosen| chosen.request == number).map_or(0, |chosen| chosen.want);
            request.wants.get(want)
        })
        .collect();
    let mut classes = Vec::<(&Want<'_>, Vec<String>)>::new();
    let mut places = HashMap::new();
    for want in &wants {
        let place = *places.entry(want.class_name).or_insert_with(|| {
            classes.push((want, Vec::new()));
            classes.len() - 1
        });
        classes[place].1.push(want.name.clone());
    }
    let of_classes = classes.iter().flat_map(|(want, requests)| {
        want.class.spec.iter().flat_map(|spec| spec.config.iter().flatten()).map(|config| {
            DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: Some(requests.clone()),
                source: "FromClass".to_owned(),
            }
        })
    });
    let devices = plan.claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    let configs = devices.iter().flat_map(|devices| devices.config.iter().flatten());
    let of_claim = configs
        .filter(|config| {
            let requests = config.requests.as_deref().unwrap_or_default();
            let served = |name: &String| {
                plan.requests.iter().any(|request| request.name == name) || wants.iter().any(|want| want.name == *name)
            };
            requests.is_empty() || requests.iter().any(served)
        })
        .map(|config| DeviceAllocationConfiguration {
            opaque: config.opaque.clone(),
            requests: config.requests.clone(),
            source: "FromClaim".to_owned(),
        });
    let mut all: Vec<_> = of_classes.chain(of_claim).collect();
    for config in &mut all {
        config.requests =
            config.requests.take().filter(|names| !names.is_empty() && names.len() != plan.requests.len());
    }
    all
}

/// The nodes from which all of the devices can be used; nothing if that is every node.
fn node_selector<'a>(candidates: impl Iterator<Item = &'a Candidate>, node: &NodeInfo) -> Option<NodeSelector> {
    let mut merged = NodeSelectorTerm::default();
    for candidate in candidates {
        if candidate.node_name.is_some() || candidate.device.binds_to_node == Some(true) {
            let by_name = NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.name.clone()]),
            };
            let term = NodeSelectorTerm { match_fields: Some(vec![by_name]), match_expressions: None };
            return Some(NodeSelector { node_selector_terms: vec![term] });
        }
        // Slices have one term at most.
        for term in candidate.node_selector.iter().flat_map(|selector| selector.node_selector_terms.first()) {
            merge(&mut merged.match_fields, term.match_fields.as_deref());
            merge(&mut merged.match_expressions, term.match_expressions.as_deref());
        }
    }
    let any = merged.match_fields.is_some() || merged.match_expressions.is_some();
    any.then(|| NodeSelector { node_selector_terms: vec![merged] })
}

fn merge(into: &mut Option<Vec<NodeSelectorRequirement>>, more: Option<&[NodeSelectorRequirement]>) {
    for requirement in more.unwrap_or_default() {
        let all = into.get_or_insert_default();
        if !all.contains(requirement) {
            all.push(requirement.clone());
        }
    }
}
