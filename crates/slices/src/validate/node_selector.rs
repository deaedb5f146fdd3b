//! Rules for node selectors.

use std::fmt;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

use super::{Errors, text};

/// Validates a selector. That of a pool has exactly one term; that of a device may have several.
pub(super) fn node_selector(path: fmt::Arguments<'_>, selector: &NodeSelector, is_of_pool: bool, errors: &mut Errors) {
    let terms = &selector.node_selector_terms;
    let path = format_args!("{path}.nodeSelectorTerms");
    if is_of_pool && terms.len() != 1 {
        errors.push(path, "must be exactly one");
    } else if terms.is_empty() {
        errors.push(path, "required: at least one term");
    }
    for (index, term) in terms.iter().enumerate() {
        for (number, requirement) in term.match_expressions.iter().flatten().enumerate() {
            expression(format_args!("{path}[{index}].matchExpressions[{number}]"), requirement, errors);
        }
        for (number, requirement) in term.match_fields.iter().flatten().enumerate() {
            field(format_args!("{path}[{index}].matchFields[{number}]"), requirement, errors);
        }
    }
}

fn expression(path: fmt::Arguments<'_>, requirement: &NodeSelectorRequirement, errors: &mut Errors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(format_args!("{path}.values"), "required with the operators In and NotIn");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(format_args!("{path}.values"), "not allowed with the operators Exists and DoesNotExist");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.push(format_args!("{path}.values"), "must be exactly one with the operators Gt and Lt");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            let all = "In, NotIn, Exists, DoesNotExist, Gt, Lt";
            errors.push(format_args!("{path}.operator"), format_args!("{other:?} is not valid: must be one of {all}"));
        }
    }
    errors.check(format_args!("{path}.key"), text::label_key(&requirement.key));
    for (index, value) in values.iter().enumerate() {
        errors.check(format_args!("{path}.values[{index}]"), text::label_value(value));
    }
}

fn field(path: fmt::Arguments<'_>, requirement: &NodeSelectorRequirement, errors: &mut Errors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => errors.push(format_args!("{path}.values"), "must be exactly one"),
        other => {
            let problem = format_args!("{other:?} is not valid: must be one of In, NotIn");
            errors.push(format_args!("{path}.operator"), problem);
        }
    }
    if requirement.key == "metadata.name" {
        for (index, value) in values.iter().enumerate() {
            errors.check(format_args!("{path}.values[{index}]"), text::subdomain("node name", value));
        }
    } else {
        let problem = format_args!("{:?} is not valid: must be metadata.name", requirement.key);
        errors.push(format_args!("{path}.key"), problem);
    }
}
