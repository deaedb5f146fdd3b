//! Rules for capacities and their request policies.

use std::fmt;

use drakkar_client::Quantity as Amount;
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::resources::Capacity;
use super::Errors;

/// The largest number of valid values of a request policy.
const MAX_VALUES: usize = 10;

/// Parses a quantity.
pub(super) fn quantity(quantity: &Quantity) -> Result<Amount, String> {
    let problem = |error| format!("{:?} is not a quantity, such as 4, 1500m or 80Gi: {error}", quantity.0);
    quantity.0.parse().map_err(problem)
}

pub(super) fn capacity(path: fmt::Arguments<'_>, capacity: &Capacity, is_shared: bool, errors: &mut Errors) {
    let total = match quantity(&capacity.value) {
        Ok(total) => total,
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
        (_, Some(range)) => valid_range(format_args!("{path}.validRange"), range, default.as_ref(), &total, errors),
        _ => valid_values(format_args!("{path}.validValues"), policy, default.as_ref(), &total, errors),
    }
}

fn valid_values(
    path: fmt::Arguments<'_>,
    policy: &CapacityRequestPolicy,
    default: Option<&Amount>,
    total: &Amount,
    errors: &mut Errors,
) {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    if values.is_empty() || !errors.fits(path, values.len(), MAX_VALUES) {
        return;
    }
    let mut before: Option<Amount> = None;
    let mut has_default = default.is_none();
    for (index, text) in values.iter().enumerate() {
        let value = match quantity(text) {
            Ok(value) => value,
            Err(problem) => return errors.push(format_args!("{path}[{index}]"), problem),
        };
        if before.is_some_and(|before| before >= value) {
            errors.push(format_args!("{path}[{index}]"), "must be larger than the value before it");
        }
        if value > *total {
            errors.push(format_args!("{path}[{index}]"), format_args!("{} is more than the capacity", text.0));
        }
        has_default |= default == Some(&value);
        before = Some(value);
    }
    if !has_default {
        errors.push(path, "do not include the default");
    }
}

fn valid_range(
    path: fmt::Arguments<'_>,
    range: &CapacityRequestPolicyRange,
    default: Option<&Amount>,
    total: &Amount,
    errors: &mut Errors,
) {
    let mut read = |field: &str, text: &Quantity| {
        quantity(text).map_err(|problem| errors.push(format_args!("{path}.{field}"), problem)).ok()
    };
    let Some(min) = read("min", &range.min) else { return };
    let max = range.max.as_ref().and_then(|max| read("max", max));
    let step = range.step.as_ref().and_then(|step| read("step", step));
    if min > *total {
        errors.push(format_args!("{path}.min"), "is more than the capacity");
    }
    if let Some(max) = &max {
        if *max < min {
            errors.push(format_args!("{path}.max"), "is less than min");
        }
        if *max > *total {
            errors.push(format_args!("{path}.max"), "is more than the capacity");
        }
    }
    if let Some(default) = default
        && (*default < min || max.as_ref().is_some_and(|max| default > max))
    {
        errors.push(path, "does not include the default");
    }
    let Some(step) = step else { return };
    if !step.is_positive() {
        return errors.push(format_args!("{path}.step"), "must be positive");
    }
    if &min + &step > *total {
        errors.push(format_args!("{path}.step"), "one step from min is more than the capacity");
    }
    let steps = Steps { min, step, ends: [default.cloned(), max] };
    errors.check(format_args!("{path}.step"), steps.check());
}

/// A range with steps: default and maximum must be a whole number of steps from the minimum.
struct Steps {
    min: Amount,
    step: Amount,
    ends: [Option<Amount>; 2],
}

impl Steps {
    /// API servers count in whole numbers, rounded up; those with the feature gate `DRAFractionalCapacityRange` count in
    /// thousandths if there are fractions. A range that is valid to either of them passes here.
    fn check(&self) -> Result<(), String> {
        let in_units = self.check_in(0);
        let has_fractions = self.parts().any(|part| !part.is_multiple_of(0));
        let is_in_millis = has_fractions && self.parts().all(|part| part.is_multiple_of(-3));
        if is_in_millis && self.check_in(-3).is_ok() { Ok(()) } else { in_units }
    }

    fn parts(&self) -> impl Iterator<Item = &Amount> {
        [&self.min, &self.step].into_iter().chain(self.ends.iter().flatten())
    }

    /// Validates the steps, counted in units of ten to the power of this exponent.
    fn check_in(&self, exponent: i32) -> Result<(), String> {
        let count = |amount: &Amount| {
            let counted = amount.scaled(exponent).filter(|count| (0..=i128::from(i64::MAX)).contains(count));
            counted.ok_or_else(|| format!("{amount} is not valid in a range with steps: must be from 0 to 2^63-1"))
        };
        let min = count(&self.min)?;
        let step = count(&self.step)?.max(1);
        for end in self.ends.iter().flatten() {
            if (count(end)? - min) % step != 0 {
                return Err(format!("{end} is not a whole number of steps of {} from {}", self.step, self.min));
            }
        }
        Ok(())
    }
}
