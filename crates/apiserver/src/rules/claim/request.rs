//! Validation of a request: `exactly`, or a list of subrequests in order of preference.

use drakkar_cel::ResultType;
use serde_json::Value;

use super::super::Gates;
use super::super::cel;
use super::super::field::{Bad, Errors, Path};
use super::super::formats::{fully_qualified_name, label, tolerations};
use super::super::names::{self, Wording};
use super::super::schema::{DEVICE_SUB_REQUEST, show};
use super::super::value::{get, list, number, optional_text, text, texts};
use super::selectors;

/// The maximum number of subrequests of a request.
const MAX_SUBREQUESTS: usize = 8;
/// The maximum number of derived attributes of a request.
const MAX_DERIVED_ATTRIBUTES: usize = 32;

pub(super) fn validate(request: &Value, constraints: &[Value], path: &Path, gates: &Gates, errors: &mut Errors) {
    let name = text(request, "name");
    label(name, &path.child("name"), errors);
    let subrequests = list(request, "firstAvailable");
    const RULE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    match (get(request, "exactly"), subrequests) {
        (None, []) => errors.required(path, RULE),
        (Some(_), [_, ..]) => {
            errors.invalid(path, Bad::null(), &format!("{RULE}, but multiple fields are set"));
        }
        (Some(exactly), []) => {
            let path = path.child("exactly");
            match text(exactly, "deviceClassName") {
                "" => errors.required(&path.child("deviceClassName"), ""),
                class => {
                    let problems = names::subdomain(class, Wording::Characters);
                    errors.invalid_each(&path.child("deviceClassName"), class, problems);
                }
            }
            common(exactly, name, constraints, &path, gates, errors);
        }
        (None, subrequests) => {
            let path = path.child("firstAvailable");
            if errors.too_many(&path, subrequests.len(), MAX_SUBREQUESTS) {
                return;
            }
            for (index, subrequest) in subrequests.iter().enumerate() {
                validate_subrequest(subrequest, name, constraints, &path.index(index), gates, errors);
                if subrequests[..index].iter().any(|other| text(other, "name") == text(subrequest, "name")) {
                    errors.duplicate(&path.index(index), Bad::Json(show(&DEVICE_SUB_REQUEST, subrequest)));
                }
            }
        }
    }
}

fn validate_subrequest(
    subrequest: &Value,
    parent: &str,
    constraints: &[Value],
    path: &Path,
    gates: &Gates,
    errors: &mut Errors,
) {
    let name = text(subrequest, "name");
    label(name, &path.child("name"), errors);
    match text(subrequest, "deviceClassName") {
        "" => errors.required(&path.child("deviceClassName"), ""),
        class => errors.invalid_each(&path.child("deviceClassName"), class, names::subdomain(class, Wording::Bytes)),
    }
    common(subrequest, &format!("{parent}/{name}"), constraints, path, gates, errors);
}

/// Validates the fields that requests and subrequests have in common.
fn common(request: &Value, name: &str, constraints: &[Value], path: &Path, gates: &Gates, errors: &mut Errors) {
    selectors(request, path, errors);
    derived_attributes(request, name, constraints, &path.child("derivedAttributes"), gates, errors);
    let count = number(request, "count");
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid(&path.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => errors.invalid(&path.child("count"), count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => errors.not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"]),
    }
    tolerations(request, path, errors);
}

fn derived_attributes(
    request: &Value,
    request_name: &str,
    constraints: &[Value],
    path: &Path,
    gates: &Gates,
    errors: &mut Errors,
) {
    let attributes = list(request, "derivedAttributes");
    let too_many = errors.too_many(path, attributes.len(), MAX_DERIVED_ATTRIBUTES);
    for (index, attribute) in attributes.iter().enumerate() {
        let path = path.index(index);
        let name = text(attribute, "name");
        let expression = text(attribute, "expression");
        if !name.is_empty() && !is_constrained(name, request_name, constraints) {
            let detail = "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request";
            errors.invalid(&path.child("name"), name, detail);
        }
        if !expression.is_empty() {
            cel::validate(expression, ResultType::Any, &path.child("expression"), errors);
        }
        if attributes[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path, name);
        }
        if too_many || !gates.enabled("DRADerivedAttributes") {
            continue;
        }
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            fully_qualified_name(name, &path.child("name"), errors);
        }
        if expression.is_empty() {
            errors.required(&path.child("expression"), "");
        }
    }
}

/// Whether a constraint that applies to the request uses an attribute.
fn is_constrained(attribute: &str, request: &str, constraints: &[Value]) -> bool {
    let parent = request.split_once('/').map(|(parent, _)| parent);
    constraints.iter().any(|constraint| {
        let used =
            optional_text(constraint, "matchAttribute").or_else(|| optional_text(constraint, "distinctAttribute"));
        let requests = texts(constraint, "requests");
        let targets = |name: &str| requests.contains(&name);
        used == Some(attribute) && (requests.is_empty() || targets(request) || parent.is_some_and(targets))
    })
}
