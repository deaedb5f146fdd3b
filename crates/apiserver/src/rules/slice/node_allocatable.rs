//! Validation of the node allocatable resources that a device uses.

use serde_json::Value;

use super::super::field::{Errors, Path};
use super::super::quantity;
use super::super::value::{entries, get, optional_text, text};

pub(super) fn validate(device: &Value, path: &Path, errors: &mut Errors) {
    let capacities = get(device, "capacity").unwrap_or(&Value::Null);
    for (name, resource) in entries(device, "nodeAllocatableResources") {
        let path = path.key(name);
        if name != "cpu" && name != "memory" && !name.starts_with("hugepages-") {
            errors.invalid(&path, name, "must be a node allocatable resource name");
        }
        let mapping = get(resource, "mapping");
        let overhead = get(resource, "overhead");
        if mapping.is_none() && overhead.is_none() {
            errors.required(&path, "at least one of mapping or overhead must be set");
        }
        if let Some(mapping) = mapping {
            validate_mapping(mapping, capacities, &path.child("mapping"), errors);
        }
        if let Some(overhead) = overhead {
            validate_overhead(overhead, &path.child("overhead"), errors);
        }
    }
}

fn validate_mapping(mapping: &Value, capacities: &Value, path: &Path, errors: &mut Errors) {
    let key = optional_text(mapping, "capacityKey");
    let [has_multiplier, has_device] =
        ["capacityMultiplier", "deviceMultiplier"].map(|field| get(mapping, field).is_some());
    match key {
        Some("") => errors.invalid(&path.child("capacityKey"), "", "capacityKey must not be an empty string"),
        Some(key) if capacities.get(key).is_none() => errors.not_found(&path.child("capacityKey"), key, ""),
        _ => {}
    }
    if key.is_some() && !has_multiplier {
        let detail = "capacityMultiplier is required when capacityKey is set";
        errors.required(&path.child("capacityMultiplier"), detail);
    } else if key.is_some() {
        multiplier(mapping, "capacityMultiplier", path, errors);
    } else if has_multiplier {
        errors.required(&path.child("capacityKey"), "capacityKey is required when capacityMultiplier is set");
    }
    if has_device {
        multiplier(mapping, "deviceMultiplier", path, errors);
    }
    const ALL: &str = "`capacityKey`, `deviceMultiplier`";
    match (key.is_some(), has_device) {
        (false, false) => errors.invalid(path, "", &format!("must specify one of: {ALL}")),
        (true, true) => {
            let shown = "{capacityKey, deviceMultiplier}";
            errors.invalid(path, shown, &format!("must specify exactly one of: {ALL}"));
        }
        _ => {}
    }
}

fn multiplier(mapping: &Value, field: &'static str, path: &Path, errors: &mut Errors) {
    match quantity::read(get(mapping, field)) {
        Ok(quantity) if !quantity.is_positive() => {
            errors.invalid(&path.child(field), &quantity.to_string(), "must be positive");
        }
        Ok(_) => {}
        Err(error) => errors.invalid(&path.child(field), text(mapping, field), &error.to_string()),
    }
}

fn validate_overhead(overhead: &Value, path: &Path, errors: &mut Errors) {
    let fields = ["perPod", "perContainer"];
    if fields.iter().all(|field| get(overhead, field).is_none()) {
        return errors.invalid(path, "", "at least one of perPod or perContainer must be set");
    }
    for field in fields {
        match quantity::read(get(overhead, field)) {
            Ok(quantity) if quantity.is_negative() => {
                errors.invalid(&path.child(field), &quantity.to_string(), "must be non-negative");
            }
            Ok(_) => {}
            Err(error) => errors.invalid(&path.child(field), text(overhead, field), &error.to_string()),
        }
    }
}
