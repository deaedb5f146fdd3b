//! What a claim asks for, with its classes resolved and both forms of requests unified.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceToleration, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::constraint::Constraint;
use super::in_use::InUse;
use super::inventory::Inventory;
use super::{MAX_RESULTS, Refusal, capacity};

static NO_CAPACITY: BTreeMap<String, Quantity> = BTreeMap::new();

/// A claim to be allocated.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) claim: &'a ResourceClaim,
    pub(super) requests: Vec<Request<'a>>,
    pub(super) constraints: Vec<Constraint<'a>>,
}

/// A request. One of its alternatives must be allocated, the first if possible.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) alternatives: Vec<Alternative<'a>>,
}

/// A request of the form `exactly`, or one of the subrequests of a request of the form `firstAvailable`.
#[derive(Debug)]
pub(super) struct Alternative<'a> {
    /// The name in allocation results: `request` or `request/subrequest`.
    pub(super) name: String,
    pub(super) class_name: &'a str,
    pub(super) class: &'a DeviceClass,
    pub(super) selectors: Vec<RequestSelector<'a>>,
    pub(super) count: Count,
    pub(super) admin_access: bool,
    pub(super) tolerations: &'a [DeviceToleration],
    pub(super) capacity: &'a BTreeMap<String, Quantity>,
}

/// A CEL selector of a request or of its class.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestSelector<'a> {
    pub(super) expression: &'a str,
    pub(super) of_class: bool,
}

/// The number of devices.
#[derive(Debug)]
pub(super) enum Count {
    Exactly(usize),
    /// All matching candidates: these.
    All(Vec<usize>),
}

impl Count {
    pub(super) fn devices(&self) -> usize {
        match self {
            Self::Exactly(count) => *count,
            Self::All(candidates) => candidates.len(),
        }
    }
}

/// The fields that both forms of requests have.
struct RequestFields<'a> {
    name: String,
    class_name: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    allocation_mode: Option<&'a str>,
    count: Option<i64>,
    admin_access: Option<bool>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    capacity: Option<&'a CapacityRequirements>,
}

/// Returns a claim's namespace and name.
pub(super) fn full_name(claim: &ResourceClaim) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&claim.metadata.namespace), part(&claim.metadata.name))
}

/// Resolves a claim.
pub(super) fn plan<'a>(
    claim: &'a ResourceClaim,
    classes: &'a BTreeMap<String, DeviceClass>,
    inventory: &Inventory,
    in_use: &InUse,
) -> Result<Plan<'a>, Refusal> {
    let refused = |reason: String| Refusal(format!("claim {}: {reason}", full_name(claim)));
    let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    let mut requests = Vec::new();
    for request in devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
        let alternatives = fields_of(request).into_iter().map(|fields| resolve(fields, classes, inventory, in_use));
        let alternatives = alternatives.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        if alternatives.is_empty() {
            return Err(refused(format!("request {}: this kind of request is not supported", request.name)));
        }
        requests.push(Request { name: &request.name, alternatives });
    }
    let min_devices = |request: &Request<'_>| {
        request.alternatives.iter().map(|alternative| alternative.count.devices()).min().unwrap_or(0)
    };
    let total: usize = requests.iter().map(min_devices).sum();
    if total > MAX_RESULTS {
        return Err(refused(format!("it asks for {total} devices, and no claim can have more than {MAX_RESULTS}")));
    }
    let constraints = devices.iter().flat_map(|devices| devices.constraints.iter().flatten()).map(Constraint::new);
    Ok(Plan { claim, requests, constraints: constraints.collect::<Result<_, _>>().map_err(refused)? })
}

fn fields_of(request: &DeviceRequest) -> Vec<RequestFields<'_>> {
    if let Some(exactly) = &request.exactly {
        return vec![RequestFields {
            name: request.name.clone(),
            class_name: &exactly.device_class_name,
            selectors: exactly.selectors.as_ref(),
            allocation_mode: exactly.allocation_mode.as_deref(),
            count: exactly.count,
            admin_access: exactly.admin_access,
            tolerations: exactly.tolerations.as_ref(),
            capacity: exactly.capacity.as_ref(),
        }];
    }
    let subrequests = request.first_available.iter().flatten().map(|sub| RequestFields {
        name: format!("{}/{}", request.name, sub.name),
        class_name: &sub.device_class_name,
        selectors: sub.selectors.as_ref(),
        allocation_mode: sub.allocation_mode.as_deref(),
        count: sub.count,
        admin_access: None,
        tolerations: sub.tolerations.as_ref(),
        capacity: sub.capacity.as_ref(),
    });
    subrequests.collect()
}

