//! Building an allocation: results, configuration, and the nodes where the claim can be used.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
};

use super::capacity;
use super::claim::{Alternative, Plan};
use super::inventory::{Candidate, Inventory};
use super::search::Chosen;
use crate::scheduler::node::NodeInfo;

/// Builds the allocation of a claim from the devices that were chosen for it.
pub(super) fn build(
    plan: &Plan<'_>,
    chosen: &[Chosen],
    inventory: &Inventory,
    node: &NodeInfo,
    new_share_id: &mut dyn FnMut() -> String,
) -> AllocationResult {
    let results = chosen.iter().map(|chosen| {
        let candidate = &inventory.candidates[chosen.candidate];
        result(&plan.requests[chosen.request].alternatives[chosen.alternative], candidate, chosen, new_share_id)
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
    alternative: &Alternative<'_>,
    candidate: &Candidate,
    chosen: &Chosen,
    new_share_id: &mut dyn FnMut() -> String,
) -> DeviceRequestAllocationResult {
    let consumed = chosen.share.as_ref().map(|amounts| capacity::for_status(amounts, candidate));
    DeviceRequestAllocationResult {
        request: alternative.name.clone(),
        driver: candidate.id.driver().to_owned(),
        pool: candidate.id.pool().to_owned(),
        device: candidate.id.device().to_owned(),
        admin_access: alternative.admin_access.then_some(true),
        tolerations: (!alternative.tolerations.is_empty()).then(|| alternative.tolerations.to_vec()),
        binding_conditions: candidate.device.binding_conditions.clone(),
        binding_failure_conditions: candidate.device.binding_failure_conditions.clone(),
        share_id: chosen.share.is_some().then(new_share_id),
        consumed_capacity: consumed.filter(|consumed| !consumed.is_empty()),
        skip_node_operations: None,
    }
}

/// Collects the configuration: first of the classes, each once, then of the claim. An entry for all requests names none.
fn config(plan: &Plan<'_>, chosen: &[Chosen]) -> Vec<DeviceAllocationConfiguration> {
    // A request for zero devices has no chosen device; its first alternative counts.
    let alternatives: Vec<&Alternative<'_>> = plan
        .requests
        .iter()
        .enumerate()
        .filter_map(|(number, request)| {
            let chosen = chosen.iter().find(|chosen| chosen.request == number);
            request.alternatives.get(chosen.map_or(0, |chosen| chosen.alternative))
        })
        .collect();
    let mut classes = Vec::<(&Alternative<'_>, Vec<String>)>::new();
    let mut class_indexes = HashMap::new();
    for alternative in &alternatives {
        let index = *class_indexes.entry(alternative.class_name).or_insert_with(|| {
            classes.push((alternative, Vec::new()));
            classes.len() - 1
        });
        classes[index].1.push(alternative.name.clone());
    }
    let of_classes = classes.iter().flat_map(|(alternative, requests)| {
        alternative.class.spec.iter().flat_map(|spec| spec.config.iter().flatten()).map(|config| {
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
            let allocated = |name: &String| {
                plan.requests.iter().any(|request| request.name == name)
                    || alternatives.iter().any(|alternative| alternative.name == *name)
            };
            requests.is_empty() || requests.iter().any(allocated)
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

/// Selects the nodes from which all of the devices can be used; `None` for all nodes.
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
        // Slices have at most one term.
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
