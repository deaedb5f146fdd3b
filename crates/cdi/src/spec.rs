//! The types: what a CDI spec file says, field by field.
//!
//! They hold whatever a file of the schema may hold, including what [validation](mod@crate::validate) refuses, so that
//! a bad file can be read and everything that is wrong with it be told at once. Reading is as strict as the runtimes
//! are: an unknown key or the same key twice, at any level, refuses the file, and so does a list in the place of an
//! object. A missing key and `null` are the empty value, as in Go. Only JSON is read; the runtimes also load YAML.
//!
//! In a few corners reading is not what a runtime does, which reads JSON with a YAML parser. Refused here but not there:
//! `null` in a list, a fraction for a whole number, a number for a text, anything behind the object. Read here but
//! refused there: the escape `\/`, and escaped surrogate pairs. Nothing that we write has any of these.
//!
//! What is written has the keys, their order and the omissions of the Go structures, and its bytes are those of Go's
//! `json.MarshalIndent` with two spaces, without a newline at the end.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use drakkar_metadata::to_go_json;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One CDI spec file: the devices of one kind, and what a container that gets one of them needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Spec {
    /// The version of CDI that the file declares; see [`Spec::minimum_version`] for the one to declare.
    #[serde(deserialize_with = "or_empty")]
    pub cdi_version: String,
    /// `vendor/class`.
    #[serde(deserialize_with = "or_empty")]
    pub kind: String,
    /// For consumers of the file; never copied to a container. Since 0.6.0.
    #[serde(deserialize_with = "annotations", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices, at least one.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<Device>,
    /// Applied once to a container that gets any of the devices. Written even when empty, as Go does.
    #[serde(deserialize_with = "or_empty")]
    pub container_edits: ContainerEdits,
}

/// A device that a container can ask for as `vendor/class=name`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Device {
    /// The device's name, unique among those of its kind.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// For consumers of the file; never copied to a container. Since 0.6.0.
    #[serde(deserialize_with = "annotations", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What changes in a container that gets the device; must not be empty.
    #[serde(deserialize_with = "or_empty")]
    pub container_edits: ContainerEdits,
}

/// What a runtime changes in a container.
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
    /// Programs to run at points in the container's life.
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
    /// The path on the host; the same as `path` when empty. Since 0.5.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `b`, `c`, `u` or `p`; taken from the node on the host when empty.
    #[serde(rename = "type", deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub node_type: String,
    /// The major number; with the type given as well, the node need not exist on the host.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "is_zero")]
    pub major: i64,
    /// The minor number.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// Permission bits of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the container may do with the device: some of `r`, `w` and `m`, all of them when empty.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// Who owns the node; the user of the container's process when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group of the node; that of the container's process when absent.
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

/// A program to run at one point in the container's life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Hook {
    /// When to run it: one of [`HOOK_NAMES`](crate::validate::HOOK_NAMES).
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
    /// After how many seconds to give up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self")]
pub struct Mount {
    /// The source, as the runtime sees the host.
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
    /// Lines for the `schemata` file. Since 1.1.0, which a list that is there but empty also needs; such a list is
    /// not written.
    #[serde(skip_serializing_if = "none_or_empty")]
    pub schemata: Option<Vec<String>>,
    /// Monitoring. Since 1.1.0.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

/// A file that is not a CDI spec in JSON, and where it stops being one.
#[derive(Debug, thiserror::Error)]
#[error("not a CDI spec in JSON: {0}")]
pub struct ParseError(serde_json::Error);

impl ParseError {
    /// Line and column of the place, both counted from one.
    pub fn place(&self) -> (usize, usize) {
        (self.0.line(), self.0.column())
    }
}

impl Spec {
    /// Reads a file, strictly: an unknown or repeated key refuses it. Values are not checked; see
    /// [`validate`](crate::validate()) for that.
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

    /// The bytes of the file, as Go would write them. Nothing is checked; see
    /// [`validate_strict`](crate::validate_strict()) for that.
    pub fn to_json(&self) -> Vec<u8> {
        // What cannot be JSON has keys that are no text or fails to serialize: a spec is text, numbers and lists.
        #[allow(clippy::expect_used, reason = "see above")]
        to_go_json(self).expect("a spec can always be written")
    }

    /// The edits of the spec and of all its devices.
    pub(crate) fn all_edits(&self) -> impl Iterator<Item = &ContainerEdits> {
        self.devices.iter().map(|device| &device.container_edits).chain([&self.container_edits])
    }
}

impl ContainerEdits {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Objects are read from objects only: what serde derives would take a list of the fields' values as well. The derived
/// code is kept as functions of the type (`remote = "Self"`), and reached only with a map in hand.
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

/// `null` is the empty value: writers in languages without omission rules spell out every field.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(json: D) -> Result<T, D::Error> {
    Option::deserialize(json).map(Option::unwrap_or_default)
}

/// A map in which no key is there twice; serde's own would take the last.
fn annotations<'de, D: Deserializer<'de>>(json: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Unique;

    impl<'de> Visitor<'de> for Unique {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with texts as values")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = object.next_entry::<String, String>()? {
                match map.entry(key) {
                    Entry::Vacant(place) => place.insert(value),
                    Entry::Occupied(place) => {
                        return Err(A::Error::custom(format_args!("duplicate annotation {:?}", place.key())));
                    }
                };
            }
            Ok(map)
        }
    }

    json.deserialize_any(Unique)
}
