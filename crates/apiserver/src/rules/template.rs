//! Validation of claim templates.

use serde_json::Value;

use super::field::{Bad, Errors, Path};
use super::gates::Gates;
use super::schema::{RESOURCE_CLAIM_TEMPLATE_SPEC, show_internal};
use super::value::{get, same};
use super::{claim, meta};

/// The metadata fields that a template cannot set, with the names that the kube-apiserver reports.
const NOT_IN_TEMPLATES: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

pub(super) fn validate(template: &Value, gates: &Gates, errors: &mut Errors) {
    let path = Path::root("spec");
    let spec = get(template, "spec").unwrap_or(&Value::Null);
    let metadata = get(spec, "metadata").unwrap_or(&Value::Null);
    let at_meta = path.child("metadata");
    meta::labels_and_annotations(metadata, &at_meta, errors);
    for (field, name) in NOT_IN_TEMPLATES {
        let empty = Value::from("");
        if !same(get(metadata, field), None) && metadata.get(field) != Some(&empty) {
            errors.forbidden(&at_meta.child(name), "cannot be set");
        }
    }
    claim::validate_spec(get(spec, "spec").unwrap_or(&Value::Null), &path.child("spec"), gates, errors);
}

/// Validates an update: the spec is immutable.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let spec = get(new, "spec");
    if !same(spec, get(old, "spec")) {
        let shown = Bad::Json(show_internal(&RESOURCE_CLAIM_TEMPLATE_SPEC, spec.unwrap_or(&Value::Null)));
        errors.invalid(&Path::root("spec"), shown, "field is immutable");
    }
}
