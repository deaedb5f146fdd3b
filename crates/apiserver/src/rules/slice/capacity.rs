//! Validation of capacities and their request policies.

use serde_json::Value;

use super::super::field::{Errors, Path};
use super::super::formats::{qualified_name, shown_key};
use super::super::gates::Gates;
use super::super::quantity::{ParseQuantityError, Quantity, read};
use super::super::value::{entries, flag, get, list, text};
use super::attribute::MAX_SHOWN_NAME_BYTES;

/// The powers of ten of the units in which amounts are compared.
const UNITS: i32 = 0;
const MILLIS: i32 = -3;
/// The maximum number of valid values of a policy.
const MAX_VALID_VALUES: usize = 10;

pub(super) fn validate(device: &Value, path: &Path, gates: &Gates, errors: &mut Errors) {
    let shared = flag(device, "allowMultipleAllocations") == Some(true);
    for (name, capacity) in entries(device, "capacity") {
        qualified_name(name, path, errors);
        let path = path.key(&shown_key(name, MAX_SHOWN_NAME_BYTES));
        let value = match read(get(capacity, "value")) {
            Ok(value) => value,
            Err(error) => {
                errors.invalid(&path.child("value"), text(capacity, "value"), &error.to_string());
                continue;
            }
        };
        let Some(policy) = get(capacity, "requestPolicy") else { continue };
        let path = path.child("requestPolicy");
        if shared {
            validate_policy(&value, policy, &path, gates, errors);
        } else {
            errors.forbidden(&path, "allowMultipleAllocations must be true");
        }
    }
}

fn validate_policy(value: &Quantity, policy: &Value, path: &Path, gates: &Gates, errors: &mut Errors) {
    let values = list(policy, "validValues");
    let range = get(policy, "validRange");
    let kind = match (values, range) {
        ([], None) => return,
        ([], Some(_)) => "validRange",
        (_, None) => "validValues",
        (_, Some(_)) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            return errors.forbidden(path, detail);
        }
    };
    let default = match optional(policy, "default") {
        Ok(Some(default)) => default,
        Ok(None) => return errors.required(&path.child("default"), &format!("required when {kind} is defined")),
        Err(error) => return errors.invalid(&path.child("default"), text(policy, "default"), &error.to_string()),
    };
    match range {
        Some(range) => validate_range(value, &default, range, &path.child("validRange"), gates, errors),
        None => validate_values(value, &default, values, &path.child("validValues"), gates, errors),
    }
}

fn optional(object: &Value, field: &str) -> Result<Option<Quantity>, ParseQuantityError> {
    get(object, field).map(|value| read(Some(value))).transpose()
}

fn validate_values(
    capacity: &Quantity,
    default: &Quantity,
    values: &[Value],
    path: &Path,
    gates: &Gates,
    errors: &mut Errors,
) {
    let mut quantities = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        match read(Some(value)) {
            Ok(quantity) => quantities.push(quantity),
            Err(error) => {
                return errors.invalid(&path.index(index), value.as_str().unwrap_or_default(), &error.to_string());
            }
        }
    }
    for (index, pair) in quantities.windows(2).enumerate() {
        if pair[0] > pair[1] {
            errors.invalid(&path.index(index + 1), &pair[1].to_string(), "values must be sorted in ascending order");
        }
    }
    let mut has_default = false;
    if !errors.too_many(path, quantities.len(), MAX_VALID_VALUES) {
        for (index, quantity) in quantities.iter().enumerate() {
            if quantity > capacity {
                let detail = format!("option is larger than capacity value: {capacity}");
                errors.invalid(&path.index(index), &quantity.to_string(), &detail);
            }
            has_default |= quantity == default;
        }
        // Without fractions, values that are equal when rounded up are duplicates.
        let fractions = gates.enabled("DRAFractionalCapacityRange");
        for (index, quantity) in quantities.iter().enumerate() {
            let is_same = |other: &Quantity| {
                if fractions { other == quantity } else { other.scaled(UNITS) == quantity.scaled(UNITS) }
            };
            if quantities[..index].iter().any(is_same) {
                let shown = match quantity.scaled(UNITS) {
                    Some(units) if !fractions => units.to_string(),
                    _ => quantity.to_string(),
                };
                errors.duplicate(&path.index(index), &shown);
            }
        }
    }
    if !has_default {
        errors.invalid(path, &default.to_string(), "default value is not valid according to the requestPolicy");
    }
}

