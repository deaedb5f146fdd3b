//! Server-side apply.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::entry::{self, Entry};
use super::set::Fields;
use super::tree;
use crate::call::Call;
use crate::codec;
use crate::resource::Resource;
use crate::status::Failure;
use crate::store::Object;
use crate::write::{self, Proposal};

/// Applies a configuration. Returns the object, and whether it was created.
pub(crate) fn apply(call: &Call, body: &[u8]) -> Result<(bool, Arc<Object>), Failure> {
    if call.query.get("fieldManager").is_none() {
        return Err(Failure::patch_options("fieldManager", "Required value: is required for apply patch"));
    }
    let config = configuration(call, body)?;
    let exists = call.core.store.get(call.resource(), &call.key()).is_some();
    if !exists && call.target.subresource.is_none() {
        let mut own = Entry::of(call, true);
        own.fields = tree::fields(call.resource(), &config);
        let mut object = config.clone();
        object["metadata"]["name"] = call.name().into();
        let (object, _) = codec::admit_stored(call.resource(), call.target.version, object)?;
        let proposal = Proposal { object, managed_fields: Some(entry::encode(vec![own])) };
        match write::create_proposed(call, proposal) {
            // Another client created the object meanwhile: apply to that one.
            Err(failure) if failure.code == 409 => {}
            created => return Ok((true, created?)),
        }
    }
    Ok((false, write::update(call, |old| propose(call, &config, &old.value))?))
}

/// Reads and checks the configuration that a client applies, and reduces it to what the request path can change.
fn configuration(call: &Call, body: &[u8]) -> Result<Value, Failure> {
    let resource = call.resource();
    let mut config = codec::parse(body, true, resource.kind())?;
    let text = |field: &str| config[field].as_str().unwrap_or_default();
    let version = text("apiVersion");
    let kind = text("kind");
    if version != call.target.version.api_version() || kind != resource.kind() {
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(Failure::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")));
    }
    codec::take_type(resource, call.target.version, &mut config)?;
    if !config["metadata"].is_object() {
        config["metadata"] = Map::new().into();
    }
    let metadata = &config["metadata"];
    if metadata.get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(name) = metadata["name"].as_str().filter(|name| *name != call.name()) {
        let expected = call.name();
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        )));
    }
    call.target.version.to_stored(resource, &mut config);
    let (_, unknown) = codec::admit_stored(resource, call.target.version, config.clone())?;
    if let Some(path) = unknown.first() {
        let text = |field: &str| config["metadata"][field].as_str().unwrap_or_default();
        let namespace = text("namespace");
        let name = text("name");
        let version = call.target.version.api_version();
        return Err(Failure::internal_plain(format!(
            "failed to create typed patch object ({namespace}/{name}; {version}, Kind={}): .{path}: field not declared in schema",
            resource.kind(),
        )));
    }
    restrict(call, &mut config);
    Ok(config)
}

/// Removes what the request path cannot change: it is neither applied nor owned.
fn restrict(call: &Call, config: &mut Value) {
    let resource = call.resource();
    let Value::Object(config) = config else { return };
    if call.is_status() {
        config.remove("spec");
        if resource == Resource::ResourceClaim
            && let Some(Value::Object(metadata)) = config.get_mut("metadata")
        {
            metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "uid" | "resourceVersion"));
        }
    } else if resource.has_status() {
        config.remove("status");
    }
}

/// Merges a configuration into the stored object, and updates the ownership.
fn propose(call: &Call, config: &Value, live: &Value) -> Result<Proposal, Failure> {
    let resource = call.resource();
    let mut entries = entry::parse(live);
    let mut own = Entry::of(call, true);
    own.fields = tree::fields(resource, config);
    let last = entries.iter().find(|entry| entry.is_same_manager(&own)).cloned();
    entries.retain(|entry| !entry.is_same_manager(&own));

    let mut merged = live.clone();
    tree::merge(resource, &mut merged, config);
    if let Some(last) = &last {
        let mut kept = own.fields.clone();
        entries.iter().for_each(|entry| kept.union(&entry.fields));
        tree::prune(resource, &mut merged, &last.fields, &kept);
    }
    let difference = tree::compare(resource, live, &merged);
    let conflicts: Vec<(&Entry, Fields)> = entries
        .iter()
        .map(|entry| (entry, entry.fields.intersection(&difference.changed)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    if !conflicts.is_empty() && !call.query.flag("force") {
        return Err(conflict(&conflicts));
    }
    for entry in &mut entries {
        entry.fields = entry.fields.difference(&difference.changed).difference(&difference.removed);
    }
    if let Some(last) = last
        && difference.changed.is_empty()
        && difference.removed.is_empty()
        && last.fields == own.fields
    {
        own.time = last.time;
    }
    entries.push(own);
    // Preconditions are those of the client, not those of the stored object.
    for field in ["resourceVersion", "uid"] {
        merged["metadata"][field] = config["metadata"][field].clone();
    }
    let (object, _) = codec::admit_stored(resource, call.target.version, merged)?;
    Ok(Proposal { object, managed_fields: Some(entry::encode(entries)) })
}

/// Makes the error for fields that other managers own.
fn conflict(conflicts: &[(&Entry, Fields)]) -> Failure {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (entry, fields) in conflicts {
        let manager = entry.describe();
        lines.push(format!("conflicts with {manager}:"));
        for path in fields.paths() {
            lines.push(format!("- {path}"));
            causes.push(json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager}"),
                "field": path,
            }));
        }
    }
    let message = match causes.as_slice() {
        [cause] => {
            let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
            format!("Apply failed with 1 conflict: {}: {}", text("message"), text("field"))
        }
        many => format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n")),
    };
    Failure::apply_conflict(message, &causes)
}
