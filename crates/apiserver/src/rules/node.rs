//! Validation of nodes and events, as far as drivers write them.

use serde_json::Value;

use super::field::{Errors, Path};
use super::quantity;
use super::value::{at, entries, get, text};

pub(super) fn validate(node: &Value, errors: &mut Errors) {
    let status = get(node, "status").unwrap_or(&Value::Null);
    for field in ["capacity", "allocatable"] {
        for (name, amount) in entries(status, field) {
            let path = Path::root("status").child(field).child(name.to_owned());
            let shown = amount.as_str().unwrap_or_default();
            match quantity::read(Some(amount)) {
                Ok(amount) if amount.is_negative() => {
                    errors.invalid(&path, shown, "must be greater than or equal to 0");
                }
                Ok(_) => {}
                Err(error) => errors.invalid(&path, shown, &error.to_string()),
            }
        }
    }
}

/// Validates an event: it is in the namespace of its object, or in `default` for a cluster-scoped one.
pub(super) fn validate_event(event: &Value, errors: &mut Errors) {
    let namespace = at(event, &["metadata", "namespace"]).and_then(Value::as_str).unwrap_or_default();
    let involved = get(event, "involvedObject").unwrap_or(&Value::Null);
    let path = Path::root("involvedObject").child("namespace");
    match text(involved, "namespace") {
        "" if namespace != "default" && namespace != "kube-system" && !namespace.is_empty() => {
            errors.invalid(&path, "", "does not match event.namespace");
        }
        "" => {}
        other if other != namespace => errors.invalid(&path, other, "does not match event.namespace"),
        _ => {}
    }
}
