//! The form in which the server returns objects: empty fields left out, and every field that Go always writes.

use drakkar_client::schema::{Kind, Presence, Type};
use serde_json::{Map, Value};

use super::super::super::resource::Resource;
use super::show::is_empty;
use super::type_of;

/// Completes a decoded object: brings it into the form in which the server returns it. Objects of the core group stay as they
/// are.
pub(crate) fn complete(resource: Resource, object: &mut Value) {
    if let Some(of) = type_of(resource) {
        complete_object(of, object);
    }
}

fn complete_object(of: &Type, value: &mut Value) {
    if value.is_null() {
        *value = Map::new().into();
    }
    let Value::Object(fields) = value else { return };
    for field in of.fields {
        match fields.get_mut(field.name).filter(|value| !value.is_null()) {
            Some(value) if field.presence == Presence::OmitEmpty && is_empty(value) => _ = fields.remove(field.name),
            Some(value) if matches!(field.kind, Kind::List(_)) && is_empty(value) => *value = Value::Null,
            Some(value) => complete_kind(field.kind, value),
            None if field.presence == Presence::Nullable => _ = fields.insert(field.name.to_owned(), Value::Null),
            None if field.presence == Presence::Always => {
                let mut value = zero(field.kind);
                complete_kind(field.kind, &mut value);
                fields.insert(field.name.to_owned(), value);
            }
            None => _ = fields.remove(field.name),
        }
    }
}

fn complete_kind(kind: Kind, value: &mut Value) {
    match (kind, value) {
        (Kind::Object(of), value) => complete_object(of, value),
        (Kind::List(item), Value::Array(list)) => list.iter_mut().for_each(|value| complete_kind(*item, value)),
        (Kind::Map(_, item), Value::Object(map)) => map.values_mut().for_each(|value| complete_kind(*item, value)),
        _ => {}
    }
}

fn zero(kind: Kind) -> Value {
    match kind {
        Kind::Text | Kind::Named(_) => "".into(),
        Kind::Int => 0.into(),
        Kind::Bool => false.into(),
        Kind::Quantity => "0".into(),
        Kind::Object(_) => Map::new().into(),
        Kind::Time | Kind::Raw | Kind::List(_) | Kind::Map(..) => Value::Null,
    }
}
