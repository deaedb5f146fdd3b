//! API versions and the conversion between them.
//!
//! Objects are stored as v1 (events as core v1). `v1beta2` is identical to v1 but for its name. `v1beta1` has the fields of a
//! request beside its name instead of under `exactly`, and the fields of a device under `basic`. `events.k8s.io` renames the
//! fields of an event.

use drakkar_client::{DraVersion, from_v1, to_v1};
use serde_json::Value;

use super::resource::{COORDINATION_GROUP, DRA_GROUP, EVENTS_GROUP, Resource};

/// The API group and version of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Core `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
    /// `coordination.k8s.io/v1`.
    Coordination,
    /// A version of `resource.k8s.io`.
    Dra(DraVersion),
}

impl Version {
    pub(crate) fn parse(group: &str, version: &str, served: &[DraVersion]) -> Option<Self> {
        match (group, version) {
            ("", "v1") => Some(Self::Core),
            (EVENTS_GROUP, "v1") => Some(Self::Events),
            (COORDINATION_GROUP, "v1") => Some(Self::Coordination),
            (DRA_GROUP, version) => served.iter().find(|known| known.name() == version).copied().map(Self::Dra),
            _ => None,
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Core => "v1",
            Self::Events => "events.k8s.io/v1",
            Self::Coordination => "coordination.k8s.io/v1",
            Self::Dra(version) => version.api_version(),
        }
    }

    /// Returns the API group; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the version without its group.
    pub(crate) fn name(self) -> &'static str {
        self.api_version().rsplit('/').next().unwrap_or_default()
    }

    /// Returns the path of its resources, without a slash before it: `api/v1` or `apis/GROUP/VERSION`.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Core => "api/v1".to_owned(),
            version => format!("apis/{}", version.api_version()),
        }
    }

    /// Whether this version has the form in which objects are stored.
    pub(crate) fn is_stored_form(self) -> bool {
        match self {
            Self::Core | Self::Coordination => true,
            Self::Events => false,
            Self::Dra(version) => version.has_v1_form(),
        }
    }

    /// Converts an object from this version to the stored one.
    pub(crate) fn to_stored(self, resource: Resource, object: &mut Value) {
        match self {
            Self::Events => rename(object, |(events, core)| (events, core)),
            Self::Dra(DraVersion::V1beta1) => to_v1(resource.kind(), object),
            Self::Core | Self::Coordination | Self::Dra(_) => {}
        }
    }

    /// Converts a stored object to this version.
    pub(crate) fn convert_from_stored(self, resource: Resource, object: &mut Value) {
        match self {
            Self::Events => rename(object, |(events, core)| (core, events)),
            Self::Dra(DraVersion::V1beta1) => from_v1(resource.kind(), object),
            Self::Core | Self::Coordination | Self::Dra(_) => {}
        }
    }
}

/// The fields of an event that differ: in `events.k8s.io`, and in the core group.
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
