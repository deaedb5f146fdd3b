//! Validation of attributes: each has exactly one value or list of values.

use serde_json::Value;

use super::super::field::{Bad, Errors, Path};
use super::super::formats::{qualified_name, shown_key};
use super::super::names::is_semantic_version;
use super::super::schema::{DEVICE_ATTRIBUTE, show_internal};
use super::super::value::{entries, get, list, optional_text, texts};

/// The maximum length of a string or version.
const MAX_VALUE_BYTES: usize = 64;
/// The maximum length of a qualified name in a field path; longer ones are truncated.
pub(super) const MAX_SHOWN_NAME_BYTES: usize = 63 + 1 + 32;

const SCALARS: [&str; 4] = ["int", "bool", "string", "version"];
const LISTS: [&str; 4] = ["ints", "bools", "strings", "versions"];

/// Whether any attribute is a list.
pub(super) fn any_list(device: &Value) -> bool {
    entries(device, "attributes").any(|(_, attribute)| LISTS.iter().any(|field| get(attribute, field).is_some()))
}

/// Returns the number of values of all attributes. An attribute without a list counts as one.
pub(super) fn count_values(device: &Value) -> usize {
    entries(device, "attributes")
        .map(|(_, attribute)| LISTS.iter().map(|field| list(attribute, field).len()).sum::<usize>().max(1))
        .sum()
}

pub(super) fn validate(device: &Value, path: &Path, errors: &mut Errors) {
    for (name, attribute) in entries(device, "attributes") {
        qualified_name(name, path, errors);
        validate_attribute(attribute, &path.key(&shown_key(name, MAX_SHOWN_NAME_BYTES)), errors);
    }
}

fn validate_attribute(attribute: &Value, path: &Path, errors: &mut Errors) {
    if let Some(value) = optional_text(attribute, "string") {
        string(value, &path.child("string"), errors);
    }
    if let Some(value) = optional_text(attribute, "version") {
        version(value, &path.child("version"), errors);
    }
    for field in LISTS {
        if get(attribute, field).is_some() && list(attribute, field).is_empty() {
            errors.invalid(&path.child(field), Bad::Json("[]".to_owned()), "must not be empty if specified");
        }
    }
    for (index, value) in texts(attribute, "strings").into_iter().enumerate() {
        string(value, &path.child("strings").index(index), errors);
    }
    for (index, value) in texts(attribute, "versions").into_iter().enumerate() {
        version(value, &path.child("versions").index(index), errors);
    }
    union(attribute, path, errors);
}

fn union(attribute: &Value, path: &Path, errors: &mut Errors) {
    let present = |field: &&str| get(attribute, field).is_some();
    let filled = |field: &&str| !list(attribute, field).is_empty();
    let scalars = SCALARS.into_iter().filter(|field| present(field));
    let set: Vec<_> = scalars.clone().chain(LISTS.into_iter().filter(|field| filled(field))).collect();
    let all: Vec<_> = SCALARS.iter().chain(&LISTS).map(|field| format!("`{field}`")).collect();
    match set.len() {
        0 => errors.invalid(path, "", &format!("must specify one of: {}", all.join(", "))),
        1 if scalars.chain(LISTS.into_iter().filter(|field| present(field))).count() > 1 => {
            let shown = Bad::Json(show_internal(&DEVICE_ATTRIBUTE, attribute));
            errors.invalid(path, shown, "exactly one value must be specified");
        }
        1 => {}
        _ => {
            let shown = format!("{{{}}}", set.join(", "));
            errors.invalid(path, &shown, &format!("must specify exactly one of: {}", all.join(", ")));
        }
    }
}

fn string(value: &str, path: &Path, errors: &mut Errors) {
    if value.len() > MAX_VALUE_BYTES {
        errors.too_long(path, MAX_VALUE_BYTES);
    }
}

fn version(value: &str, path: &Path, errors: &mut Errors) {
    if !is_semantic_version(value) {
        errors.invalid(path, value, "must be a string compatible with semver.org spec 2.0.0");
    }
    string(value, path, errors);
}