struct Range {
    default: Quantity,
    min: Quantity,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

impl Range {
    /// Returns the quantities of the range with their field names.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &Quantity)> {
        let parts = [
            ("default", Some(&self.default)),
            ("min", Some(&self.min)),
            ("max", self.max.as_ref()),
            ("step", self.step.as_ref()),
        ];
        parts.into_iter().filter_map(|(name, part)| part.map(|part| (name, part)))
    }
}

fn validate_range(
    capacity: &Quantity,
    default: &Quantity,
    range: &Value,
    path: &Path,
    gates: &Gates,
    errors: &mut Errors,
) {
    let mut parts = Vec::new();
    for field in ["min", "max", "step"] {
        match optional(range, field) {
            Ok(part) => parts.push(part),
            Err(error) => return errors.invalid(&path.child(field), text(range, field), &error.to_string()),
        }
    }
    let step = parts.pop().flatten();
    let max = parts.pop().flatten();
    let min = parts.pop().flatten();
    let Some(min) = min else {
        return errors.required(&path.child("min"), "required when validRange is defined");
    };
    let range = Range { default: default.clone(), min, max, step };
    validate_bounds(capacity, &range, path, errors);
    let in_millis =
        gates.enabled("DRAFractionalCapacityRange") && range.parts().any(|(_, part)| !part.is_multiple_of(UNITS));
    if in_millis {
        let mut unsafe_parts = range.parts().filter(|(_, part)| !is_whole_millis(part)).peekable();
        if unsafe_parts.peek().is_some() {
            for (name, part) in unsafe_parts {
                errors.invalid(&path.child(name), &part.to_string(), "value cannot be represented as a milli value");
            }
            return;
        }
    }
    if let Some(step) = &range.step {
        validate_step(capacity, &range, step, in_millis, path, errors);
    }
}

fn validate_bounds(capacity: &Quantity, range: &Range, path: &Path, errors: &mut Errors) {
    let Range { default, min, max, .. } = range;
    let mut wrong = |field: &'static str, bad: &Quantity, detail: String| {
        errors.invalid(&path.child(field), &bad.to_string(), &detail);
    };
    if min > capacity {
        wrong("min", min, format!("min is larger than capacity value: {capacity}"));
    }
    if default < min {
        wrong("default", default, format!("default is less than min: {min}"));
    }
    let Some(max) = max else { return };
    if min > max {
        wrong("max", min, format!("min is larger than max: {max}"));
    }
    if max > capacity {
        wrong("max", max, format!("max is larger than capacity value: {capacity}"));
    }
    if default > max {
        wrong("default", default, format!("default is more than max: {max}"));
    }
}

fn validate_step(
    capacity: &Quantity,
    range: &Range,
    step: &Quantity,
    in_millis: bool,
    path: &Path,
    errors: &mut Errors,
) {
    let at_step = path.child("step");
    if !step.is_positive() {
        return errors.invalid(&at_step, &step.to_string(), "must be greater than zero");
    }
    let first = &range.min + step;
    if first > *capacity {
        let detail = format!("one step {first} is larger than capacity value: {capacity}");
        errors.invalid(&at_step, &step.to_string(), &detail);
    }
    if !in_millis {
        let mut out_of_range = false;
        for (name, part) in range.parts() {
            let detail = if part.is_negative() {
                "must be greater than or equal to 0"
            } else if part.scaled(UNITS).is_none_or(|units| units > i128::from(i64::MAX)) {
                "must not be larger than 9223372036854775807"
            } else {
                continue;
            };
            errors.invalid(&path.child(name), &part.to_string(), detail);
            out_of_range = true;
        }
        if out_of_range {
            return;
        }
    }
    // All amounts are known to fit by now; the fallback 1 avoids a division by zero.
    let amount = |quantity: &Quantity| quantity.scaled(if in_millis { MILLIS } else { UNITS });
    let step_size = amount(step).unwrap_or(1);
    for value in [Some(&range.default), range.max.as_ref()].into_iter().flatten() {
        if (amount(value).unwrap_or(0) - amount(&range.min).unwrap_or(0)) % step_size != 0 {
            let detail = format!("value is not a multiple of a given step ({step}) from ({})", range.min);
            errors.invalid(&at_step, &value.to_string(), &detail);
        }
    }
}

fn is_whole_millis(quantity: &Quantity) -> bool {
    quantity.is_multiple_of(MILLIS) && quantity.scaled(MILLIS).is_some_and(|millis| i64::try_from(millis).is_ok())
}
