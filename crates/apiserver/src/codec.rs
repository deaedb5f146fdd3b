//! Bytes to objects and back.
//!
//! What comes in is held against the type of its kind: fields that the API does not have are dropped, as a real server
//! does, and values of the wrong type are refused.

use hyper::body::Bytes;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::resource::Resource;
use super::rules;
use super::status::Failure;
use super::store::Object;
use super::version::Version;

/// Reads JSON or YAML.
pub(crate) fn parse(body: &[u8], yaml: bool, kind: &str) -> Result<Value, Failure> {
    match serde_json::from_slice(body) {
        Ok(value) => Ok(value),
        Err(_) if yaml => {
            let text = std::str::from_utf8(body).map_err(|error| Failure::bad_request(format!("yaml: {error}")))?;
            serde_saphyr::from_str(text).map_err(|error| Failure::bad_request(format!("error decoding YAML: {error}")))
        }
        Err(error) => Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {error}"
        ))),
    }
}

/// Checks `apiVersion` and `kind` of what a client sent, and takes them out.
pub(crate) fn take_type(resource: Resource, version: Version, object: &mut Value) -> Result<(), Failure> {
    let Value::Object(fields) = object else {
        return Err(Failure::bad_request(format!("the body is no JSON object, but a {} is expected", resource.kind())));
    };
    let api_version = fields.remove("apiVersion").unwrap_or_default();
    let kind = fields.remove("kind").unwrap_or_default();
    // Clients may leave both out where the path tells what it is.
    let is = |found: &Value, wanted: &str| found.as_str().is_none_or(|found| found.is_empty() || found == wanted);
    if is(&api_version, version.api_version()) && is(&kind, resource.kind()) {
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (given, kind, wanted) = (text(&api_version), text(&kind), version.api_version());
    Err(Failure::bad_request(if given == wanted {
        let version = wanted.rsplit('/').next().unwrap_or_default();
        let expected = resource.kind();
        format!(
            "{kind} in version \"{version}\" cannot be handled as a {expected}: no kind \"{kind}\" is registered for version \"{given}\""
        )
    } else {
        format!("the API version in the data ({given}) does not match the expected API version ({wanted})")
    }))
}

/// Turns an object without `apiVersion` and `kind` that a client sent into the form that is kept, and names the fields that
/// the API does not have.
pub(crate) fn admit(resource: Resource, version: Version, mut object: Value) -> Result<(Value, Vec<String>), Failure> {
    version.to_stored(resource, &mut object);
    admit_stored(resource, version, object)
}

/// As [`admit`], for an object that is in the stored form already.
pub(crate) fn admit_stored(
    resource: Resource,
    version: Version,
    object: Value,
) -> Result<(Value, Vec<String>), Failure> {
    let kind = resource.kind();
    let bad = |why: &dyn std::fmt::Display| {
        let version = version.api_version().rsplit('/').next().unwrap_or_default();
        Failure::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    };
    let typed = match resource {
        Resource::Node => through::<Node>(&object),
        Resource::Pod => through::<Pod>(&object),
        Resource::Namespace => through::<Namespace>(&object),
        Resource::Event => through::<Event>(&object),
        Resource::ResourceClaim | Resource::ResourceClaimTemplate | Resource::ResourceSlice | Resource::DeviceClass => {
            let mut object = object;
            let unknown = rules::decode(resource, &mut object).map_err(|why| bad(&why))?;
            drop_nulls(&mut object);
            if !object["metadata"].is_object() {
                object["metadata"] = Map::new().into();
            }
            return Ok((object, unknown));
        }
    };
    let typed = typed.map_err(|why| bad(&why))?;
    let unknown = unknown_fields(&object, &typed);
    Ok((typed, unknown))
}

/// A field that is null is one that is not there, but for what is the business of drivers alone.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            for (_, value) in fields.iter_mut().filter(|(name, _)| !matches!(name.as_str(), "data" | "parameters")) {
                drop_nulls(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn through<T>(object: &Value) -> Result<Value, serde_json::Error>
where
    T: Serialize + DeserializeOwned + k8s_openapi::Resource,
{
    let mut object = object.clone();
    if let Value::Object(fields) = &mut object {
        fields.insert("apiVersion".to_owned(), T::API_VERSION.into());
        fields.insert("kind".to_owned(), T::KIND.into());
    }
    let typed: T = serde_json::from_value(object)?;
    let mut value = serde_json::to_value(typed)?;
    if let Value::Object(fields) = &mut value {
        fields.remove("apiVersion");
        fields.remove("kind");
        fields.entry("metadata").or_insert_with(|| Map::new().into());
    }
    Ok(value)
}

/// The paths of the fields that are given but not known.
fn unknown_fields(given: &Value, known: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look(given, known, "", &mut found);
    found
}

fn look(given: &Value, known: &Value, path: &str, found: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}{dot}{name}");
                match known.get(name) {
                    Some(known) => look(value, known, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                look(given, known, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// The object in a version, with `apiVersion` and `kind`.
pub(crate) fn present(resource: Resource, version: Version, object: &Value) -> Value {
    let mut object = object.clone();
    version.of_stored(resource, &mut object);
    object["apiVersion"] = version.api_version().into();
    object["kind"] = resource.kind().into();
    object
}

/// The object as JSON, with `apiVersion` and `kind`.
pub(crate) fn encode(resource: Resource, version: Version, object: &Object, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(resource.kind().as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"");
    out.extend_from_slice(version.api_version().as_bytes());
    out.extend_from_slice(b"\",");
    // The object has metadata, so its JSON is never just `{}`.
    out.extend_from_slice(&body(resource, version, object)[1..]);
}

/// The object as JSON, as it is in a list: without `apiVersion` and `kind`.
pub(crate) fn body(resource: Resource, version: Version, object: &Object) -> Bytes {
    if version.is_stored_form() {
        return object.json().clone();
    }
    let mut value = object.value.clone();
    version.of_stored(resource, &mut value);
    value.to_string().into()
}
