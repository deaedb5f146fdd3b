//! The formats of fields of `resource.k8s.io`: drivers, pools, attribute names and what else several objects have.
//!
//! The server has two generations of checks, and words some of them differently. Where it does, there are two functions
//! here, and the newer one is the `declared` one.

use drakkar_metadata::name::syntax::{MAX_C_IDENTIFIER, MAX_DRIVER_NAME};
use serde_json::Value;

use super::field::{Bad, Errors, Path};
use super::names::{self, Wording};
use super::value::{get, list, text, texts};

/// The maximum length of a pool name in bytes.
const POOL_BYTES: usize = 253;
/// The binding conditions that a device may have, and as many failure conditions.
const BINDING_CONDITIONS: usize = 4;

pub(super) const TAINT_EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

pub(super) fn label(value: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(path, value, names::label(value, Wording::Characters));
}

pub(super) fn declared_label(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(path, "");
    } else {
        errors.invalid_each(path, value, names::label(value, Wording::Bytes));
    }
}

pub(super) fn label_key(value: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(path, value, names::label_key(value));
}

pub(super) fn label_value(value: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(path, value, names::label_value(value));
}

pub(super) fn node_name(value: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(path, value, names::subdomain(value, Wording::Characters));
}

pub(super) fn driver(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    if value.len() > MAX_DRIVER_NAME {
        errors.too_long(path, MAX_DRIVER_NAME);
    }
    errors.invalid_each(path, value, names::subdomain(&value.to_lowercase(), Wording::Characters));
}

pub(super) fn declared_driver(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    if value.chars().count() > MAX_DRIVER_NAME {
        errors.too_long_characters(path, MAX_DRIVER_NAME);
    } else if value.len() > MAX_DRIVER_NAME {
        errors.too_long(path, MAX_DRIVER_NAME);
    }
    errors.invalid_each(path, value, names::subdomain_caseless(value));
}

pub(super) fn pool(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    if value.len() > POOL_BYTES {
        errors.too_long(path, POOL_BYTES);
    }
    for part in value.split('/') {
        errors.invalid_each(path, part, names::subdomain(part, Wording::Characters));
    }
}

pub(super) fn declared_pool(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    if value.len() > POOL_BYTES {
        errors.too_long(path, POOL_BYTES);
    }
    for (index, part) in value.split('/').enumerate() {
        if part.is_empty() {
            errors.invalid(path, value, &format!("segment {index}: must not be empty"));
        } else {
            let problems = names::subdomain(part, Wording::Bytes).into_iter();
            errors.invalid_each(path, part, problems.map(|problem| format!("segment {index}: {problem}")));
        }
    }
}

pub(super) fn uuid(value: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(path, value, names::uuid(value));
}

/// The name of an attribute or a capacity. Names with more than one slash pass, as they do in the server.
pub(super) fn qualified_name(value: &str, path: &Path, errors: &mut Errors) {
    match value.split('/').collect::<Vec<_>>()[..] {
        [name] => identifier(name, path, errors),
        [domain, name] => {
            if domain.is_empty() {
                errors.invalid(path, "", "the domain must not be empty");
            } else {
                driver(domain, path, errors);
            }
            if name.is_empty() {
                errors.invalid(path, "", "the name must not be empty");
            } else {
                identifier(name, path, errors);
            }
        }
        _ => {}
    }
}

/// The name of an attribute, with its domain.
pub(super) fn fully_qualified_name(value: &str, path: &Path, errors: &mut Errors) {
    match value.split('/').collect::<Vec<_>>()[..] {
        [name] => {
            identifier(name, path, errors);
            errors.invalid(path, value, "a fully qualified name must be a domain and a name separated by a slash");
        }
        [domain, name] => {
            if domain.is_empty() {
                errors.invalid(path, "", "prefix must not be empty");
            } else {
                if domain.len() > MAX_DRIVER_NAME {
                    errors.too_long(path, MAX_DRIVER_NAME);
                }
                let problems = names::subdomain(domain, Wording::Bytes).into_iter();
                errors.invalid_each(path, domain, problems.map(|problem| format!("prefix: {problem}")));
            }
            if name.is_empty() {
                errors.invalid(path, "", "name must not be empty");
            } else {
                identifier(name, path, errors);
            }
        }
        _ => {}
    }
}

