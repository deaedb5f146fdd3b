//! Rules for capacities and what can be asked for of them.

use std::fmt;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::quantity::{self, Nanos};
use super::super::resources::Capacity;
use super::Errors;

/// How many values a claim can choose from.
const MAX_VALUES: usize = 10;

/// The number that a quantity means.
pub(super) fn quantity(quantity: &Quantity) -> Result<Nanos, String> {
    quantity::parse(&quantity.0).ok_or_else(|| format!("{:?} is not a quantity, such as 4, 1500m or 80Gi", quantity.0))
}

pub(super) fn capacity(path: fmt::Arguments<'_>, capacity: &Capacity, is_shared: bool, errors: &mut Errors) {
    let most = match quantity(&capacity.value) {
        Ok(most) => most,
        Err(problem) => return errors.push(format_args!("{path}.value"), problem),
    };
    let Some(policy) = &capacity.request_policy else { return };
    let path = format_args!("{path}.requestPolicy");
    if !is_shared {
        return errors.push(path, "allowed only if the device allows multiple allocations");
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    let has_rule = !values.is_empty() || policy.valid_range.is_some();
    let default = match &policy.default {
        Some(default) => quantity(default).map_err(|problem| errors.push(format_args!("{path}.default"), problem)).ok(),
        None => None,
    };
    if has_rule && policy.default.is_none() {
        errors.push(format_args!("{path}.default"), "required with validValues or validRange");
    }
    match (values, &policy.valid_range) {
        (values, Some(_)) if !values.is_empty() => errors.push(path, "validValues and validRange exclude each other"),
        (_, Some(range)) => valid_range(format_args!("{path}.validRange"), range, default, most, errors),
        _ => valid_values(format_args!("{path}.validValues"), policy, default, most, errors),
    }
}

fn valid_values(
    path: fmt::Arguments<'_>,
    policy: &CapacityRequestPolicy,
    default: Option<Nanos>,
    most: Nanos,
    errors: &mut Errors,
) {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    if values.is_empty() || !errors.fits(path, values.len(), MAX_VALUES) {
        return;
    }
    let mut before: Option<Nanos> = None;
    let mut has_default = default.is_none();
    for (index, text) in values.iter().enumerate() {
        let value = match quantity(text) {
            Ok(value) => value,
            Err(problem) => return errors.push(format_args!("{path}[{index}]"), problem),
        };
        if before.is_some_and(|before| before >= value) {
            errors.push(format_args!("{path}[{index}]"), "must be larger than the one before");
        }
        if value > most {
            errors.push(format_args!("{path}[{index}]"), format_args!("{} is more than the capacity", text.0));
        }
        has_default |= default == Some(value);
        before = Some(value);
    }
    if !has_default {
        errors.push(path, "the default is not among them");
    }
}

fn valid_range(
    path: fmt::Arguments<'_>,
    range: &CapacityRequestPolicyRange,
    default: Option<Nanos>,
    most: Nanos,
    errors: &mut Errors,
) {
    let mut read = |field: &str, text: &Quantity| {
        quantity(text).map_err(|problem| errors.push(format_args!("{path}.{field}"), problem)).ok()
    };
    let Some(min) = read("min", &range.min) else { return };
    let max = range.max.as_ref().and_then(|max| read("max", max));
    let step = range.step.as_ref().and_then(|step| read("step", step));
    if min > most {
        errors.push(format_args!("{path}.min"), "is more than the capacity");
    }
    if let Some(max) = max {
        if max < min {
            errors.push(format_args!("{path}.max"), "is less than min");
        }
        if max > most {
            errors.push(format_args!("{path}.max"), "is more than the capacity");
        }
    }
    if let Some(default) = default
        && (default < min || max.is_some_and(|max| default > max))
    {
        errors.push(path, "the default is not in it");
    }
    let Some(Nanos(step)) = step else { return };
    if step <= 0 {
        return errors.push(format_args!("{path}.step"), "must be positive");
    }
    if min.0 + step > most.0 {
        errors.push(format_args!("{path}.step"), "one step from min is more than the capacity");
    }
    for (what, value) in [("the default", default), ("max", max)] {
        if value.is_some_and(|value| (value.0 - min.0) % step != 0) {
            errors.push(format_args!("{path}.step"), format_args!("{what} is not a number of steps from min"));
        }
    }
}
