//! Objects as error messages print them: fields in the order of the Go struct.

use drakkar_client::schema::{Field, Kind, Presence, Type};
use serde_json::Value;

use super::super::value::get;

/// Prints an object as the JSON that clients see, without empty fields.
pub(in super::super) fn show(of: &Type, value: &Value) -> String {
    let fields = of.fields.iter().filter_map(|field| {
        let value = get(value, field.name);
        let written = match field.presence {
            Presence::Always | Presence::Nullable => true,
            Presence::Pointer => value.is_some(),
            Presence::OmitEmpty => value.is_some_and(|value| !is_empty(value)),
        };
        written.then(|| format!("{}:{}", json(field.name), show_kind(field.kind, value)))
    });
    braced(fields)
}

fn show_kind(kind: Kind, value: Option<&Value>) -> String {
    match (kind, value) {
        (Kind::Object(of), value) => show(of, value.unwrap_or(&Value::Null)),
        (Kind::List(item), Some(Value::Array(list))) => listed(list.iter().map(|value| show_kind(*item, Some(value)))),
        (Kind::Map(_, item), Some(Value::Object(map))) => {
            braced(map.iter().map(|(key, value)| format!("{}:{}", json(key), show_kind(*item, Some(value)))))
        }
        (_, Some(value)) => value.to_string(),
        (Kind::Text | Kind::Named(_), None) => "\"\"".to_owned(),
        (Kind::Int, None) => "0".to_owned(),
        (Kind::Bool, None) => "false".to_owned(),
        (_, None) => "null".to_owned(),
    }
}

/// Prints an object as the JSON of the server's internal type: with the names of Go, and with every field.
pub(in super::super) fn show_internal(of: &Type, value: &Value) -> String {
    let fields = of.fields.iter().filter_map(|field| {
        let value = get(value, field.name);
        if let (Kind::Object(of), "metadata") = (field.kind, field.name) {
            // Go embeds the metadata, and their fields have JSON names.
            let shown = show(of, value.unwrap_or(&Value::Null));
            return Some(shown[1..shown.len() - 1].to_owned()).filter(|fields| !fields.is_empty());
        }
        Some(format!("{}:{}", json(&internal_name(field)), internal_kind(field, field.kind, value)))
    });
    braced(fields)
}

fn internal_kind(field: &Field, kind: Kind, value: Option<&Value>) -> String {
    match (kind, value) {
        (Kind::Object(of), Some(value)) => show_internal(of, value),
        (Kind::Object(of), None) if field.presence == Presence::Always => show_internal(of, &Value::Null),
        (Kind::List(item), Some(Value::Array(list))) => {
            listed(list.iter().map(|value| internal_kind(field, *item, Some(value))))
        }
        (Kind::Map(_, item), Some(Value::Object(map))) => {
            braced(map.iter().map(|(key, value)| format!("{}:{}", json(key), internal_kind(field, *item, Some(value)))))
        }
        (_, Some(value)) => value.to_string(),
        (Kind::Text | Kind::Named(_), None) if field.presence != Presence::Pointer => "\"\"".to_owned(),
        (Kind::Int, None) if field.presence != Presence::Pointer => "0".to_owned(),
        (Kind::Bool, None) if field.presence != Presence::Pointer => "false".to_owned(),
        (_, None) => "null".to_owned(),
    }
}

fn internal_name(field: &Field) -> String {
    match field.go_name {
        Some(name) => name.to_owned(),
        None => field.name[..1].to_ascii_uppercase() + &field.name[1..],
    }
}

/// Returns whether Go's `omitempty` leaves the value out.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn json(text: &str) -> String {
    Value::from(text).to_string()
}

fn braced(fields: impl Iterator<Item = String>) -> String {
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}