fn identifier(value: &str, path: &Path, errors: &mut Errors) {
    if value.len() > MAX_C_IDENTIFIER {
        errors.too_long(path, MAX_C_IDENTIFIER);
    }
    errors.invalid_each(path, value, names::c_identifier(value));
}

/// The binding conditions of a device or of an allocation result.
pub(super) fn binding_conditions(object: &Value, path: &Path, errors: &mut Errors) {
    let fields = ["bindingConditions", "bindingFailureConditions"];
    let [conditions, failures] = fields.map(|field| texts(object, field));
    for (field, values) in [(fields[0], &conditions), (fields[1], &failures)] {
        let path = path.child(field);
        if !errors.too_many(&path, values.len(), BINDING_CONDITIONS) {
            for (index, value) in values.iter().enumerate() {
                label_key(value, &path.index(index), errors);
            }
        }
    }
    for (field, values) in [(fields[0], &conditions), (fields[1], &failures)] {
        for (index, value) in values.iter().enumerate() {
            let path = path.child(field).index(index);
            if values[..index].contains(value) {
                errors.duplicate(&path, *value);
            }
            if field == fields[1] && conditions.contains(value) {
                errors.invalid(&path, *value, "bindingFailureConditions must not overlap with bindingConditions");
            }
        }
    }
    let shown = |field| if get(object, field).is_some() { Bad::Json("[]".to_owned()) } else { Bad::null() };
    if conditions.is_empty() && !failures.is_empty() {
        let detail = "bindingConditions are required to use bindingFailureConditions";
        errors.invalid(&path.child(fields[0]), shown(fields[0]), detail);
    }
    if failures.is_empty() && !conditions.is_empty() {
        let detail = "bindingFailureConditions are required to use bindingConditions";
        errors.invalid(&path.child(fields[1]), shown(fields[1]), detail);
    }
}

/// The tolerations of a request or of an allocation result.
pub(super) fn tolerations(object: &Value, path: &Path, errors: &mut Errors) {
    for (index, toleration) in list(object, "tolerations").iter().enumerate() {
        let path = path.child("tolerations").index(index);
        let (key, value) = (text(toleration, "key"), text(toleration, "value"));
        if !key.is_empty() {
            label_key(key, &path.child("key"), errors);
        }
        match text(toleration, "operator") {
            "Exists" if !value.is_empty() => {
                errors.invalid(&path.child("value"), value, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            "Equal" => label_value(value, &path.child("value"), errors),
            "" => errors.required(&path.child("operator"), ""),
            other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        let effect = text(toleration, "effect");
        if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
            errors.not_supported(&path.child("effect"), effect, &TAINT_EFFECTS);
        }
    }
}

/// The calls that a kubelet may leave out: it may leave out preparing only together with unpreparing.
pub(super) fn skip_node_operations(object: &Value, path: &Path, errors: &mut Errors) {
    const OPERATIONS: [&str; 3] = ["*", "NodePrepareResources", "NodeUnprepareResources"];
    let skipped = texts(object, "skipNodeOperations");
    let path = path.child("skipNodeOperations");
    let [all, prepare, unprepare] = OPERATIONS.map(|operation| skipped.contains(&operation));
    if prepare && !unprepare && !all {
        let detail = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped";
        errors.invalid(&path, Bad::Json(Value::from(skipped.clone()).to_string()), detail);
    }
    for (index, operation) in skipped.iter().enumerate() {
        if skipped[..index].contains(operation) {
            errors.duplicate(&path.index(index), *operation);
        }
        if !OPERATIONS.contains(operation) {
            errors.not_supported(&path.index(index), operation, &OPERATIONS);
        }
    }
}

/// JSON of a driver's own: an object of limited size.
pub(super) fn raw_object(value: Option<&Value>, limit: usize, path: &Path, errors: &mut Errors) {
    match value {
        None | Some(Value::Null) => errors.required(path, ""),
        Some(value) if value.to_string().len() > limit => errors.too_long(path, limit),
        Some(Value::Object(_)) => {}
        Some(_) => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// A key as it is shown in a path: long ones without their middle.
pub(super) fn shown_key(key: &str, limit: usize) -> String {
    if key.len() <= limit {
        return key.to_owned();
    }
    let kept = limit - "...".len();
    let (front, back) = (key.floor_char_boundary(kept.div_ceil(2)), key.ceil_char_boundary(key.len() - kept / 2));
    format!("{}...{}", &key[..front], &key[back..])
}
