//! Access to JSON objects with the API server's semantics of missing, `null` and empty values.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// Returns a field, unless it is missing or `null`.
pub(super) fn get<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// Returns a nested field.
pub(super) fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |object, field| get(object, field))
}

/// Returns a string; empty if missing.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    get(object, field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a string, if present.
pub(super) fn optional_text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    get(object, field).and_then(Value::as_str)
}

/// Returns a number; 0 if missing.
pub(super) fn number(object: &Value, field: &str) -> i64 {
    get(object, field).and_then(Value::as_i64).unwrap_or_default()
}

/// Returns a bool, if present.
pub(super) fn flag(object: &Value, field: &str) -> Option<bool> {
    get(object, field).and_then(Value::as_bool)
}

/// Returns a list; empty if missing.
pub(super) fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    get(object, field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns a list of strings; empty if missing.
pub(super) fn texts<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    list(object, field).iter().map(|item| item.as_str().unwrap_or_default()).collect()
}

/// Returns the entries of a map; none if missing.
pub(super) fn entries<'a>(object: &'a Value, field: &str) -> impl ExactSizeIterator<Item = (&'a str, &'a Value)> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    let map = get(object, field).and_then(Value::as_object).unwrap_or(&NONE);
    map.iter().map(|(key, value)| (key.as_str(), value))
}

/// Returns the items of a nested list for modification.
pub(super) fn list_mut<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    at_mut(object, path).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

/// Returns a nested field for modification.
pub(super) fn at_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(object, |object, field| object.get_mut(field))
}

/// Removes fields of an object.
pub(super) fn remove(object: &mut Value, fields: &[&str]) {
    if let Value::Object(object) = object {
        object.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Sets a field that is missing, `null`, zero or empty.
pub(super) fn default_to(object: &mut Value, field: &str, default: impl Into<Value>) {
    let empty = match object.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(_) => false,
    };
    if let (true, Value::Object(object)) = (empty, object) {
        object.insert(field.to_owned(), default.into());
    }
}

/// Whether two values are equal to the API server, to which missing, `null`, and empty lists and objects are the same.
pub(super) fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a.filter(|value| !is_empty(value)), b.filter(|value| !is_empty(value))) {
        (None, None) => true,
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.iter().all(|(field, value)| same(Some(value), b.get(field)))
                && b.keys().all(|field| a.contains_key(field) || same(None, b.get(field)))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)))
        }
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_empty),
        _ => false,
    }
}
