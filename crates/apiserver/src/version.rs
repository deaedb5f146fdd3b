//! The versions of the API: which path serves which, and what differs between them.
//!
//! Objects are kept as v1 (events as core v1). `v1beta2` differs from v1 in nothing but its name. `v1beta1` has the content
//! of a request beside its name instead of under `exactly`, and the content of a device under `basic`. `events.k8s.io` has
//! other names for the fields of an event.

use drakkar_client::{DraVersion, from_v1, to_v1};
use serde_json::Value;

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
            Self::Dra(version) => version.api_version(),
        }
    }

    /// Whether objects look in this version as they are kept.
    pub(crate) fn is_stored_form(self) -> bool {
        match self {
            Self::Core => true,
            Self::Events => false,
            Self::Dra(version) => version.has_v1_form(),
        }
    }

    /// Turns what a client sent in this version into the form that is kept.
    pub(crate) fn to_stored(self, resource: Resource, object: &mut Value) {
        match self {
            Self::Events => rename(object, |(events, core)| (events, core)),
            Self::Dra(DraVersion::V1beta1) => to_v1(resource.kind(), object),
            Self::Core | Self::Dra(_) => {}
        }
    }

    /// Turns what is kept into the form of this version.
    pub(crate) fn of_stored(self, resource: Resource, object: &mut Value) {
        match self {
            Self::Events => rename(object, |(events, core)| (core, events)),
            Self::Dra(DraVersion::V1beta1) => from_v1(resource.kind(), object),
            Self::Core | Self::Dra(_) => {}
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
