//! Fields that the server controls, whatever the client sends: system metadata, the generation, and the separation of spec
//! and status.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::resource::Resource;

/// Metadata that clients cannot write.
const SYSTEM_METADATA: [&str; 7] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "managedFields",
];

/// Metadata that a status update of a claim cannot change.
const CLAIM_METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Returns the current time in the format of the API.
pub(crate) fn now() -> String {
    timestamp(0)
}

/// Returns the time in `seconds` from now, in the format of the API.
pub(crate) fn timestamp(seconds: i64) -> String {
    let now = Timestamp::now().as_second();
    let then = Timestamp::from_second(now.saturating_add(seconds)).unwrap_or(Timestamp::MAX);
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets the system fields of a new object.
pub(crate) fn for_create(resource: Resource, namespace: Option<&str>, object: &mut Value) {
    for field in SYSTEM_METADATA.into_iter().chain(["resourceVersion"]) {
        remove_metadata(object, field);
    }
    object["metadata"]["creationTimestamp"] = now().into();
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    if resource.has_generation() {
        object["metadata"]["generation"] = 1.into();
    }
    match resource {
        Resource::ResourceClaim => object["status"] = Map::new().into(),
        Resource::Pod => object["status"] = json!({ "phase": "Pending", "qosClass": qos_class(&object["spec"]) }),
        Resource::Namespace => {
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = object["metadata"]["name"].clone();
            object["spec"] = json!({ "finalizers": ["kubernetes"] });
            object["status"] = json!({ "phase": "Active" });
        }
        // A kubelet registers its node with a status.
        _ => {}
    }
}

/// Restores the fields of an updated object that the request cannot change.
pub(crate) fn for_update(resource: Resource, status: bool, new: &mut Value, old: &Value) {
    if !new["metadata"].is_object() {
        new["metadata"] = Map::new().into();
    }
    for field in SYSTEM_METADATA.into_iter().chain(["resourceVersion", "name", "namespace", "generateName"]) {
        keep(&mut new["metadata"], &old["metadata"], field);
    }
    if !status {
        if resource.has_status() {
            keep(new, old, "status");
        }
        return;
    }
    keep(new, old, "spec");
    match resource {
        Resource::ResourceClaim => {
            for field in CLAIM_METADATA {
                keep(&mut new["metadata"], &old["metadata"], field);
            }
        }
        Resource::Pod => keep(&mut new["metadata"], &old["metadata"], "ownerReferences"),
        _ => {}
    }
}

/// Removes empty metadata, and adds the empty fields that the kube-apiserver writes.
pub(crate) fn normalize(resource: Resource, object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| match value {
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        });
    }
    if resource != Resource::ResourceClaim {
        return;
    }
    if !object["status"].is_object() {
        object["status"] = Map::new().into();
    }
    for device in object.pointer_mut("/status/devices").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(device) = device {
            device.entry("conditions").or_insert(Value::Null);
        }
    }
}

/// Increments the generation if the spec has changed.
pub(crate) fn update_generation(resource: Resource, new: &mut Value, old: &Value) {
    if resource.has_generation() && new["spec"] != old["spec"] {
        bump_generation(new);
    }
}

/// Increments the generation, if the object has one.
pub(crate) fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Whether a deleted object can be removed: its grace period is 0 and it has no finalizers.
pub(crate) fn is_removable(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata["deletionTimestamp"].is_string()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
        && !has_finalizers(object)
}

pub(crate) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// Removes a metadata field.
pub(crate) fn remove_metadata(object: &mut Value, field: &str) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove(field);
    }
}

fn keep(new: &mut Value, old: &Value, field: &str) {
    set(new, field, old.get(field).cloned());
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    if let Value::Object(object) = object {
        match value {
            Some(value) => drop(object.insert(field.to_owned(), value)),
            None => drop(object.remove(field)),
        }
    }
}

/// Returns `Guaranteed` if every container has limits for CPU and memory that equal its requests, and `BestEffort` if none
/// has any.
fn qos_class(spec: &Value) -> &'static str {
    let containers =
        || ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    let amount = |container: &Value, kind: &str, name: &str| container["resources"][kind][name].clone();
    let names = ["cpu", "memory"];
    let guaranteed = containers().all(|container| {
        names.iter().all(|name| {
            let limit = amount(container, "limits", name);
            let request = amount(container, "requests", name);
            !limit.is_null() && (request.is_null() || request == limit)
        })
    });
    let any = containers().any(|container| {
        names.iter().any(|name| ["limits", "requests"].iter().any(|kind| !amount(container, kind, name).is_null()))
    });
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
