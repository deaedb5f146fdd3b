//! Why there are no devices for a claim, for the person who wrote it: which request, how many devices were looked at, and
//! what was against each.

use std::collections::BTreeMap;

use super::claim::{Count, Plan, Request, Want, title};
use super::in_use::InUse;
use super::inventory::Inventory;
use super::search::left_of_counters;
use super::{MAX_RESULTS, Refusal, capacity, taint};

/// Says why nothing was found.
pub(super) fn explain(plans: &[Plan<'_>], inventory: &Inventory, in_use: &InUse, gave_up: bool) -> Refusal {
    let mut reasons = Vec::new();
    for plan in plans {
        for request in &plan.requests {
            if let Some(reason) = against_request(request, inventory, in_use) {
                reasons.push(format!("claim {}: {reason}", title(plan.claim)));
            }
        }
    }
    if reasons.is_empty() {
        reasons.extend(plans.iter().map(|plan| format!("claim {}: {}", title(plan.claim), together(plan))));
    }
    if gave_up {
        reasons.push("the search for devices that fit together was given up".to_owned());
    }
    Refusal(reasons.join("; "))
}

/// Each request alone could be served.
fn together(plan: &Plan<'_>) -> String {
    let constraints: Vec<_> = plan.constraints.iter().map(super::constraint::Constraint::text).collect();
    if constraints.is_empty() {
        return "there are devices for each request, but not for all of them together".to_owned();
    }
    let constraints = constraints.join(" and ");
    format!("there are devices for each request, but no {MAX_RESULTS} or fewer of them that have {constraints}")
}

fn against_request(request: &Request<'_>, inventory: &Inventory, in_use: &InUse) -> Option<String> {
    let reasons: Option<Vec<_>> = request.wants.iter().map(|want| against(want, inventory, in_use)).collect();
    Some(reasons?.join(", and "))
}

/// What is against a want; nothing if there are enough devices for it.
fn against(want: &Want<'_>, inventory: &Inventory, in_use: &InUse) -> Option<String> {
    let total = inventory.candidates.len();
    let mut counts = BTreeMap::<(usize, String), usize>::new();
    let mut usable = 0;
    for index in 0..total {
        match obstacle(want, inventory, in_use, index) {
            Some(obstacle) => *counts.entry(obstacle).or_default() += 1,
            None => usable += 1,
        }
    }
    let (wanted, enough) = match &want.count {
        Count::Exactly(count) => (format!("{count} of class {}", want.class_name), usable >= *count),
        Count::All(all) => (
            format!("all of class {}", want.class_name),
            !all.is_empty() && usable >= all.len() && all.len() <= MAX_RESULTS,
        ),
    };
    if enough {
        return None;
    }
    let name = &want.name;
    let pools: Vec<_> = inventory
        .pools
        .iter()
        .filter_map(|pool| Some(format!("pool {} of driver {} {}", pool.name, pool.driver, pool.unusable.as_deref()?)))
        .collect();
    let pools = if pools.is_empty() { String::new() } else { format!("; {}", pools.join("; ")) };
    if total == 0 {
        return Some(format!("request {name} wants {wanted}, and no resource slice has a device for this node{pools}"));
    }
    let mut obstacles: Vec<_> = counts.into_iter().map(|((_, what), count)| format!("{count} {what}")).collect();
    if usable > 0 {
        obstacles.push(format!("{usable} can be had"));
    }
    let devices = if total == 1 { "device" } else { "devices" };
    let obstacles = obstacles.join(", ");
    Some(format!("request {name} wants {wanted}, and of {total} {devices} looked at: {obstacles}{pools}"))
}

/// The first thing that is against a candidate, and its place in the order in which they are told.
fn obstacle(want: &Want<'_>, inventory: &Inventory, in_use: &InUse, index: usize) -> Option<(usize, String)> {
    let candidate = &inventory.candidates[index];
    if inventory.pools[candidate.pool].unusable.is_some() {
        return Some((5, "in a pool that cannot be used now".to_owned()));
    }
    match want.mismatch(inventory, index) {
        Ok(None) => {}
        Ok(Some(selector)) => {
            let of = if selector.of_class { format!(" of class {}", want.class_name) } else { String::new() };
            return Some((1, format!("not matching selector `{}`{of}", selector.expression)));
        }
        Err(why) => return Some((0, format!("failing: {why}"))),
    }
    if !want.admin_access && in_use.has_whole(&candidate.id) {
        return Some((2, "in use".to_owned()));
    }
    let taints = candidate.device.taints.as_deref().unwrap_or_default();
    if let Some(taint) = taint::preventing(taints, want.tolerations) {
        return Some((3, format!("with the taint {} that is not tolerated", taint::text(taint))));
    }
    let consumed = |name: &str| in_use.consumed_of(&candidate.id, name);
    if let Err(why) = capacity::wanted(want.capacity, candidate, consumed) {
        return Some((4, format!("with {why}")));
    }
    let left = left_of_counters(inventory, in_use, candidate.pool);
    let short = candidate.counters.iter().find(|(name, amount)| left.get(*name).is_none_or(|left| left < *amount));
    if let Some(((set, counter), _)) = short.filter(|_| !in_use.has_any(&candidate.id)) {
        return Some((4, format!("for which too little is left of counter {counter} in counter set {set}")));
    }
    None
}
