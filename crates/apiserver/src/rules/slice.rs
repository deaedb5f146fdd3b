//! Validation of slices.

mod attribute;
mod capacity;
mod counters;
mod device;
mod node_allocatable;

use serde_json::Value;

use super::field::{Bad, Errors, Path};
use super::formats::{driver, fully_qualified_name, node_name, pool, skip_node_operations};
use super::gates::Gates;
use super::node_selector;
use super::schema::{DEVICE_ATTRIBUTE, NODE_SELECTOR_TERM, show_internal};
use super::value::{at, flag, get, list, number, optional_text, text};

/// The maximum number of devices of a slice.
const MAX_DEVICES: usize = 128;
/// The maximum if any device has taints, counters or list attributes.
const MAX_COMPLEX_DEVICES: usize = 64;

const SELECTION_RULE: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

pub(super) fn validate(new: &Value, old: Option<&Value>, gates: &Gates, errors: &mut Errors) {
    let path = Path::root("spec");
    let spec = get(new, "spec").unwrap_or(&Value::Null);
    let old = old.and_then(|old| get(old, "spec"));
    driver(text(spec, "driver"), &path.child("driver"), errors);
    validate_pool(get(spec, "pool").unwrap_or(&Value::Null), &path.child("pool"), errors);
    if let Some(old) = old {
        immutable(spec, old, &path, errors);
    }
    selection(spec, &path, errors);
    if get(spec, "sharedCounters").is_some() && get(spec, "devices").is_some() {
        errors.invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    devices(spec, old, &path.child("devices"), gates, errors);
    counters::shared(spec, &path.child("sharedCounters"), errors);
    partition_type(spec, old, &path, gates, errors);
    skip_node_operations(spec, &path, errors);
}

fn validate_pool(value: &Value, path: &Path, errors: &mut Errors) {
    pool(text(value, "name"), &path.child("name"), errors);
    let count = number(value, "resourceSliceCount");
    let generation = number(value, "generation");
    if count <= 0 {
        errors.invalid(&path.child("resourceSliceCount"), count, "must be greater than zero");
    }
    if generation < 0 {
        errors.invalid(&path.child("generation"), generation, "must be greater than or equal to zero");
    }
}

fn immutable(spec: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let fields: [(&[&str], Path); 3] = [
        (&["pool", "name"], path.child("pool").child("name")),
        (&["driver"], path.child("driver")),
        (&["nodeName"], path.child("nodeName")),
    ];
    for (field, path) in fields {
        let [new, old] = [spec, old].map(|spec| at(spec, field).and_then(Value::as_str));
        let is_optional = field == ["nodeName"];
        if new.unwrap_or_default() == old.unwrap_or_default() && (!is_optional || new.is_some() == old.is_some()) {
            continue;
        }
        let shown = match new {
            None if is_optional => Bad::null(),
            new => Bad::Text(new.unwrap_or_default()),
        };
        errors.invalid(&path, shown, "field is immutable");
    }
}

fn selection(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut chosen = Vec::new();
    match optional_text(spec, "nodeName") {
        None => {}
        Some("") => {
            let detail = "must be either unset or set to a non-empty string";
            errors.invalid(&path.child("nodeName"), "", detail);
        }
        Some(name) => {
            chosen.push("`nodeName`");
            node_name(name, &path.child("nodeName"), errors);
        }
    }
    if let Some(selector) = get(spec, "nodeSelector") {
        chosen.push("`nodeSelector`");
        let path = path.child("nodeSelector");
        node_selector::validate(selector, &path, errors);
        let terms = list(selector, "nodeSelectorTerms");
        if terms.len() != 1 {
            let shown: Vec<_> = terms.iter().map(|term| show_internal(&NODE_SELECTOR_TERM, term)).collect();
            let shown = match get(selector, "nodeSelectorTerms") {
                Some(_) => Bad::Json(format!("[{}]", shown.join(","))),
                None => Bad::null(),
            };
            errors.invalid(&path.child("nodeSelectorTerms"), shown, "must have exactly one node selector term");
        }
    }
    for (field, name) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        match flag(spec, field) {
            None => {}
            Some(true) => chosen.push(name),
            Some(false) => errors.invalid(&path.child(field), false, "must be either unset or set to true"),
        }
    }
    match chosen.len() {
        0 => errors.required(path, SELECTION_RULE),
        1 => {}
        _ => {
            let shown = format!("{{{}}}", chosen.join(", "));
            errors.invalid(path, &shown, &format!("{SELECTION_RULE}, but multiple fields are set"));
        }
    }
}

fn devices(spec: &Value, old: Option<&Value>, path: &Path, gates: &Gates, errors: &mut Errors) {
    let devices = list(spec, "devices");
    let is_complex = |device: &Value| {
        !list(device, "taints").is_empty()
            || !list(device, "consumesCounters").is_empty()
            || attribute::any_list(device)
    };
    let limit = if devices.iter().any(is_complex) { MAX_COMPLEX_DEVICES } else { MAX_DEVICES };
    if errors.too_many(path, devices.len(), limit) {
        return;
    }
    let per_device = flag(spec, "perDeviceNodeSelection") == Some(true);
    for (index, device) in devices.iter().enumerate() {
        let name = text(device, "name");
        let before = old.and_then(|old| list(old, "devices").iter().find(|device| text(device, "name") == name));
        device::validate(device, before, per_device, &path.index(index), gates, errors);
    }
    for (index, device) in devices.iter().enumerate() {
        let name = text(device, "name");
        if devices[..index].iter().any(|device| text(device, "name") == name) {
            errors.duplicate(&path.index(index), name);
        }
    }
}

/// Validates `partitionTypeAttribute`: every device that consumes counters must have this attribute, as a string.
fn partition_type(spec: &Value, old: Option<&Value>, path: &Path, gates: &Gates, errors: &mut Errors) {
    let Some(name) = optional_text(spec, "partitionTypeAttribute") else { return };
    let at_field = path.child("partitionTypeAttribute");
    let changed = old.is_none_or(|old| optional_text(old, "partitionTypeAttribute") != Some(name));
    let mut name_errors = Errors::default();
    fully_qualified_name(name, &at_field, &mut name_errors);
    let is_valid_name = name_errors.is_empty();
    if changed {
        if gates.enabled("DRAPartitionableDevicesType") {
            errors.append(name_errors);
        } else {
            errors.forbidden(&at_field, "");
        }
    }
    let devices = list(spec, "devices");
    let consumes = |device: &Value| !list(device, "consumesCounters").is_empty();
    if !devices.iter().any(consumes) {
        let detail = "may only be set on a slice which declares devices that consume counters";
        return errors.invalid(&at_field, name, detail);
    }
    if !is_valid_name {
        return;
    }
    let bare = name.strip_prefix(text(spec, "driver")).and_then(|name| name.strip_prefix('/'));
    for (index, device) in devices.iter().enumerate().filter(|(_, device)| consumes(device)) {
        let path = path.child("devices").index(index).child("attributes").key(name);
        let attributes = get(device, "attributes").unwrap_or(&Value::Null);
        match get(attributes, name).or_else(|| bare.and_then(|bare| get(attributes, bare))) {
            None => {
                let detail =
                    "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set";
                errors.required(&path, detail);
            }
            Some(attribute) if get(attribute, "string").is_none() => {
                let shown = Bad::Json(show_internal(&DEVICE_ATTRIBUTE, attribute));
                let detail = "must be a string value because `partitionTypeAttribute` names this attribute";
                errors.invalid(&path, shown, detail);
            }
            Some(_) => {}
        }
    }
}
