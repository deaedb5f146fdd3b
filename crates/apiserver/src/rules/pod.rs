//! Validation of pods, as far as the embedded node uses them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::field::{Bad, Errors, Path};
use super::formats::{label, node_name};
use super::names::{self, Wording};
use super::schema::{POD_RESOURCE_CLAIM, show_internal};
use super::value::{at, get, list, optional_text, same, text};

/// The mutable fields of a pod's spec.
const MUTABLE_FIELDS: [&str; 5] = [
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    "`spec.tolerations` (only additions to existing tolerations)",
];

pub(super) fn validate(pod: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let spec = get(pod, "spec").unwrap_or(&Value::Null);
    let claims = list(spec, "resourceClaims");
    if !claims.is_empty() && at(pod, &["metadata", "annotations", "kubernetes.io/config.mirror"]).is_some() {
        errors.forbidden(&Path::root(""), "static pods do not support resource claims");
    } else {
        validate_claims(claims, &path.child("resourceClaims"), errors);
    }
    let claim_names: BTreeSet<_> =
        claims.iter().map(|claim| text(claim, "name")).filter(|name| !name.is_empty()).collect();
    let containers = list(spec, "containers");
    let at_containers = path.child("containers");
    if containers.is_empty() {
        errors.required(&at_containers, "");
    }
    validate_containers(containers, &[], &claim_names, &at_containers, errors);
    validate_containers(list(spec, "initContainers"), containers, &claim_names, &path.child("initContainers"), errors);
    match text(spec, "restartPolicy") {
        "Always" | "OnFailure" | "Never" => {}
        "" => errors.required(&path.child("restartPolicy"), ""),
        other => {
            errors.not_supported(&path.child("restartPolicy"), other, &["Always", "OnFailure", "Never"]);
        }
    }
    if let Some(name) = optional_text(spec, "nodeName").filter(|name| !name.is_empty()) {
        node_name(name, &path.child("nodeName"), errors);
    }
}

/// Validates an update: most fields of the spec are immutable.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let immutable = |pod: &Value| {
        let mut spec = get(pod, "spec").cloned().unwrap_or_default();
        super::value::remove(&mut spec, &["activeDeadlineSeconds", "tolerations", "schedulingGates"]);
        for field in ["containers", "initContainers"] {
            for container in super::value::list_mut(&mut spec, &[field]) {
                super::value::remove(container, &["image"]);
            }
        }
        spec
    };
    if !same(Some(&immutable(new)), Some(&immutable(old))) {
        let detail = format!("pod updates may not change fields other than {}", MUTABLE_FIELDS.join(","));
        errors.forbidden(&Path::root("spec"), &detail);
    }
}

pub(super) fn validate_status(pod: &Value, errors: &mut Errors) {
    let path = Path::root("status").child("resourceClaimStatuses");
    let spec = get(pod, "spec").unwrap_or(&Value::Null);
    let statuses = get(pod, "status").map(|status| list(status, "resourceClaimStatuses")).unwrap_or_default();
    for (index, status) in statuses.iter().enumerate() {
        let path = path.index(index);
        let name = text(status, "name");
        if !list(spec, "resourceClaims").iter().any(|claim| text(claim, "name") == name) {
            errors.invalid(&path.child("name"), name, "must match the name of an entry in `spec.resourceClaims`");
        }
        if statuses[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
        if let Some(claim) = optional_text(status, "resourceClaimName") {
            let problems = names::subdomain(claim, Wording::Characters);
            errors.invalid_each(&path.child("resourceClaimName"), claim, problems);
        }
    }
}

fn validate_claims(claims: &[Value], path: &Path, errors: &mut Errors) {
    for (index, claim) in claims.iter().enumerate() {
        let path = path.index(index);
        match text(claim, "name") {
            "" => errors.required(&path.child("name"), ""),
            name if claims[..index].iter().any(|other| text(other, "name") == name) => {
                errors.duplicate(&path.child("name"), name);
            }
            name => label(name, &path.child("name"), errors),
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let shown = || Bad::Json(show_internal(&POD_RESOURCE_CLAIM, claim));
        match sources.map(|source| get(claim, source).is_some()) {
            [true, true] => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid(&path, shown(), detail);
            }
            [false, false] => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(&path, shown(), detail);
            }
            _ => {}
        }
        for source in sources {
            if let Some(name) = optional_text(claim, source) {
                errors.invalid_each(&path.child(source), name, names::subdomain(name, Wording::Characters));
            }
        }
    }
}

fn validate_containers(
    containers: &[Value],
    others: &[Value],
    claim_names: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        let name = text(container, "name");
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            label(name, &path.child("name"), errors);
        }
        if containers[..index].iter().chain(others).any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
        if text(container, "image").is_empty() {
            errors.required(&path.child("image"), "");
        }
        let resources = get(container, "resources").unwrap_or(&Value::Null);
        container_claims(list(resources, "claims"), claim_names, &path.child("resources").child("claims"), errors);
    }
}

/// Validates the claims of a container: each refers to a claim of the pod, as a whole or to one request, and none twice.
fn container_claims(claims: &[Value], claim_names: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let path = path.index(index);
        let name = text(claim, "name");
        let request = text(claim, "request");
        if name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        if seen.contains(&(name, "")) {
            errors.duplicate(&path, name);
        } else {
            if !request.is_empty() {
                label(request, &path.child("request"), errors);
            }
            if seen.contains(&(name, request)) {
                errors.duplicate(&path, &format!("{name}/{request}"));
            } else if request.is_empty() {
                for _ in seen.iter().filter(|(other, _)| *other == name) {
                    errors.duplicate(&path, name);
                }
            }
            seen.push((name, request));
        }
        if !claim_names.contains(name) {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if claim_names.is_empty() {
                detail.push_str(" which is empty");
            } else {
                let names: Vec<_> = claim_names.iter().copied().collect();
                detail = format!("{detail}: {}", names.join(", "));
            }
            errors.not_found(&path, name, &detail);
        }
    }
}
