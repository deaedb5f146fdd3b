//! What decoding an object refuses: values of the wrong type. Fields that the API does not have are left out.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::super::resource::Resource;
use super::super::quantity;
use super::{Kind, Type, of};

/// Takes fields out of an object that its type does not have, and says which; or says, in the words of the server, why it
/// cannot be decoded (which is answered with 400). Objects of the core group stay as they are.
pub(crate) fn decode(resource: Resource, object: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    if let Some(of) = of(resource) {
        let mut place = Place { structure: "", path: String::new(), exact: String::new() };
        // The type of the object itself is known, so these are no fields of the types described here.
        let mut outer = Map::new();
        if let Value::Object(fields) = &mut *object {
            for name in ["apiVersion", "kind"] {
                outer.extend(fields.remove_entry(name));
            }
        }
        let decoded = decode_object(of, object, &mut place, &mut unknown);
        if let Value::Object(fields) = object {
            fields.append(&mut outer);
        }
        decoded?;
    }
    Ok(unknown)
}

/// Where decoding is.
struct Place {
    /// The type that has the field.
    structure: &'static str,
    /// The path, without indices and keys.
    path: String,
    /// The path, with them.
    exact: String,
}

impl Place {
    fn within<T>(&mut self, step: &str, exact: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let lengths = (self.path.len(), self.exact.len());
        self.path.push_str(step);
        self.exact.push_str(exact);
        let result = inner(self);
        self.path.truncate(lengths.0);
        self.exact.truncate(lengths.1);
        result
    }

    fn mismatch(&self, value: &Value, wanted: &str) -> String {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if wanted == "int64" => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let structure = self.structure.rsplit('.').next().unwrap_or_default();
        if structure.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {wanted}");
        }
        format!("json: cannot unmarshal {found} into Go struct field {structure}.{} of type {wanted}", self.path)
    }
}

fn decode_object(
    of: &'static Type,
    value: &mut Value,
    place: &mut Place,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    let Value::Object(fields) = value else {
        return Err(place.mismatch(value, of.name));
    };
    let dot = if place.path.is_empty() { "" } else { "." };
    let outer = std::mem::replace(&mut place.structure, of.name);
    for (name, value) in fields.iter_mut() {
        let step = format!("{dot}{name}");
        match of.fields.iter().find(|field| field.name == name) {
            Some(field) => place.within(&step, &step, |place| decode_kind(field.kind, value, place, unknown))?,
            None => unknown.push(format!("{}{step}", place.exact)),
        }
    }
    place.structure = outer;
    fields.retain(|name, _| of.fields.iter().any(|field| field.name == name));
    Ok(())
}

fn decode_kind(kind: Kind, value: &mut Value, place: &mut Place, unknown: &mut Vec<String>) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let right = match kind {
        Kind::Object(of) => return decode_object(of, value, place, unknown),
        Kind::List(item) => {
            let Value::Array(list) = value else { return Err(place.mismatch(value, &go_name(kind))) };
            for (index, value) in list.iter_mut().enumerate() {
                place.within("", &format!("[{index}]"), |place| decode_kind(*item, value, place, unknown))?;
            }
            true
        }
        Kind::Map(_, item) => {
            let Value::Object(map) = value else { return Err(place.mismatch(value, &go_name(kind))) };
            for (key, value) in map.iter_mut() {
                place.within("", &format!(".{key}"), |place| decode_kind(*item, value, place, unknown))?;
            }
            true
        }
        Kind::Quantity => return quantity::read(Some(value)).map(|_| ()).map_err(|error| error.to_string()),
        Kind::Time => return decode_time(value, place),
        Kind::Raw => true,
        Kind::Text | Kind::Named(_) => value.is_string(),
        Kind::Bool => value.is_boolean(),
        Kind::Int => value.is_i64(),
    };
    if right { Ok(()) } else { Err(place.mismatch(value, &go_name(kind))) }
}

/// Times come with or without fractions and in any zone, and are kept in seconds of UTC.
fn decode_time(value: &mut Value, place: &Place) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        return Err(place.mismatch(value, "string"));
    };
    let Ok(time) = text.parse::<Timestamp>() else {
        let layout = "2006-01-02T15:04:05Z07:00";
        return Err(format!("parsing time \"{text}\" as \"{layout}\": cannot parse \"{text}\" as \"2006\""));
    };
    *value = seconds(time).into();
    Ok(())
}

/// A time in whole seconds, as the API writes it.
pub(in super::super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

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
