//! How much of a device's capacity a request takes, by the device's request policies (KEP-5075).

use std::collections::BTreeMap;

use drakkar_client::{ParseQuantityError, Quantity};
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::inventory::Candidate;

/// Amounts by the full names of capacities, `domain/name`.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// The full name of a capacity of a driver's device.
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

/// What a request takes of the device, or why the device cannot give it. Each capacity counts, asked for or not: by its
/// policy's default, or else all of it.
pub(crate) fn wanted(
    requested: &BTreeMap<String, ApiQuantity>,
    candidate: &Candidate,
    consumed: impl Fn(&str) -> Quantity,
) -> Result<Amounts, String> {
    let driver = candidate.id.driver();
    let none = BTreeMap::new();
    let published = candidate.device.capacity.as_ref().unwrap_or(&none);
    let capacities: BTreeMap<_, _> =
        published.iter().map(|(name, capacity)| (qualified(name, driver), capacity)).collect();
    let mut asked = Amounts::new();
    for (name, amount) in requested {
        let full = qualified(name, driver);
        if !capacities.contains_key(&full) {
            return Err(format!("no capacity {name}"));
        }
        asked.insert(full, amount.0.parse().map_err(|error| format!("capacity {name}: {error}"))?);
    }
    let mut amounts = Amounts::new();
    for (name, capacity) in capacities {
        let (amount, total) = take(asked.remove(&name), capacity).map_err(|why| format!("capacity {name}: {why}"))?;
        if &consumed(&name) + &amount > total {
            return Err(format!("not enough of capacity {name}"));
        }
        amounts.insert(name, amount);
    }
    Ok(amounts)
}

/// What a claim's status calls the amounts: by the names with which the device published them.
pub(crate) fn for_status(amounts: &Amounts, candidate: &Candidate) -> BTreeMap<String, ApiQuantity> {
    let published = candidate.device.capacity.iter().flatten();
    let named = published.filter_map(|(name, _)| {
        let amount = amounts.get(&qualified(name, candidate.id.driver()))?;
        Some((name.clone(), ApiQuantity(amount.to_string())))
    });
    named.collect()
}

/// The amount that is taken for what was asked, and all that there is.
fn take(asked: Option<Quantity>, capacity: &DeviceCapacity) -> Result<(Quantity, Quantity), String> {
    let total = parse(&capacity.value)?;
    let policy = capacity.request_policy.as_ref();
    let amount = match (asked, policy) {
        (None, Some(CapacityRequestPolicy { default: Some(default), .. })) => return Ok((parse(default)?, total)),
        (None, _) => total.clone(),
        (Some(asked), None) => asked,
        (Some(asked), Some(policy)) => allowed(asked, policy)?,
    };
    Ok((amount, total))
}

/// What was asked, rounded up to what the policy allows.
fn allowed(asked: Quantity, policy: &CapacityRequestPolicy) -> Result<Quantity, String> {
    if let Some(range) = &policy.valid_range {
        let min = parse(&range.min)?;
        let amount = match &range.step {
            _ if asked < min => min,
            None => asked,
            Some(step) => min.step_up_to(&asked, &parse(step)?),
        };
        return match range.max.as_ref().map(parse).transpose()? {
            Some(max) if amount > max => Err(format!("{amount} is more than the {max} that one request can have")),
            _ => Ok(amount),
        };
    }
    let Some(values) = policy.valid_values.as_ref().filter(|values| !values.is_empty()) else { return Ok(asked) };
    let values = values.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let fitting = values.into_iter().find(|value| asked <= *value);
    fitting.ok_or_else(|| format!("{asked} is more than any amount that one request can have"))
}

fn parse(quantity: &ApiQuantity) -> Result<Quantity, String> {
    quantity.0.parse().map_err(|error: ParseQuantityError| format!("{:?}: {error}", quantity.0))
}
