//! OpenAPI: what the types and paths of the API are, for `kubectl explain`, for checks before a write, and for patches.
//!
//! Types are those that the server decodes objects with. How lists and maps are merged is added from the same tables that
//! server-side apply and strategic merge patches use, so that clients and server agree. The feature `descriptions` adds what
//! Kubernetes' own documents say of types and fields. Version 3 has a document for each API version, version 2 one for all.

mod definitions;
#[cfg(feature = "descriptions")]
mod descriptions;
mod kinds;
mod paths;
mod trace;

use drakkar_client::DraVersion;
use serde_json::{Map, Value, json};

use super::discovery::{self, RELEASE};
use super::version::Version;

/// Returns the document at a path below `/openapi`, or `None` if there is none.
pub(crate) fn answer(segments: &[&str], served: &[DraVersion]) -> Option<Value> {
    match segments {
        ["v2"] => Some(version_2(served)),
        ["v3"] => Some(version_3_index(served)),
        ["v3", path @ ..] => discovery::versions(served)
            .into_iter()
            .find(|version| version.path().split('/').eq(path.iter().copied()))
            .map(version_3),
        _ => None,
    }
}

/// Lists the documents of version 3.
fn version_3_index(served: &[DraVersion]) -> Value {
    let document = |version: Version| {
        let path = version.path();
        let url = format!("/openapi/v3/{path}");
        (path, json!({ "serverRelativeURL": url }))
    };
    let paths: Map<String, Value> = discovery::versions(served).into_iter().map(document).collect();
    json!({ "paths": paths })
}

fn version_3(version: Version) -> Value {
    let mut schemas = definitions::of(&[version]);
    schemas.values_mut().for_each(wrap_references);
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths::of(version, paths::Format::V3),
        "components": { "schemas": schemas },
    })
}

fn version_2(served: &[DraVersion]) -> Value {
    let versions = discovery::versions(served);
    let mut definitions = definitions::of(&versions);
    definitions.values_mut().for_each(rename_references);
    let paths: Map<String, Value> =
        versions.into_iter().flat_map(|version| paths::of(version, paths::Format::V2)).collect();
    json!({ "swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions })
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": RELEASE })
}

/// Makes references those of version 2, whose types are elsewhere in the document.
fn rename_references(schema: &mut Value) {
    for_each_schema(schema, &mut |schema| {
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            *reference = reference.replace(definitions::PREFIX, "#/definitions/");
        }
    });
}

/// Moves a reference that has a description beside it to where version 3 allows that.
fn wrap_references(schema: &mut Value) {
    for_each_schema(schema, &mut |schema| {
        if schema.len() > 1
            && let Some(reference) = schema.remove("$ref")
        {
            schema.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
        }
    });
}

/// Calls a function for a schema and all schemas in it.
fn for_each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(schema) = schema else { return };
    change(schema);
    for name in ["items", "additionalProperties"] {
        schema.get_mut(name).into_iter().for_each(|below| for_each_schema(below, change));
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|below| for_each_schema(below, change));
}
