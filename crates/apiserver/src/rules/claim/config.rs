//! Validation of the selectors and configurations of claims and classes.

use drakkar_cel::ResultType;
use serde_json::Value;

use super::super::cel;
use super::super::field::{Errors, Path};
use super::super::formats::{declared_driver, raw_object};
use super::super::value::{get, list, text};

/// The maximum number of selectors of a request or class.
const MAX_SELECTORS: usize = 32;
/// The maximum size of opaque parameters.
const MAX_PARAMETER_BYTES: usize = 10 * 1024;

pub(in super::super) fn selectors(object: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("selectors");
    let selectors = list(object, "selectors");
    if errors.too_many(&path, selectors.len(), MAX_SELECTORS) {
        return;
    }
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index).child("cel");
        match get(selector, "cel") {
            None => errors.required(&path, ""),
            Some(selector) => {
                cel::validate(text(selector, "expression"), ResultType::Bool, &path.child("expression"), errors);
            }
        }
    }
}

pub(in super::super) fn configuration(config: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("opaque");
    let Some(opaque) = get(config, "opaque") else {
        return errors.required(&path, "");
    };
    declared_driver(text(opaque, "driver"), &path.child("driver"), errors);
    raw_object(get(opaque, "parameters"), MAX_PARAMETER_BYTES, &path.child("parameters"), errors);
}
