//! Reading JSON objects as the API server reads them: what is absent, `null` and empty, and when two values are the same.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// A field that is there and not `null`.
pub(super) fn get<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// A field some levels down.
pub(super) fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |object, field| get(object, field))
}

/// A text, empty where there is none.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    get(object, field).and_then(Value::as_str).unwrap_or_default()
}

/// A text that may be absent.
pub(super) fn optional_text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    get(object, field).and_then(Value::as_str)
}

/// A number, 0 where there is none.
pub(super) fn number(object: &Value, field: &str) -> i64 {
    get(object, field).and_then(Value::as_i64).unwrap_or_default()
}

/// A flag that may be absent.
pub(super) fn flag(object: &Value, field: &str) -> Option<bool> {
    get(object, field).and_then(Value::as_bool)
}

/// A list, empty where there is none.
pub(super) fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    get(object, field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The texts of a list.
pub(super) fn texts<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    list(object, field).iter().map(|item| item.as_str().unwrap_or_default()).collect()
}

/// The entries of a map; none where there is no map.
pub(super) fn entries<'a>(object: &'a Value, field: &str) -> impl ExactSizeIterator<Item = (&'a str, &'a Value)> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    let map = get(object, field).and_then(Value::as_object).unwrap_or(&NONE);
    map.iter().map(|(key, value)| (key.as_str(), value))
}

/// The elements of a list, to change them.
pub(super) fn list_mut<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut [Value] {
    at_mut(object, path).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

/// A field some levels down, to change it.
pub(super) fn at_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(object, |object, field| object.get_mut(field))
}

/// Takes fields out of an object.
pub(super) fn remove(object: &mut Value, fields: &[&str]) {
    if let Value::Object(object) = object {
        object.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// Sets a field that is absent, `null` or empty.
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

/// Whether two values are the same to the API server, for which absent, `null` and empty lists and objects are one.
pub(super) fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a.filter(|value| !is_nothing(value)), b.filter(|value| !is_nothing(value))) {
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

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_nothing),
        _ => false,
    }
}
