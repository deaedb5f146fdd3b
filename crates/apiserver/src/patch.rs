//! PATCH.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::call::Call;
use super::codec;
use super::json_patch;
use super::ownership;
use super::resource::Resource;
use super::status::Failure;
use super::store::Object;
use super::strategic;
use super::write::{self, Proposal};

/// Patches an object. Returns the object, and whether it was created.
pub(crate) fn patch(call: &Call, body: &[u8]) -> Result<(bool, Arc<Object>), Failure> {
    let apply: fn(Resource, &mut Value, &Value) -> Result<(), Failure> =
        match call.content_type.split(';').next().unwrap_or_default().trim() {
            "application/apply-patch+yaml" => return ownership::apply(call, body),
            "application/merge-patch+json" => |_, object, patch| {
                merge(object, patch);
                Ok(())
            },
            "application/strategic-merge-patch+json" => strategic::merge,
            "application/json-patch+json" => |_, object, patch| json_patch::patch(object, patch),
            _ => return Err(Failure::media_type()),
        };
    let patch = codec::parse(body, false, call.resource().kind())?;
    let object = write::update(call, |old| {
        let resource = call.resource();
        let version = call.target.version;
        let mut object = codec::present(resource, version, &old.value);
        apply(resource, &mut object, &patch)?;
        write::check_name(call, &object)?;
        // The resource version is a precondition only if the patch itself names it.
        if object["metadata"]["resourceVersion"] == old.value["metadata"]["resourceVersion"] && !names_version(&patch) {
            object["metadata"]["resourceVersion"] = Value::Null;
        }
        codec::take_type(resource, version, &mut object)?;
        let (object, unknown) = codec::admit(resource, version, object)?;
        call.check_strict(&unknown)?;
        Ok(Proposal { object, managed_fields: None })
    })?;
    Ok((false, object))
}

fn names_version(patch: &Value) -> bool {
    patch["metadata"]["resourceVersion"].is_string()
}

/// Applies a JSON merge patch (RFC 7386).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Map::new().into();
    }
    if let Value::Object(target) = target {
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                merge(target.entry(name).or_insert(Value::Null), value);
            }
        }
    }
}
