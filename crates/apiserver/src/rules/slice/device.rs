//! Validation of a device.

use serde_json::Value;

use super::super::field::{Bad, Errors, Path};
use super::super::formats::{TAINT_EFFECTS, binding_conditions, label, label_key, label_value, node_name};
use super::super::gates::Gates;
use super::super::node_selector;
use super::super::value::{entries, flag, get, list, optional_text, same, text};
use super::{attribute, capacity, counters, node_allocatable};

/// The maximum number of attributes and capacities together.
const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
/// The maximum number of attribute values, including those in lists.
const MAX_ATTRIBUTE_VALUES: usize = 48;
/// The maximum number of taints.
const MAX_TAINTS: usize = 16;

const SELECTION_RULE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

pub(super) fn validate(
    device: &Value,
    old: Option<&Value>,
    per_device: bool,
    path: &Path,
    gates: &Gates,
    errors: &mut Errors,
) {
    label(text(device, "name"), &path.child("name"), errors);
    let total = entries(device, "attributes").len() + entries(device, "capacity").len();
    if total > MAX_ATTRIBUTES_AND_CAPACITIES {
        let detail =
            format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}");
        errors.invalid(path, total, &detail);
    }
    let values = attribute::count_values(device);
    if values > MAX_ATTRIBUTE_VALUES {
        let detail = format!("the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}");
        errors.invalid(path, values, &detail);
    }
    attribute::validate(device, &path.child("attributes"), errors);
    // Unchanged fields are not validated again: the rules have become stricter over time.
    let kept = |field| old.is_some_and(|old| same(get(old, field), get(device, field)));
    if !kept("capacity") {
        capacity::validate(device, &path.child("capacity"), gates, errors);
    }
    if !kept("taints") {
        taints(device, &path.child("taints"), errors);
    }
    counters::consumed(device, &path.child("consumesCounters"), errors);
    selection(device, per_device, path, errors);
    binding_conditions(device, path, errors);
    node_allocatable::validate(device, &path.child("nodeAllocatableResources"), errors);
}

fn taints(device: &Value, path: &Path, errors: &mut Errors) {
    let taints = list(device, "taints");
    if errors.too_many(path, taints.len(), MAX_TAINTS) {
        return;
    }
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        label_key(text(taint, "key"), &path.child("key"), errors);
        label_value(text(taint, "value"), &path.child("value"), errors);
        match text(taint, "effect") {
            "" => errors.required(&path.child("effect"), ""),
            effect if TAINT_EFFECTS.contains(&effect) => {}
            effect => errors.not_supported(&path.child("effect"), effect, &TAINT_EFFECTS),
        }
    }
}

fn selection(device: &Value, per_device: bool, path: &Path, errors: &mut Errors) {
    if !per_device {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| get(device, field).is_some()) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.invalid(path, Bad::null(), detail);
        }
        return;
    }
    let mut chosen = Vec::new();
    match optional_text(device, "nodeName") {
        None => {}
        Some("") => errors.invalid(&path.child("nodeName"), "", "must not be empty"),
        Some(name) => {
            chosen.push("`nodeName`");
            node_name(name, &path.child("nodeName"), errors);
        }
    }
    if let Some(selector) = get(device, "nodeSelector") {
        chosen.push("`nodeSelector`");
        node_selector::validate(selector, &path.child("nodeSelector"), errors);
    }
    match flag(device, "allNodes") {
        None => {}
        Some(true) => chosen.push("`allNodes`"),
        Some(false) => errors.invalid(&path.child("allNodes"), false, "must be either unset or set to true"),
    }
    match chosen.len() {
        0 => errors.required(path, SELECTION_RULE),
        1 => {}
        _ => errors.invalid(path, &format!("{{{}}}", chosen.join(", ")), SELECTION_RULE),
    }
}
