//! Validation of shared counters and their consumption.

use serde_json::Value;

use super::super::field::{Bad, Errors, Path};
use super::super::formats::declared_label;
use super::super::names::{self, Wording};
use super::super::quantity;
use super::super::schema::{COUNTER_SET, DEVICE_COUNTER_CONSUMPTION, show};
use super::super::value::{entries, get, list, text, texts};

/// The maximum number of counter sets of a slice.
const MAX_SETS: usize = 8;
/// The maximum number of counters in a set or consumption.
const MAX_COUNTERS: usize = 32;
/// The maximum number of sets that a device consumes from.
const MAX_CONSUMED_SETS: usize = 2;
/// The maximum number of compatibility groups of a consumption.
const MAX_GROUPS: usize = 2;

pub(super) fn shared(spec: &Value, path: &Path, errors: &mut Errors) {
    let sets = list(spec, "sharedCounters");
    if errors.too_many(path, sets.len(), MAX_SETS) {
        return;
    }
    for (index, set) in sets.iter().enumerate() {
        if sets[..index].iter().any(|other| text(other, "name") == text(set, "name")) {
            errors.duplicate(&path.index(index), Bad::Json(show(&COUNTER_SET, set)));
        }
        let path = path.index(index);
        declared_label(text(set, "name"), &path.child("name"), errors);
        counters(set, &path.child("counters"), errors);
    }
}

pub(super) fn consumed(device: &Value, path: &Path, errors: &mut Errors) {
    let consumptions = list(device, "consumesCounters");
    if errors.too_many(path, consumptions.len(), MAX_CONSUMED_SETS) {
        return;
    }
    for (index, consumption) in consumptions.iter().enumerate() {
        let set = text(consumption, "counterSet");
        if consumptions[..index].iter().any(|other| text(other, "counterSet") == set) {
            errors.duplicate(&path.index(index), Bad::Json(show(&DEVICE_COUNTER_CONSUMPTION, consumption)));
        }
        let path = path.index(index);
        declared_label(set, &path.child("counterSet"), errors);
        counters(consumption, &path.child("counters"), errors);
        groups(consumption, &path.child("compatibilityGroups"), errors);
    }
}

fn counters(set: &Value, path: &Path, errors: &mut Errors) {
    let counters = entries(set, "counters");
    if counters.len() == 0 {
        return errors.required(path, "");
    }
    errors.too_many(path, counters.len(), MAX_COUNTERS);
    for (name, counter) in counters {
        errors.invalid_each(path, name, names::label(name, Wording::Bytes));
        if let Err(error) = quantity::read(get(counter, "value")) {
            errors.invalid(&path.key(name).child("value"), text(counter, "value"), &error.to_string());
        }
    }
}

fn groups(consumption: &Value, path: &Path, errors: &mut Errors) {
    let groups = texts(consumption, "compatibilityGroups");
    if errors.too_many(path, groups.len(), MAX_GROUPS) {
        return;
    }
    for (index, group) in groups.iter().enumerate() {
        if groups[..index].contains(group) {
            errors.duplicate(&path.index(index), *group);
        }
        errors.invalid_each(&path.index(index), group, names::label(group, Wording::Bytes));
    }
}
