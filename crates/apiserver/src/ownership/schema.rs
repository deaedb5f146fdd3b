//! Which lists and maps are merged item by item, and which are one value.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::resource::Resource;

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// As one value.
    Atomic,
    /// Its items are told apart by their values.
    Set,
    /// Its items are told apart by these fields.
    Keyed(&'static [&'static str]),
}

const DEVICE_KEYS: &[&str] = &["driver", "device", "pool", "shareID"];

/// How the list at a path is merged. The path has field names with dots between them, and `[]` for an item of a list.
pub(crate) fn list(resource: Resource, path: &str) -> List {
    match path {
        "metadata.ownerReferences" => return List::Keyed(&["uid"]),
        "metadata.finalizers" => return List::Set,
        _ => {}
    }
    match resource {
        Resource::ResourceClaim => match path {
            "status.devices" => List::Keyed(DEVICE_KEYS),
            "status.devices[].conditions" => List::Keyed(&["type"]),
            "status.reservedFor" => List::Keyed(&["uid"]),
            _ => List::Atomic,
        },
        Resource::ResourceSlice if path == "spec.skipNodeOperations" => List::Set,
        Resource::Node => match path {
            "status.addresses" | "status.conditions" => List::Keyed(&["type"]),
            "spec.podCIDRs" => List::Set,
            _ => List::Atomic,
        },
        Resource::Namespace if path == "status.conditions" => List::Keyed(&["type"]),
        Resource::Pod => pod_list(path),
        _ => List::Atomic,
    }
}

fn pod_list(path: &str) -> List {
    match path {
        "status.conditions" => List::Keyed(&["type"]),
        "status.podIPs" | "spec.hostAliases" => List::Keyed(&["ip"]),
        "status.resourceClaimStatuses"
        | "spec.containers"
        | "spec.initContainers"
        | "spec.ephemeralContainers"
        | "spec.imagePullSecrets"
        | "spec.resourceClaims"
        | "spec.schedulingGates"
        | "spec.volumes" => List::Keyed(&["name"]),
        "spec.topologySpreadConstraints" => List::Keyed(&["topologyKey", "whenUnsatisfiable"]),
        _ => match path.rsplit_once("ontainers[].").map(|(_, below)| below) {
            Some("env" | "resources.claims") => List::Keyed(&["name"]),
            Some("ports") => List::Keyed(&["containerPort", "protocol"]),
            Some("volumeDevices") => List::Keyed(&["devicePath"]),
            Some("volumeMounts") => List::Keyed(&["mountPath"]),
            _ => List::Atomic,
        },
    }
}

/// Whether the object at a path is one value.
pub(crate) fn is_atomic_object(resource: Resource, path: &str) -> bool {
    if path == "metadata.ownerReferences[]" {
        return true;
    }
    match resource {
        Resource::ResourceClaim => matches!(path, "status.allocation.nodeSelector" | "status.devices[].data"),
        Resource::ResourceSlice => path == "spec.nodeSelector",
        Resource::Pod => {
            let last = path.rsplit('.').next().unwrap_or_default();
            matches!(path, "spec.nodeSelector" | "spec.imagePullSecrets[]")
                || matches!(
                    last,
                    "fieldRef" | "resourceFieldRef" | "configMapKeyRef" | "secretKeyRef" | "labelSelector"
                )
        }
        Resource::Event => matches!(path, "involvedObject" | "related"),
        _ => false,
    }
}

/// Whether the object at a path is a map with keys of the client's choice, rather than one with fixed fields.
pub(crate) fn is_free_map(path: &str) -> bool {
    matches!(path, "metadata.labels" | "metadata.annotations")
}

/// The element that names an item of a list; nothing for an item that has none of the keys.
pub(crate) fn element(list: List, item: &Value) -> Option<String> {
    match list {
        List::Atomic => None,
        List::Set => Some(format!("v:{item}")),
        List::Keyed(keys) => {
            let found: BTreeMap<&str, &Value> =
                keys.iter().filter_map(|key| Some((*key, item.get(key).filter(|value| !value.is_null())?))).collect();
            if found.is_empty() {
                return None;
            }
            serde_json::to_string(&found).ok().map(|keys| format!("k:{keys}"))
        }
    }
}

/// Fields that nobody owns.
pub(crate) fn is_ignored(path: &str) -> bool {
    matches!(
        path,
        "apiVersion"
            | "kind"
            | "metadata.name"
            | "metadata.namespace"
            | "metadata.creationTimestamp"
            | "metadata.deletionTimestamp"
            | "metadata.deletionGracePeriodSeconds"
            | "metadata.selfLink"
            | "metadata.uid"
            | "metadata.generation"
            | "metadata.managedFields"
            | "metadata.resourceVersion"
    )
}
