//! Validation of a claim's spec.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::Gates;
use super::super::field::{Bad, Errors, Path};
use super::super::formats::{fully_qualified_name, label};
use super::super::schema::{DEVICE_REQUEST, show};
use super::super::value::{get, list, optional_text, text, texts};
use super::{configuration, request};

/// The maximum number of requests of a claim, a constraint or a configuration.
pub(super) const MAX_REQUESTS: usize = 32;
/// The maximum number of constraints of a claim.
const MAX_CONSTRAINTS: usize = 32;
/// The maximum number of configurations of a claim.
pub(in super::super) const MAX_CONFIGURATIONS: usize = 32;

const REFERENCE_RULE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The names of a claim's requests, with those of their subrequests.
pub(super) struct RequestNames<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> RequestNames<'a> {
    pub(super) fn of(spec: &'a Value) -> Self {
        let requests = get(spec, "devices").map(|devices| list(devices, "requests")).unwrap_or_default();
        let subrequests = |request| list(request, "firstAvailable").iter().map(|sub| text(sub, "name")).collect();
        Self(requests.iter().map(|request| (text(request, "name"), subrequests(request))).collect())
    }

    fn has(&self, reference: &str) -> bool {
        match reference.split('/').collect::<Vec<_>>()[..] {
            [request] => self.0.contains_key(request),
            [request, sub] => self.0.get(request).is_some_and(|subs| subs.contains(&sub)),
            _ => false,
        }
    }

    /// Validates a reference to a request or subrequest.
    pub(super) fn check(&self, reference: &str, path: &Path, errors: &mut Errors) {
        if reference.split('/').count() > 2 {
            return errors.invalid(path, reference, REFERENCE_RULE);
        }
        for name in reference.split('/') {
            label(name, path, errors);
        }
        if !self.has(reference) {
            errors.invalid(path, reference, REFERENCE_RULE);
        }
    }

    /// Validates the `requests` of a constraint or configuration.
    pub(super) fn check_list(&self, object: &Value, path: &Path, errors: &mut Errors) {
        let path = path.child("requests");
        let references = texts(object, "requests");
        if errors.too_many(&path, references.len(), MAX_REQUESTS) {
            return;
        }
        for (index, reference) in references.iter().enumerate() {
            self.check(reference, &path.index(index), errors);
            if references[..index].contains(reference) {
                errors.duplicate(&path.index(index), *reference);
            }
        }
    }
}

pub(in super::super) fn validate(spec: &Value, path: &Path, gates: &Gates, errors: &mut Errors) {
    let path = path.child("devices");
    let names = RequestNames::of(spec);
    let devices = get(spec, "devices").unwrap_or(&Value::Null);
    let constraints = list(devices, "constraints");
    validate_requests(devices, constraints, &path.child("requests"), gates, errors);
    let at_constraints = path.child("constraints");
    if !errors.too_many(&at_constraints, constraints.len(), MAX_CONSTRAINTS) {
        for (index, constraint) in constraints.iter().enumerate() {
            validate_constraint(constraint, &names, &at_constraints.index(index), gates, errors);
        }
    }
    let configurations = list(devices, "config");
    let at_config = path.child("config");
    if !errors.too_many(&at_config, configurations.len(), MAX_CONFIGURATIONS) {
        for (index, config) in configurations.iter().enumerate() {
            names.check_list(config, &at_config.index(index), errors);
            configuration(config, &at_config.index(index), errors);
        }
    }
}

fn validate_requests(devices: &Value, constraints: &[Value], path: &Path, gates: &Gates, errors: &mut Errors) {
    let requests = list(devices, "requests");
    if errors.too_many(path, requests.len(), MAX_REQUESTS) {
        return;
    }
    for (index, request) in requests.iter().enumerate() {
        request::validate(request, constraints, &path.index(index), gates, errors);
        if requests[..index].iter().any(|other| text(other, "name") == text(request, "name")) {
            errors.duplicate(&path.index(index), Bad::Json(show(&DEVICE_REQUEST, request)));
        }
    }
}

fn validate_constraint(constraint: &Value, names: &RequestNames<'_>, path: &Path, gates: &Gates, errors: &mut Errors) {
    names.check_list(constraint, path, errors);
    let attributes = ["matchAttribute", "distinctAttribute"].map(|field| (field, optional_text(constraint, field)));
    for (field, attribute) in attributes {
        if let Some(attribute) = attribute {
            fully_qualified_name(attribute, &path.child(field), errors);
        }
    }
    if attributes.iter().all(|(_, attribute)| attribute.is_none()) {
        if gates.enabled("DRAConsumableCapacity") {
            let detail =
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            errors.required(path, detail);
        } else {
            errors.required(&path.child("matchAttribute"), "");
        }
    }
}
