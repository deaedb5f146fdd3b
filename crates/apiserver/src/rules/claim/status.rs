//! Validation of a claim's status: allocation, reservations and device status.

use serde_json::Value;

use super::super::field::{Bad, Errors, Path};
use super::super::schema::{RESOURCE_CLAIM_CONSUMER_REFERENCE, show};
use super::super::value::{at, get, list, same, text};
use super::spec::RequestNames;
use super::{allocation, device_status};

/// The maximum number of reservations of a claim.
const MAX_RESERVED_FOR: usize = 256;

pub(in super::super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::root("status");
    let deleted = at(new, &["metadata", "deletionTimestamp"]).is_some();
    let names = RequestNames::of(get(new, "spec").unwrap_or(&Value::Null));
    let [new, old] = [new, old].map(|claim| get(claim, "status").unwrap_or(&Value::Null));
    let [now, before] = [new, old].map(|status| get(status, "allocation"));
    reserved_for(new, old, deleted, &path.child("reservedFor"), errors);
    device_status::validate(new, &path.child("devices"), errors);
    match (now, before) {
        (Some(now), Some(before)) if !same(Some(now), Some(before)) => {
            errors.invalid(&path.child("allocation"), Bad::null(), "field cannot be modified once set");
        }
        (Some(allocation), None) => allocation::validate(allocation, &names, &path.child("allocation"), errors),
        _ => {}
    }
}

fn reserved_for(new: &Value, old: &Value, deleted: bool, path: &Path, errors: &mut Errors) {
    let consumers = list(new, "reservedFor");
    if !errors.too_many(path, consumers.len(), MAX_RESERVED_FOR) {
        for (index, consumer) in consumers.iter().enumerate() {
            let path = path.index(index);
            for field in ["resource", "name", "uid"] {
                if text(consumer, field).is_empty() {
                    errors.required(&path.child(field), "");
                }
            }
            if consumers[..index].iter().any(|other| text(other, "uid") == text(consumer, "uid")) {
                errors.duplicate(&path, Bad::Json(show(&RESOURCE_CLAIM_CONSUMER_REFERENCE, consumer)));
            }
        }
    }
    if consumers.is_empty() {
        return;
    }
    let is_old = |consumer: &Value| list(old, "reservedFor").iter().any(|other| same(Some(other), Some(consumer)));
    if get(new, "allocation").is_none() {
        errors.forbidden(path, "may not be specified when `allocated` is not set");
    } else if deleted && !consumers.iter().all(is_old) {
        let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden(path, detail);
    }
}
