//! Decoding and encoding of objects.
//!
//! Decoding drops fields that the type does not have and refuses values of the wrong type, as the kube-apiserver does.

use hyper::body::Bytes;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, Service};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::resource::Resource;
use super::rules;
use super::status::Failure;
use super::store::Object;
use super::version::Version;

/// Parses JSON or YAML.
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

/// Checks `apiVersion` and `kind` of a request body, and removes them.
pub(crate) fn take_type(resource: Resource, version: Version, object: &mut Value) -> Result<(), Failure> {
    let Value::Object(fields) = object else {
        return Err(Failure::bad_request(format!("the body is not a JSON object, expected a {}", resource.kind())));
    };
    let api_version = fields.remove("apiVersion").unwrap_or_default();
    let kind = fields.remove("kind").unwrap_or_default();
    // Clients may omit both: the path determines them.
    let matches = |found: &Value, wanted: &str| found.as_str().is_none_or(|found| found.is_empty() || found == wanted);
    if matches(&api_version, version.api_version()) && matches(&kind, resource.kind()) {
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let given = text(&api_version);
    let kind = text(&kind);
    let wanted = version.api_version();
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

/// Converts a decoded request body without `apiVersion` and `kind` to the stored form. Also returns the paths of unknown
/// fields, which are dropped.
pub(crate) fn admit(resource: Resource, version: Version, mut object: Value) -> Result<(Value, Vec<String>), Failure> {
    version.to_stored(resource, &mut object);
    admit_stored(resource, version, object)
}

/// Like [`admit`], for an object that is in the form of the stored version already.
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
        Resource::Node => round_trip::<Node>(&object),
        Resource::Pod => round_trip::<Pod>(&object),
        Resource::Namespace => round_trip::<Namespace>(&object),
        Resource::Event => round_trip::<Event>(&object),
        Resource::ConfigMap => round_trip::<ConfigMap>(&object),
        Resource::Service => round_trip::<Service>(&object),
        Resource::Lease => round_trip::<Lease>(&object),
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

/// Removes fields that are null, except inside of opaque data of drivers.
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

/// Decodes an object as `T` and encodes it again.
fn round_trip<T>(object: &Value) -> Result<Value, serde_json::Error>
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

/// Returns the paths of the fields of `given` that `known` does not have.
fn unknown_fields(given: &Value, known: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_unknown(given, known, "", &mut found);
    found
}

fn collect_unknown(given: &Value, known: &Value, path: &str, found: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}{dot}{name}");
                match known.get(name) {
                    Some(known) => collect_unknown(value, known, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                collect_unknown(given, known, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// Converts an object to a version, with `apiVersion` and `kind`.
pub(crate) fn present(resource: Resource, version: Version, object: &Value) -> Value {
    let mut object = object.clone();
    version.convert_from_stored(resource, &mut object);
    object["apiVersion"] = version.api_version().into();
    object["kind"] = resource.kind().into();
    object
}

/// Encodes an object as JSON, with `apiVersion` and `kind`.
pub(crate) fn encode(resource: Resource, version: Version, object: &Object, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(resource.kind().as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"");
    out.extend_from_slice(version.api_version().as_bytes());
    out.extend_from_slice(b"\",");
    // Skip the opening brace. The object has metadata, so its JSON is never `{}`.
    out.extend_from_slice(&body(resource, version, object)[1..]);
}

/// Encodes an object as JSON for a list: without `apiVersion` and `kind`.
pub(crate) fn body(resource: Resource, version: Version, object: &Object) -> Bytes {
    if version.is_stored_form() {
        return object.json().clone();
    }
    let mut value = object.value.clone();
    version.convert_from_stored(resource, &mut value);
    value.to_string().into()
}
