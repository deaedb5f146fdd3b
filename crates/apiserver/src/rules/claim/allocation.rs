//! Validation of new allocations. Existing ones are immutable and not validated again.

use serde_json::Value;

use super::super::field::{Errors, Path};
use super::super::formats::{
    binding_conditions, declared_driver, declared_pool, label, skip_node_operations, tolerations, uuid,
};
use super::super::node_selector;
use super::super::value::{get, list, optional_text, text};
use super::configuration;
use super::spec::{MAX_CONFIGURATIONS, RequestNames};

/// The maximum number of allocated devices.
const MAX_RESULTS: usize = 32;

pub(super) fn validate(allocation: &Value, names: &RequestNames<'_>, path: &Path, errors: &mut Errors) {
    let devices = get(allocation, "devices").unwrap_or(&Value::Null);
    let at_devices = path.child("devices");
    let results = list(devices, "results");
    let at_results = at_devices.child("results");
    if !errors.too_many(&at_results, results.len(), MAX_RESULTS) {
        for (index, result) in results.iter().enumerate() {
            validate_result(result, names, &at_results.index(index), errors);
        }
    }
    // Twice the limit: the configurations of the classes and those of the claim.
    let configurations = list(devices, "config");
    let at_config = at_devices.child("config");
    if !errors.too_many(&at_config, configurations.len(), 2 * MAX_CONFIGURATIONS) {
        for (index, config) in configurations.iter().enumerate() {
            validate_config(config, names, &at_config.index(index), errors);
        }
    }
    if let Some(selector) = get(allocation, "nodeSelector") {
        node_selector::validate(selector, &path.child("nodeSelector"), errors);
    }
}

fn validate_result(result: &Value, names: &RequestNames<'_>, path: &Path, errors: &mut Errors) {
    names.check(text(result, "request"), &path.child("request"), errors);
    declared_driver(text(result, "driver"), &path.child("driver"), errors);
    declared_pool(text(result, "pool"), &path.child("pool"), errors);
    label(text(result, "device"), &path.child("device"), errors);
    binding_conditions(result, path, errors);
    tolerations(result, path, errors);
    if let Some(share) = optional_text(result, "shareID") {
        uuid(share, &path.child("shareID"), errors);
    }
    skip_node_operations(result, path, errors);
}

fn validate_config(config: &Value, names: &RequestNames<'_>, path: &Path, errors: &mut Errors) {
    match text(config, "source") {
        "FromClaim" | "FromClass" => {}
        "" => errors.required(&path.child("source"), ""),
        other => errors.not_supported(&path.child("source"), other, &["FromClaim", "FromClass"]),
    }
    names.check_list(config, path, errors);
    configuration(config, path, errors);
}
