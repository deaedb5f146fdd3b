//! Decoding of objects: values of the wrong type are refused, fields that the API does not have are removed.

use drakkar_client::schema::{Kind, Type};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::super::resource::Resource;
use super::super::quantity;
use super::type_of;

/// Removes the fields of an object that its type does not have, and returns their paths. The error is the server's message
/// for an object that cannot be decoded (400). Objects of the core group stay as they are.
pub(crate) fn decode(resource: Resource, object: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    if let Some(of) = type_of(resource) {
        let mut position = Position { structure: "", path: String::new(), exact: String::new() };
        // The tables do not have these: every object has them.
        let mut type_meta = Map::new();
        if let Value::Object(fields) = &mut *object {
            for name in ["apiVersion", "kind"] {
                type_meta.extend(fields.remove_entry(name));
            }
        }
        let decoded = decode_object(of, object, &mut position, &mut unknown);
        if let Value::Object(fields) = object {
            fields.append(&mut type_meta);
        }
        decoded?;
    }
    Ok(unknown)
}

/// The position of a value in the object.
struct Position {
    /// The Go type that has the field.
    structure: &'static str,
    /// The path without indices and keys, as Go's JSON decoder reports it.
    path: String,
    /// The path with indices and keys, for unknown fields.
    exact: String,
}

impl Position {
    /// Calls `inner` one step further down.
    fn within<T>(&mut self, step: &str, exact: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let path_length = self.path.len();
        let exact_length = self.exact.len();
        self.path.push_str(step);
        self.exact.push_str(exact);
        let result = inner(self);
        self.path.truncate(path_length);
        self.exact.truncate(exact_length);
        result
    }

    /// Returns Go's message for a value of another type than expected.
    fn mismatch(&self, value: &Value, expected: &str) -> String {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if expected == "int64" => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let structure = self.structure.rsplit('.').next().unwrap_or_default();
        if structure.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {expected}");
        }
        format!("json: cannot unmarshal {found} into Go struct field {structure}.{} of type {expected}", self.path)
    }
}

fn decode_object(
    of: &'static Type,
    value: &mut Value,
    position: &mut Position,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    let Value::Object(fields) = value else {
        return Err(position.mismatch(value, of.name));
    };
    let dot = if position.path.is_empty() { "" } else { "." };
    let outer = std::mem::replace(&mut position.structure, of.name);
    for (name, value) in fields.iter_mut() {
        let step = format!("{dot}{name}");
        match of.field(name) {
            Some(field) => {
                position.within(&step, &step, |position| decode_kind(field.kind, value, position, unknown))?;
            }
            None => unknown.push(format!("{}{step}", position.exact)),
        }
    }
    position.structure = outer;
    fields.retain(|name, _| of.field(name).is_some());
    Ok(())
}

fn decode_kind(
    kind: Kind,
    value: &mut Value,
    position: &mut Position,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let matches = match kind {
        Kind::Object(of) => return decode_object(of, value, position, unknown),
        Kind::List(item) => {
            let Value::Array(list) = value else { return Err(position.mismatch(value, &go_name(kind))) };
            for (index, value) in list.iter_mut().enumerate() {
                position.within("", &format!("[{index}]"), |position| decode_kind(*item, value, position, unknown))?;
            }
            true
        }
        Kind::Map(_, item) => {
            let Value::Object(map) = value else { return Err(position.mismatch(value, &go_name(kind))) };
            for (key, value) in map.iter_mut() {
                position.within("", &format!(".{key}"), |position| decode_kind(*item, value, position, unknown))?;
            }
            true
        }
        Kind::Quantity => return quantity::read(Some(value)).map(|_| ()).map_err(|error| error.to_string()),
        Kind::Time => return decode_time(value, position),
        Kind::Raw => true,
        Kind::Text | Kind::Named(_) => value.is_string(),
        Kind::Bool => value.is_boolean(),
        Kind::Int => value.is_i64(),
    };
    if matches { Ok(()) } else { Err(position.mismatch(value, &go_name(kind))) }
}

/// Decodes a time, with or without fractions and in any zone, and stores it in seconds of UTC.
fn decode_time(value: &mut Value, position: &Position) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        return Err(position.mismatch(value, "string"));
    };
    let Ok(time) = text.parse::<Timestamp>() else {
        let layout = "2006-01-02T15:04:05Z07:00";
        return Err(format!("parsing time \"{text}\" as \"{layout}\": cannot parse \"{text}\" as \"2006\""));
    };
    *value = seconds(time).into();
    Ok(())
}

/// Formats a time in whole seconds, as the API writes it.
pub(in super::super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the Go type of a kind of value.
fn go_name(kind: Kind) -> String {
    match kind {
        Kind::Text | Kind::Time => "string".to_owned(),
        Kind::Named(name) => name.to_owned(),
        Kind::Int => "int64".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::Quantity => "resource.Quantity".to_owned(),
        Kind::Raw => "runtime.RawExtension".to_owned(),
        Kind::Object(of) => of.name.to_owned(),
        Kind::List(item) => format!("[]{}", go_name(*item)),
        Kind::Map(key, item) => format!("map[{key}]{}", go_name(*item)),
    }
}
