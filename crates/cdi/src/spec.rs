//! The types of a CDI spec file.
//!
//! They can hold everything that the schema allows, including values that [validation](mod@crate::validate) refuses, so
//! that an invalid file can be parsed and all its errors be reported at once. Parsing is as strict as in the runtimes: an
//! unknown or duplicate key at any level is an error, and so is a list instead of an object. A missing key and `null` are
//! the empty value, as in Go. Only JSON is supported; the runtimes also load YAML.
//!
//! Runtimes parse JSON with a YAML parser, which differs in a few cases. Refused here but not there: `null` in a list, a
//! fraction for an integer, a number for a string, anything after the object. Accepted here but not there: the escape
//! `\/`, and escaped surrogate pairs. Files written by this crate have none of these.
//!
//! Serialized specs have the keys, their order and the omissions of the Go structures, and the bytes of Go's
//! `json.MarshalIndent` with two spaces, without a trailing newline.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use drakkar_metadata::to_go_json;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A CDI spec file: the devices of one kind, and the edits of a container that gets them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Spec {
    /// The version of CDI that the file declares; see [`Spec::minimum_version`] for the one to declare.
    #[serde(deserialize_with = "or_empty")]
    pub cdi_version: String,
    /// `vendor/class`.
    #[serde(deserialize_with = "or_empty")]
    pub kind: String,
    /// Annotations for consumers of the file; never copied to a container. Since 0.6.0.
    #[serde(deserialize_with = "annotations", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices, at least one.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<Device>,
    /// The edits of a container that gets any of the devices, applied once. Serialized even if empty, as in Go.
    #[serde(deserialize_with = "or_empty")]
    pub container_edits: ContainerEdits,
}

/// A device with the qualified name `vendor/class=name`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Device {
    /// The device's name, unique among those of its kind.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// Annotations for consumers of the file; never copied to a container. Since 0.6.0.
    #[serde(deserialize_with = "annotations", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The edits of a container that gets the device; must not be empty.
    #[serde(deserialize_with = "or_empty")]
    pub container_edits: ContainerEdits,
}

/// The changes that a runtime makes to a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct ContainerEdits {
    /// Environment variables, `NAME=value` each.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes to create.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces to move into the container. Since 1.1.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs to run at certain points of the container's lifecycle.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Mounts to add.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Intel Resource Director Technology. Since 0.7.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Groups to add to the container's process; zeros are ignored. Since 0.7.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct DeviceNode {
    /// The path in the container.
    #[serde(deserialize_with = "or_empty")]
    pub path: String,
    /// The path on the host; the same as `path` if empty. Since 0.5.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// The type: `b`, `c`, `u` or `p`; that of the node on the host if empty.
    #[serde(rename = "type", deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub node_type: String,
    /// The major number; with the type given as well, the node need not exist on the host.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "is_zero")]
    pub major: i64,
    /// The minor number.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// The permission bits of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// The container's access to the device: some of `r`, `w` and `m`, or all of them if empty.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// The owner of the node; the user of the container's process if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group of the node; that of the container's process if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network interface to move into the container (`LinuxNetDevice` in Go). Since 1.1.0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct NetDevice {
    /// The interface's name on the host.
    #[serde(deserialize_with = "or_empty")]
    pub host_interface_name: String,
    /// The interface's name in the container.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
}

/// A program to run at a certain point of the container's lifecycle.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Hook {
    /// The point of the lifecycle: one of [`HOOK_NAMES`](crate::validate::HOOK_NAMES).
    #[serde(deserialize_with = "or_empty")]
    pub hook_name: String,
    /// The program.
    #[serde(deserialize_with = "or_empty")]
    pub path: String,
    /// Its arguments, the program's name first.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment, `NAME=value` each.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The timeout in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Mount {
    /// The source on the host.
    #[serde(deserialize_with = "or_empty")]
    pub host_path: String,
    /// The target in the container.
    #[serde(deserialize_with = "or_empty")]
    pub container_path: String,
    /// Mount options, passed on verbatim: nothing adds `bind`.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The file system's type, passed on verbatim. Since 0.4.0.
    #[serde(rename = "type", deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
}

