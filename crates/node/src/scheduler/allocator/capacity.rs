//! The capacity of a device that a request consumes, by the device's request policies (KEP-5075).

use std::collections::BTreeMap;

use drakkar_client::{ParseQuantityError, Quantity};
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::inventory::Candidate;

/// Amounts by the qualified names of capacities, `domain/name`.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// Returns the qualified name of a capacity of a driver's device.
pub(crate) fn qualified(name: &str, driver: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("{driver}/{name}") }
}

pub(crate) fn add(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let sum = to.get(name).map_or_else(|| amount.clone(), |before| before + amount);
        to.insert(name.clone(), sum);
    }
}

pub(crate) fn subtract(from: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        if let Some(before) = from.get_mut(name) {
            *before = &*before - amount;
        }
    }
}

/// Returns what a request consumes of the device, or why the device cannot provide it. Capacities that the request does not
/// name are consumed too: by their policy's default, or else entirely.
pub(crate) fn consumption(
    requested: &BTreeMap<String, ApiQuantity>,
    candidate: &Candidate,
    consumed: impl Fn(&str) -> Quantity,
) -> Result<Amounts, String> {
    let driver = candidate.id.driver();
    let none = BTreeMap::new();
    let published = candidate.device.capacity.as_ref().unwrap_or(&none);
    let capacities: BTreeMap<_, _> =
        published.iter().map(|(name, capacity)| (qualified(name, driver), capacity)).collect();
    let mut amounts_requested = Amounts::new();
    for (name, amount) in requested {
        let full = qualified(name, driver);
        if !capacities.contains_key(&full) {
            return Err(format!("no capacity {name}"));
        }
        amounts_requested.insert(full, amount.0.parse().map_err(|error| format!("capacity {name}: {error}"))?);
    }
    let mut amounts = Amounts::new();
    for (name, capacity) in capacities {
        let (amount, total) = consume(amounts_requested.remove(&name), capacity)
            .map_err(|reason| format!("capacity {name}: {reason}"))?;
        if &consumed(&name) + &amount > total {
            return Err(format!("not enough of capacity {name}"));
        }
        amounts.insert(name, amount);
    }
    Ok(amounts)
}

/// Returns the amounts for a claim's status, by the names with which the device published them.
pub(crate) fn for_status(amounts: &Amounts, candidate: &Candidate) -> BTreeMap<String, ApiQuantity> {
    let published = candidate.device.capacity.iter().flatten();
    let named = published.filter_map(|(name, _)| {
        let amount = amounts.get(&qualified(name, candidate.id.driver()))?;
        Some((name.clone(), ApiQuantity(amount.to_string())))
    });
    named.collect()
}

/// Returns the amount that a request consumes, and the total capacity.
fn consume(requested: Option<Quantity>, capacity: &DeviceCapacity) -> Result<(Quantity, Quantity), String> {
    let total = parse(&capacity.value)?;
    let policy = capacity.request_policy.as_ref();
    let amount = match (requested, policy) {
        (None, Some(CapacityRequestPolicy { default: Some(default), .. })) => return Ok((parse(default)?, total)),
        (None, _) => total.clone(),
        (Some(requested), None) => requested,
        (Some(requested), Some(policy)) => round_up(requested, policy)?,
    };
    Ok((amount, total))
}

/// Rounds a requested amount up to what the policy allows.
fn round_up(requested: Quantity, policy: &CapacityRequestPolicy) -> Result<Quantity, String> {
    if let Some(range) = &policy.valid_range {
        let min = parse(&range.min)?;
        let amount = match &range.step {
            _ if requested < min => min,
            None => requested,
            Some(step) => min.step_up_to(&requested, &parse(step)?),
        };
        return match range.max.as_ref().map(parse).transpose()? {
            Some(max) if amount > max => Err(format!("{amount} is more than the maximum of {max} for one request")),
            _ => Ok(amount),
        };
    }
    let Some(values) = policy.valid_values.as_ref().filter(|values| !values.is_empty()) else { return Ok(requested) };
    let values = values.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let smallest = values.into_iter().find(|value| requested <= *value);
    smallest.ok_or_else(|| format!("{requested} is more than any amount that one request can have"))
}

fn parse(quantity: &ApiQuantity) -> Result<Quantity, String> {
    quantity.0.parse().map_err(|error: ParseQuantityError| format!("{:?}: {error}", quantity.0))
}
