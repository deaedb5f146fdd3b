//! Which values of an object are merged part by part, and which are replaced as a whole.
//!
//! Objects of `resource.k8s.io` and all metadata are merged by the tables of [`drakkar_client::schema`], the rest of the core
//! group by the path of the value.

use std::collections::BTreeMap;

use drakkar_client::schema::{Kind, ListType, OBJECT_META, Presence};
use serde_json::Value;

use crate::resource::Resource;
use crate::rules;

/// What is known about a value.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    of: Known,
    list_type: ListType,
    always_present: bool,
}

#[derive(Clone, Debug)]
enum Known {
    /// The kind of the value.
    Kind(Kind),
    /// The path of a value of the core group: field names with dots between them, and `[]` for an item of a list.
    Core(Resource, String),
    /// Nothing.
    Nothing,
}

impl Schema {
    /// Describes an object of a resource.
    pub(crate) fn object(resource: Resource) -> Self {
        let of = match rules::type_of(resource) {
            Some(of) => Known::Kind(Kind::Object(of)),
            None => Known::Core(resource, String::new()),
        };
        Self { of, list_type: ListType::Atomic, always_present: true }
    }

    /// Describes a field of this object, or an entry of this map.
    pub(crate) fn field(&self, name: &str) -> Self {
        match &self.of {
            Known::Kind(Kind::Object(of)) => match of.field(name) {
                Some(field) => {
                    let is_struct = matches!(field.kind, Kind::Object(_)) && field.presence == Presence::Always;
                    Self {
                        of: Known::Kind(field.kind),
                        list_type: field.list_type,
                        always_present: self.always_present && is_struct,
                    }
                }
                None => Self::nothing(),
            },
            Known::Kind(Kind::Map(_, item)) => Self::of_kind(**item),
            Known::Core(_, path) if path.is_empty() && name == "metadata" => {
                Self { always_present: true, ..Self::of_kind(Kind::Object(&OBJECT_META)) }
            }
            Known::Core(resource, path) if path.is_empty() => Self::core(*resource, name.to_owned()),
            Known::Core(resource, path) => Self::core(*resource, format!("{path}.{name}")),
            Known::Kind(_) | Known::Nothing => Self::nothing(),
        }
    }

    /// Describes an item of this list.
    pub(crate) fn item(&self) -> Self {
        match &self.of {
            Known::Kind(Kind::List(item)) => Self::of_kind(**item),
            Known::Core(resource, path) => Self::core(*resource, format!("{path}[]")),
            Known::Kind(_) | Known::Nothing => Self::nothing(),
        }
    }

    fn of_kind(kind: Kind) -> Self {
        Self { of: Known::Kind(kind), list_type: ListType::Atomic, always_present: false }
    }

    fn core(resource: Resource, path: String) -> Self {
        let always_present =
            matches!(path.as_str(), "spec" | "status") || (resource == Resource::Pod && path == "spec.containers");
        Self { list_type: core_list(resource, &path), always_present, of: Known::Core(resource, path) }
    }

    fn nothing() -> Self {
        Self { of: Known::Nothing, list_type: ListType::Atomic, always_present: false }
    }

    /// Returns how the value is merged if it is a list.
    pub(crate) fn list_type(&self) -> ListType {
        self.list_type
    }

    /// Returns whether the value is replaced as a whole if it is an object.
    pub(crate) fn is_atomic_object(&self) -> bool {
        match &self.of {
            Known::Kind(Kind::Object(of)) => of.atomic,
            Known::Kind(kind) => matches!(kind, Kind::Raw),
            Known::Core(resource, path) => is_atomic_core_object(*resource, path),
            Known::Nothing => false,
        }
    }

    /// Returns whether the value is a map with keys of the client's choice, rather than an object with fixed fields.
    pub(crate) fn is_map(&self) -> bool {
        matches!(self.of, Known::Kind(Kind::Map(..)))
    }

    /// Returns whether even an empty object has this value: a struct that Go always writes, in structs that it always writes.
    /// Nobody owns such a value itself, only what is in it.
    pub(crate) fn is_always_present(&self) -> bool {
        self.always_present
    }
}

fn core_list(resource: Resource, path: &str) -> ListType {
    match resource {
        Resource::Node => match path {
            "status.addresses" | "status.conditions" => ListType::Map(&["type"]),
            "spec.podCIDRs" => ListType::Set,
            _ => ListType::Atomic,
        },
        Resource::Namespace if path == "status.conditions" => ListType::Map(&["type"]),
        Resource::Pod => pod_list(path),
        Resource::Service => match path {
            "spec.ports" => ListType::Map(&["port", "protocol"]),
            "status.conditions" => ListType::Map(&["type"]),
            _ => ListType::Atomic,
        },
        _ => ListType::Atomic,
    }
}

fn pod_list(path: &str) -> ListType {
    match path {
        "status.conditions" => ListType::Map(&["type"]),
        "status.podIPs" | "spec.hostAliases" => ListType::Map(&["ip"]),
        "status.resourceClaimStatuses"
        | "spec.containers"
        | "spec.initContainers"
        | "spec.ephemeralContainers"
        | "spec.imagePullSecrets"
        | "spec.resourceClaims"
        | "spec.schedulingGates"
        | "spec.volumes" => ListType::Map(&["name"]),
        "spec.topologySpreadConstraints" => ListType::Map(&["topologyKey", "whenUnsatisfiable"]),
        _ => match path.rsplit_once("ontainers[].").map(|(_, below)| below) {
            Some("env" | "resources.claims") => ListType::Map(&["name"]),
            Some("ports") => ListType::Map(&["containerPort", "protocol"]),
            Some("volumeDevices") => ListType::Map(&["devicePath"]),
            Some("volumeMounts") => ListType::Map(&["mountPath"]),
            _ => ListType::Atomic,
        },
    }
}

fn is_atomic_core_object(resource: Resource, path: &str) -> bool {
    match resource {
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

/// Returns the element that identifies an item of a list; `None` for an item that has none of the keys.
pub(crate) fn element(list: ListType, item: &Value) -> Option<String> {
    match list {
        ListType::Atomic => None,
        ListType::Set => Some(format!("v:{item}")),
        ListType::Map(keys) => {
            let found: BTreeMap<&str, &Value> =
                keys.iter().filter_map(|key| Some((*key, item.get(key).filter(|value| !value.is_null())?))).collect();
            if found.is_empty() {
                return None;
            }
            serde_json::to_string(&found).ok().map(|keys| format!("k:{keys}"))
        }
    }
}

/// Returns whether nobody owns the field at a path of elements: those that identify an object, and those that the server sets.
pub(crate) fn is_unowned(path: &[String]) -> bool {
    match path {
        [field] => matches!(field.as_str(), "f:apiVersion" | "f:kind"),
        [metadata, field] if metadata == "f:metadata" => matches!(
            field.as_str(),
            "f:name"
                | "f:namespace"
                | "f:creationTimestamp"
                | "f:deletionTimestamp"
                | "f:deletionGracePeriodSeconds"
                | "f:selfLink"
                | "f:uid"
                | "f:generation"
                | "f:managedFields"
                | "f:resourceVersion"
        ),
        _ => false,
    }
}