/// Intel Resource Director Technology. Since 0.7.0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct IntelRdt {
    /// The class of service.
    #[serde(rename = "closID", deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// The schema for the L3 cache.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// The schema for memory bandwidth.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Cache monitoring; in 0.7.0 to 1.0.0 only: runtimes that know 1.1.0 refuse a file that has it.
    #[serde(rename = "enableCMT", skip_serializing_if = "Option::is_none")]
    pub enable_cmt: Option<bool>,
    /// Bandwidth monitoring; in 0.7.0 to 1.0.0 only: runtimes that know 1.1.0 refuse a file that has it.
    #[serde(rename = "enableMBM", skip_serializing_if = "Option::is_none")]
    pub enable_mbm: Option<bool>,
    /// Lines for the `schemata` file. Since 1.1.0, which an empty list also needs; an empty list is not serialized.
    #[serde(skip_serializing_if = "none_or_empty")]
    pub schemata: Option<Vec<String>>,
    /// Monitoring. Since 1.1.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

/// An error in parsing a CDI spec.
#[derive(Debug, thiserror::Error)]
#[error("not a CDI spec in JSON: {0}")]
pub struct ParseError(serde_json::Error);

impl ParseError {
    /// Returns the line and column of the error, both counted from one.
    pub fn position(&self) -> (usize, usize) {
        (self.0.line(), self.0.column())
    }
}

impl Spec {
    /// Parses a file, strictly: an unknown or duplicate key is an error. Values are not validated; see
    /// [`validate`](crate::validate()).
    ///
    /// ```
    /// use drakkar_cdi::Spec;
    ///
    /// let error = Spec::parse(br#"{"cdiVersion": "0.3.0", "kinds": "a/b"}"#).unwrap_err();
    /// assert!(error.to_string().contains("unknown field `kinds`"), "{error}");
    /// ```
    pub fn parse(json: &[u8]) -> Result<Self, ParseError> {
        serde_json::from_slice(json).map_err(ParseError)
    }

    /// Serializes the spec as Go does. It does not validate; see [`validate_strict`](crate::validate_strict()).
    pub fn to_json(&self) -> Vec<u8> {
        // Serializing fails only for map keys that are not strings, or a failing `Serialize`; a spec has neither.
        #[allow(clippy::expect_used, reason = "see above")]
        to_go_json(self).expect("a spec always serializes")
    }

    /// Returns the edits of the spec and of all its devices.
    pub(crate) fn all_edits(&self) -> impl Iterator<Item = &ContainerEdits> {
        self.devices.iter().map(|device| &device.container_edits).chain([&self.container_edits])
    }
}

impl ContainerEdits {
    /// Returns whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Implements deserialization from objects only: serde's derived code would also accept a list of the fields' values. The
/// derived code is kept as functions of the type (`remote = "Self"`), and called only with a map.
macro_rules! objects {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<$name, A::Error> {
                        $name::deserialize(MapAccessDeserializer::new(object))
                    }
                }

                json.deserialize_map(Object)
            }
        }
    )*};
}

objects! { Spec Device ContainerEdits DeviceNode NetDevice Hook Mount IntelRdt }

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn none_or_empty(list: &Option<Vec<String>>) -> bool {
    list.as_ref().is_none_or(Vec::is_empty)
}

/// Deserializes `null` as the empty value, because writers in some languages cannot omit fields.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(json: D) -> Result<T, D::Error> {
    Option::deserialize(json).map(Option::unwrap_or_default)
}

/// Deserializes a map in which a duplicate key is an error; serde's own accepts the last.
fn annotations<'de, D: Deserializer<'de>>(json: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Unique;

    impl<'de> Visitor<'de> for Unique {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with strings as values")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = object.next_entry::<String, String>()? {
                match map.entry(key) {
                    Entry::Vacant(entry) => entry.insert(value),
                    Entry::Occupied(entry) => {
                        return Err(A::Error::custom(format_args!("duplicate annotation {:?}", entry.key())));
                    }
                };
            }
            Ok(map)
        }
    }

    json.deserialize_any(Unique)
}
