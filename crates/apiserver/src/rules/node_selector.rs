//! Validation of node selectors.

use serde_json::Value;

use super::field::{Errors, Path};
use super::formats::{label_key, label_value, node_name};
use super::value::{list, text, texts};

pub(super) fn validate(selector: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        return errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        for (index, requirement) in list(term, "matchExpressions").iter().enumerate() {
            expression(requirement, &path.child("matchExpressions").index(index), errors);
        }
        for (index, requirement) in list(term, "matchFields").iter().enumerate() {
            field(requirement, &path.child("matchFields").index(index), errors);
        }
    }
}

fn expression(requirement: &Value, path: &Path, errors: &mut Errors) {
    let values = texts(requirement, "values");
    let at_values = path.child("values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at_values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(&at_values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&at_values, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    label_key(text(requirement, "key"), &path.child("key"), errors);
    for (index, value) in values.iter().enumerate() {
        label_value(value, &at_values.index(index), errors);
    }
}

fn field(requirement: &Value, path: &Path, errors: &mut Errors) {
    let values = texts(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&path.child("values"), detail);
        }
        "In" | "NotIn" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    match text(requirement, "key") {
        "metadata.name" => {
            for (index, value) in values.iter().enumerate() {
                node_name(value, &path.child("values").index(index), errors);
            }
        }
        other => errors.invalid(&path.child("key"), other, "not a valid field selector key"),
    }
}
