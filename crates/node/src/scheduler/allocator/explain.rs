//! Why a claim cannot be allocated, for its author: the request, the number of devices considered, and why each of them
//! cannot be used.

use std::collections::BTreeMap;

use super::claim::{Alternative, Count, Plan, Request, full_name};
use super::in_use::InUse;
use super::inventory::Inventory;
use super::search::available_counters;
use super::{MAX_RESULTS, Refusal, capacity, taint};

/// Explains why the search found nothing.
pub(super) fn explain(plans: &[Plan<'_>], inventory: &Inventory, in_use: &InUse, gave_up: bool) -> Refusal {
    let mut reasons = Vec::new();
    for plan in plans {
        for request in &plan.requests {
            if let Some(reason) = explain_request(request, inventory, in_use) {
                reasons.push(format!("claim {}: {reason}", full_name(plan.claim)));
            }
        }
    }
    if reasons.is_empty() {
        let combined =
            plans.iter().map(|plan| format!("claim {}: {}", full_name(plan.claim), explain_combination(plan)));
        reasons.extend(combined);
    }
    if gave_up {
        reasons.push("the search for a combination of devices was given up".to_owned());
    }
    Refusal(reasons.join("; "))
}

/// Explains a claim whose requests could each be allocated alone.
fn explain_combination(plan: &Plan<'_>) -> String {
    let constraints: Vec<_> = plan.constraints.iter().map(super::constraint::Constraint::text).collect();
    if constraints.is_empty() {
        return "there are devices for each request, but not for all of them together".to_owned();
    }
    let constraints = constraints.join(" and ");
    format!("there are devices for each request, but no {MAX_RESULTS} or fewer of them that have {constraints}")
}

fn explain_request(request: &Request<'_>, inventory: &Inventory, in_use: &InUse) -> Option<String> {
    let reasons: Option<Vec<_>> =
        request.alternatives.iter().map(|alternative| explain_alternative(alternative, inventory, in_use)).collect();
    Some(reasons?.join(", and "))
}

/// Explains why a request or subrequest cannot be allocated; `None` if there are enough devices for it alone.
fn explain_alternative(alternative: &Alternative<'_>, inventory: &Inventory, in_use: &InUse) -> Option<String> {
    let total = inventory.candidates.len();
    let mut counts = BTreeMap::<(usize, String), usize>::new();
    let mut available = 0;
    for index in 0..total {
        match obstacle(alternative, inventory, in_use, index) {
            Some(obstacle) => *counts.entry(obstacle).or_default() += 1,
            None => available += 1,
        }
    }
    let (requested, enough) = match &alternative.count {
        Count::Exactly(count) => (format!("{count} of class {}", alternative.class_name), available >= *count),
        Count::All(all) => (
            format!("all of class {}", alternative.class_name),
            !all.is_empty() && available >= all.len() && all.len() <= MAX_RESULTS,
        ),
    };
    if enough {
        return None;
    }
    let name = &alternative.name;
    let pools: Vec<_> = inventory
        .pools
        .iter()
        .filter_map(|pool| Some(format!("pool {} of driver {} {}", pool.name, pool.driver, pool.unusable.as_deref()?)))
        .collect();
    let pools = if pools.is_empty() { String::new() } else { format!("; {}", pools.join("; ")) };
    if total == 0 {
        return Some(format!(
            "request {name} asks for {requested}, and no resource slice has a device for this node{pools}"
        ));
    }
    let mut obstacles: Vec<_> = counts.into_iter().map(|((_, what), count)| format!("{count} {what}")).collect();
    if available > 0 {
        obstacles.push(format!("{available} available"));
    }
    let devices = if total == 1 { "device" } else { "devices" };
    let obstacles = obstacles.join(", ");
    Some(format!("request {name} asks for {requested}, and of {total} {devices} considered: {obstacles}{pools}"))
}

/// Returns the first reason why a candidate cannot be used, with its rank in the message.
fn obstacle(
    alternative: &Alternative<'_>,
    inventory: &Inventory,
    in_use: &InUse,
    index: usize,
) -> Option<(usize, String)> {
    let candidate = &inventory.candidates[index];
    if inventory.pools[candidate.pool].unusable.is_some() {
        return Some((5, "in an unusable pool".to_owned()));
    }
    match alternative.mismatch(inventory, index) {
        Ok(None) => {}
        Ok(Some(selector)) => {
            let class = if selector.of_class { format!(" of class {}", alternative.class_name) } else { String::new() };
            return Some((1, format!("not matching selector `{}`{class}", selector.expression)));
        }
        Err(reason) => return Some((0, format!("failing: {reason}"))),
    }
    if !alternative.admin_access && in_use.has_whole(&candidate.id) {
        return Some((2, "in use".to_owned()));
    }
    let taints = candidate.device.taints.as_deref().unwrap_or_default();
    if let Some(taint) = taint::untolerated(taints, alternative.tolerations) {
        return Some((3, format!("with the untolerated taint {}", taint::text(taint))));
    }
    let consumed = |name: &str| in_use.consumed_of(&candidate.id, name);
    if let Err(reason) = capacity::consumption(alternative.capacity, candidate, consumed) {
        return Some((4, format!("with {reason}")));
    }
    let available = available_counters(inventory, in_use, candidate.pool);
    let mut counters = candidate.counters.iter();
    let short = counters.find(|(name, amount)| available.get(*name).is_none_or(|available| available < *amount));
    if let Some(((set, counter), _)) = short.filter(|_| !in_use.has_any(&candidate.id)) {
        return Some((4, format!("exceeding counter {counter} of counter set {set}")));
    }
    None
}
