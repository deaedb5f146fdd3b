//! The versions of the API: which path serves which, and what differs between them.
//!
//! Objects are kept as v1 (events as core v1). `v1beta2` differs from v1 in nothing but its name. `v1beta1` has the content
//! of a request beside its name instead of under `exactly`, and the content of a device under `basic`. `events.k8s.io` has
//! other names for the fields of an event.

use serde_json::{Map, Value};

use super::resource::{DRA_GROUP, Resource};

/// A version of the API in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Core `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
    /// A version of `resource.k8s.io`.
    Dra(DraVersion),
}

/// A version of `resource.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraVersion {
    /// Served since Kubernetes 1.34.
    V1,
    /// Served, if turned on, since Kubernetes 1.33.
    V1beta2,
    /// Served, if turned on, since Kubernetes 1.32.
    V1beta1,
}

impl DraVersion {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1beta2 => "v1beta2",
            Self::V1beta1 => "v1beta1",
        }
    }
}

impl Version {
    pub(crate) fn parse(group: &str, version: &str, served: &[DraVersion]) -> Option<Self> {
        match (group, version) {
            ("", "v1") => Some(Self::Core),
            ("events.k8s.io", "v1") => Some(Self::Events),
            (DRA_GROUP, version) => served.iter().find(|known| known.name() == version).copied().map(Self::Dra),
            _ => None,
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Core => "v1",
            Self::Events => "events.k8s.io/v1",
            Self::Dra(DraVersion::V1) => "resource.k8s.io/v1",
            Self::Dra(DraVersion::V1beta2) => "resource.k8s.io/v1beta2",
            Self::Dra(DraVersion::V1beta1) => "resource.k8s.io/v1beta1",
        }
    }

    /// Whether objects look in this version as they are kept.
    pub(crate) fn is_stored_form(self) -> bool {
        !matches!(self, Self::Events | Self::Dra(DraVersion::V1beta1))
    }

    /// Turns what a client sent in this version into the form that is kept.
    pub(crate) fn to_stored(self, resource: Resource, object: &mut Value) {
        match (self, resource) {
            (Self::Events, _) => rename(object, |(events, core)| (events, core)),
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceClaim) => {
                wrap_requests(object, "/spec/devices/requests");
            }
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceClaimTemplate) => {
                wrap_requests(object, "/spec/spec/devices/requests");
            }
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceSlice) => {
                for device in items(object, "/spec/devices") {
                    if let Some(Value::Object(basic)) = device.remove("basic") {
                        device.extend(basic);
                    }
                }
            }
            _ => {}
        }
    }

    /// Turns what is kept into the form of this version.
    pub(crate) fn of_stored(self, resource: Resource, object: &mut Value) {
        match (self, resource) {
            (Self::Events, _) => rename(object, |(events, core)| (core, events)),
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceClaim) => {
                unwrap_requests(object, "/spec/devices/requests");
            }
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceClaimTemplate) => {
                unwrap_requests(object, "/spec/spec/devices/requests");
            }
            (Self::Dra(DraVersion::V1beta1), Resource::ResourceSlice) => {
                for device in items(object, "/spec/devices") {
                    let name = device.remove("name");
                    let basic = std::mem::take(device);
                    device.extend(name.map(|name| ("name".to_owned(), name)));
                    device.insert("basic".to_owned(), Value::Object(basic));
                }
            }
            _ => {}
        }
    }
}

/// Fields of an event: in `events.k8s.io`, and in the core group.
const EVENT_FIELDS: [(&str, &str); 8] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingInstance", "reportingInstance"),
];

fn rename(object: &mut Value, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    if let Value::Object(object) = object {
        for (from, to) in EVENT_FIELDS.map(direction) {
            if let Some(value) = object.remove(from) {
                object.insert(to.to_owned(), value);
            }
        }
    }
}

fn items<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    object.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn wrap_requests(object: &mut Value, pointer: &str) {
    for request in items(object, pointer) {
        if request.contains_key("firstAvailable") {
            continue;
        }
        let name = request.remove("name");
        let exactly = std::mem::take(request);
        request.extend(name.map(|name| ("name".to_owned(), name)));
        request.insert("exactly".to_owned(), Value::Object(exactly));
    }
}

fn unwrap_requests(object: &mut Value, pointer: &str) {
    for request in items(object, pointer) {
        if let Some(Value::Object(exactly)) = request.remove("exactly") {
            request.extend(exactly);
        }
    }
}
