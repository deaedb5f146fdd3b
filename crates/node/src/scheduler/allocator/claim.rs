//! What a claim asks for, with the classes looked up and both forms of requests made one.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceToleration, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::constraint::Constraint;
use super::in_use::InUse;
use super::inventory::Inventory;
use super::{MAX_RESULTS, Refusal, capacity};

static NOTHING: BTreeMap<String, Quantity> = BTreeMap::new();

/// A claim that is to be allocated.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) claim: &'a ResourceClaim,
    pub(super) requests: Vec<Request<'a>>,
    pub(super) constraints: Vec<Constraint<'a>>,
}

/// One request: one of its wants must be had, the first if possible.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) wants: Vec<Want<'a>>,
}

/// A request of the form `exactly`, or one of the subrequests of a request of the form `firstAvailable`.
#[derive(Debug)]
pub(super) struct Want<'a> {
    /// What a result calls it: `request` or `request/subrequest`.
    pub(super) name: String,
    pub(super) class_name: &'a str,
    pub(super) class: &'a DeviceClass,
    pub(super) selectors: Vec<Wanted<'a>>,
    pub(super) count: Count,
    pub(super) admin_access: bool,
    pub(super) tolerations: &'a [DeviceToleration],
    pub(super) capacity: &'a BTreeMap<String, Quantity>,
}

/// A selector and where it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) expression: &'a str,
    pub(super) of_class: bool,
}

/// How many devices.
#[derive(Debug)]
pub(super) enum Count {
    Exactly(usize),
    /// All that match: these candidates.
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

/// The parts in which the two forms of requests are alike.
struct Form<'a> {
    name: String,
    class_name: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    allocation_mode: Option<&'a str>,
    count: Option<i64>,
    admin_access: Option<bool>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    capacity: Option<&'a CapacityRequirements>,
}

/// Namespace and name of a claim.
pub(super) fn title(claim: &ResourceClaim) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&claim.metadata.namespace), part(&claim.metadata.name))
}

/// Reads a claim.
pub(super) fn plan<'a>(
    claim: &'a ResourceClaim,
    classes: &'a BTreeMap<String, DeviceClass>,
    inventory: &Inventory,
    in_use: &InUse,
) -> Result<Plan<'a>, Refusal> {
    let refused = |why: String| Refusal(format!("claim {}: {why}", title(claim)));
    let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    let mut requests = Vec::new();
    for request in devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
        let wants = forms(request).into_iter().map(|form| want(form, classes, inventory, in_use));
        let wants = wants.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        if wants.is_empty() {
            return Err(refused(format!("request {}: it is of a kind that is not known here", request.name)));
        }
        requests.push(Request { name: &request.name, wants });
    }
    let least = |request: &Request<'_>| request.wants.iter().map(|want| want.count.devices()).min().unwrap_or(0);
    let least: usize = requests.iter().map(least).sum();
    if least > MAX_RESULTS {
        return Err(refused(format!("it asks for {least} devices, and no claim can have more than {MAX_RESULTS}")));
    }
    let constraints = devices.iter().flat_map(|devices| devices.constraints.iter().flatten()).map(Constraint::new);
    Ok(Plan { claim, requests, constraints: constraints.collect::<Result<_, _>>().map_err(refused)? })
}

fn forms(request: &DeviceRequest) -> Vec<Form<'_>> {
    if let Some(exactly) = &request.exactly {
        return vec![Form {
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
    let subrequests = request.first_available.iter().flatten().map(|sub| Form {
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

fn want<'a>(
    form: Form<'a>,
    classes: &'a BTreeMap<String, DeviceClass>,
    inventory: &Inventory,
    in_use: &InUse,
) -> Result<Want<'a>, String> {
    let class = classes
        .get(form.class_name)
        .ok_or_else(|| format!("request {}: device class {} does not exist", form.name, form.class_name))?;
    let mut selectors = Vec::new();
    let own = form.selectors.into_iter().flatten().map(|selector| (selector, false));
    let of_class = class.spec.iter().flat_map(|spec| spec.selectors.iter().flatten()).map(|selector| (selector, true));
    for (selector, of_class) in of_class.chain(own) {
        let Some(cel) = &selector.cel else {
            return Err(format!("request {}: a selector is of a kind that is not known here", form.name));
        };
        selectors.push(Wanted { expression: &cel.expression, of_class });
    }
    let mut want = Want {
        name: form.name,
        class_name: form.class_name,
        class,
        selectors,
        count: Count::Exactly(1),
        admin_access: form.admin_access == Some(true),
        tolerations: form.tolerations.map(Vec::as_slice).unwrap_or_default(),
        capacity: form.capacity.and_then(|capacity| capacity.requests.as_ref()).unwrap_or(&NOTHING),
    };
    want.count = match form.allocation_mode {
        None | Some("ExactCount") => match usize::try_from(form.count.unwrap_or(1)) {
            Ok(count) => Count::Exactly(count),
            Err(_) => return Err(format!("request {}: it asks for an impossible number of devices", want.name)),
        },
        Some("All") => Count::All(all(&want, inventory, in_use)?),
        Some(mode) => return Err(format!("request {}: allocation mode {mode} is not known here", want.name)),
    };
    Ok(want)
}

/// All candidates that match. Which those are cannot be said while a pool of the node changes.
fn all(want: &Want<'_>, inventory: &Inventory, in_use: &InUse) -> Result<Vec<usize>, String> {
    let unusable = inventory.pools.iter().find_map(|pool| Some((pool, pool.unusable.as_deref()?)));
    if let Some((pool, why)) = unusable {
        return Err(format!(
            "request {}: it asks for all devices, but pool {} of driver {} {why}",
            want.name, pool.name, pool.driver
        ));
    }
    let mut matching = Vec::new();
    for (index, candidate) in inventory.candidates.iter().enumerate() {
        let consumed = |name: &str| in_use.consumed_of(&candidate.id, name);
        if want.matches(inventory, index)? && capacity::wanted(want.capacity, candidate, consumed).is_ok() {
            matching.push(index);
        }
    }
    Ok(matching)
}

impl Want<'_> {
    /// Whether all selectors are true of a candidate. An error is one of the claim, not of the candidate.
    pub(super) fn matches(&self, inventory: &Inventory, candidate: usize) -> Result<bool, String> {
        Ok(self.mismatch(inventory, candidate)?.is_none())
    }

    /// The first selector that is not true of a candidate.
    pub(super) fn mismatch(&self, inventory: &Inventory, candidate: usize) -> Result<Option<Wanted<'_>>, String> {
        for selector in &self.selectors {
            match inventory.matches(selector.expression, candidate) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(*selector)),
                Err(error) => {
                    let id = &inventory.candidates[candidate].id;
                    let of = if selector.of_class { format!(" of class {}", self.class_name) } else { String::new() };
                    return Err(format!("request {}{of}, device {id}: {error}", self.name));
                }
            }
        }
        Ok(None)
    }
}