fn resolve<'a>(
    fields: RequestFields<'a>,
    classes: &'a BTreeMap<String, DeviceClass>,
    inventory: &Inventory,
    in_use: &InUse,
) -> Result<Alternative<'a>, String> {
    let class = classes
        .get(fields.class_name)
        .ok_or_else(|| format!("request {}: device class {} does not exist", fields.name, fields.class_name))?;
    let mut selectors = Vec::new();
    let own = fields.selectors.into_iter().flatten().map(|selector| (selector, false));
    let of_class = class.spec.iter().flat_map(|spec| spec.selectors.iter().flatten()).map(|selector| (selector, true));
    for (selector, of_class) in of_class.chain(own) {
        let Some(cel) = &selector.cel else {
            return Err(format!("request {}: a selector is of an unsupported kind", fields.name));
        };
        selectors.push(RequestSelector { expression: &cel.expression, of_class });
    }
    let mut alternative = Alternative {
        name: fields.name,
        class_name: fields.class_name,
        class,
        selectors,
        count: Count::Exactly(1),
        admin_access: fields.admin_access == Some(true),
        tolerations: fields.tolerations.map(Vec::as_slice).unwrap_or_default(),
        capacity: fields.capacity.and_then(|capacity| capacity.requests.as_ref()).unwrap_or(&NO_CAPACITY),
    };
    alternative.count = match fields.allocation_mode {
        None | Some("ExactCount") => match usize::try_from(fields.count.unwrap_or(1)) {
            Ok(count) => Count::Exactly(count),
            Err(_) => return Err(format!("request {}: the number of devices is invalid", alternative.name)),
        },
        Some("All") => Count::All(all_matching(&alternative, inventory, in_use)?),
        Some(mode) => return Err(format!("request {}: allocation mode {mode} is not supported", alternative.name)),
    };
    Ok(alternative)
}

/// Returns all matching candidates. Fails while a pool of the node is incomplete, since they are not known then.
fn all_matching(alternative: &Alternative<'_>, inventory: &Inventory, in_use: &InUse) -> Result<Vec<usize>, String> {
    let unusable = inventory.pools.iter().find_map(|pool| Some((pool, pool.unusable.as_deref()?)));
    if let Some((pool, reason)) = unusable {
        return Err(format!(
            "request {}: it asks for all devices, but pool {} of driver {} {reason}",
            alternative.name, pool.name, pool.driver
        ));
    }
    let mut matching = Vec::new();
    for (index, candidate) in inventory.candidates.iter().enumerate() {
        let consumed = |name: &str| in_use.consumed_of(&candidate.id, name);
        let has_capacity = || capacity::consumption(alternative.capacity, candidate, consumed).is_ok();
        if alternative.matches(inventory, index)? && has_capacity() {
            matching.push(index);
        }
    }
    Ok(matching)
}

impl Alternative<'_> {
    /// Reports whether all selectors match a candidate. An error fails the claim, not the candidate.
    pub(super) fn matches(&self, inventory: &Inventory, candidate: usize) -> Result<bool, String> {
        Ok(self.mismatch(inventory, candidate)?.is_none())
    }

    /// Returns the first selector that does not match a candidate.
    pub(super) fn mismatch(
        &self,
        inventory: &Inventory,
        candidate: usize,
    ) -> Result<Option<RequestSelector<'_>>, String> {
        for selector in &self.selectors {
            match inventory.matches(selector.expression, candidate) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(*selector)),
                Err(error) => {
                    let id = &inventory.candidates[candidate].id;
                    let class =
                        if selector.of_class { format!(" of class {}", self.class_name) } else { String::new() };
                    return Err(format!("request {}{class}, device {id}: {error}", self.name));
                }
            }
        }
        Ok(None)
    }
}
