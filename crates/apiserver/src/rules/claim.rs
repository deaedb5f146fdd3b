//! Validation of claims.

mod allocation;
mod config;
mod device_status;
mod request;
mod spec;
mod status;

pub(super) use config::{configuration, selectors};
pub(super) use device_status::{allocated_devices, device_id};
pub(super) use spec::validate as validate_spec;
pub(super) use status::validate as validate_status;

use serde_json::Value;

use super::field::{Bad, Errors, Path};
use super::value::{get, same};

pub(super) fn create(claim: &Value, gates: &super::Gates, errors: &mut Errors) {
    validate_spec(get(claim, "spec").unwrap_or(&Value::Null), &Path::root("spec"), gates, errors);
}

/// Validates an update: the spec is immutable.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    if !same(get(new, "spec"), get(old, "spec")) {
        errors.invalid(&Path::root("spec"), Bad::null(), "field is immutable");
    }
}
