//! The choice of devices for claims, as the scheduler of Kubernetes makes it: first fit in the order of pools, slices and
//! devices, with backtracking where a choice leaves nothing for the rest.
//!
//! This is pure computation: claims, classes, slices, devices in use and the node go in; allocations come out, or the reason
//! for a refusal, written for the author of the claim.

mod capacity;
mod claim;
mod constraint;
mod explain;
mod in_use;
mod inventory;
mod result;
mod search;
mod taint;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};

pub(crate) use self::in_use::InUse;
pub(crate) use self::inventory::Inventory;
use super::node::NodeInfo;

/// The most devices in the allocation of a claim.
const MAX_RESULTS: usize = 32;

/// Why claims cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Allocates devices for all of these claims, or for none. `new_share_id` is called once for each share of a device that
/// allows multiple allocations.
pub(crate) fn allocate(
    claims: &[&ResourceClaim],
    classes: &BTreeMap<String, DeviceClass>,
    inventory: &Inventory,
    in_use: &InUse,
    node: &NodeInfo,
    new_share_id: &mut dyn FnMut() -> String,
) -> Result<Vec<AllocationResult>, Refusal> {
    let plans =
        claims.iter().map(|claim| claim::plan(claim, classes, inventory, in_use)).collect::<Result<Vec<_>, _>>()?;
    let chosen = match search::search(&plans, inventory, in_use)? {
        search::Outcome::Found(chosen) => chosen,
        search::Outcome::Nothing { gave_up } => return Err(explain::explain(&plans, inventory, in_use, gave_up)),
    };
    Ok(plans
        .iter()
        .zip(&chosen)
        .map(|(plan, chosen)| result::build(plan, chosen, inventory, node, new_share_id))
        .collect())
}
