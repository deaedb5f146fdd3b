//! Decodes metadata files by the rules of KubeVirt's reader.
//!
//! A file is a stream of JSON objects, the same content once per API version, newest first. The first object of a
//! supported version is the result; nothing after it is read.
//!
//! | the next object | result |
//! |---|---|
//! | none, or a stray `]` or `}` | the stream ends: [`StreamError::NoObjects`] or [`StreamError::UnknownVersions`] |
//! | is not valid JSON (a byte order mark is not) | [`StreamError::Syntax`] |
//! | is not an object, or `apiVersion` is not a string | [`StreamError::Shape`] |
//! | is `null`, or has no `apiVersion` | [`StreamError::NoApiVersion`] |
//! | has another version | skipped |
//! | has a supported version and does not fit its schema | [`StreamError::Shape`], even if a later object would fit |
//!
//! Differences from [`drakkar_metadata::Decoder`], all of which KubeVirt's use of Go's decoder brings about: `kind` is
//! not checked, names of members match in any case, the last of two members with one name counts, lists of attribute
//! values are unknown members, unknown members can have any number and any depth, and text that is not UTF-8 is replaced.

use std::collections::BTreeMap;
use std::fmt;

use drakkar_metadata::{Device, DeviceAttribute, Metadata, NetworkDeviceData, Request};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::behaviour::Behaviour;

/// The version that released KubeVirt supports.
const V1ALPHA1: &str = "metadata.resource.k8s.io/v1alpha1";
/// The version that Kubernetes also writes, with the same content.
const V1BETA1: &str = "metadata.resource.k8s.io/v1beta1";

/// An error in a stream of metadata objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream has no object.
    #[error("no metadata objects found in the stream; the driver has not written the file yet")]
    NoObjects,
    /// The stream has only objects of versions that are not supported.
    #[error(
        "no compatible metadata version found in the stream (unknown versions: {}); configure the driver to write {V1ALPHA1} as well",
        .0.join(", ")
    )]
    UnknownVersions(
        /// Their `apiVersion`s, in the order of the stream.
        Vec<String>,
    ),
    /// An object is not valid JSON.
    #[error("object {number} of the metadata stream is not valid JSON: {problem}")]
    Syntax {
        /// The number of the object, counted from 1.
        number: usize,
        /// The parser's error text.
        problem: String,
    },
    /// An object has no `apiVersion`.
    #[error("object {number} of the metadata stream has no apiVersion")]
    NoApiVersion {
        /// The number of the object, counted from 1.
        number: usize,
    },
    /// An object does not fit the schema.
    #[error("object {number} of the metadata stream does not fit its schema: {member}: expected {expected}")]
    Shape {
        /// The number of the object, counted from 1.
        number: usize,
        /// The member that does not fit, for example `requests[0].devices`.
        member: String,
        /// What the schema has there.
        expected: &'static str,
    },
}

/// Decodes the first object of a supported version.
pub(crate) fn decode(bytes: &[u8], behaviour: Behaviour) -> Result<Metadata, StreamError> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = &*text;
    let mut unknown = Vec::new();
    for number in 1.. {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() || rest.starts_with([']', '}']) {
            break;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) => return Err(StreamError::Syntax { number, problem: error.to_string() }),
            None => break,
        };
        let end = values.byte_offset();
        let shape = |error: Shape| StreamError::Shape { number, member: error.member, expected: error.expected };
        let members = Members::parse(value, "the object").map_err(shape)?;
        let api_version = members.string("apiVersion", "").map_err(shape)?;
        if api_version.is_empty() {
            return Err(StreamError::NoApiVersion { number });
        }
        if is_supported(&api_version, behaviour) {
            return document(&members).map_err(shape);
        }
        unknown.push(api_version);
        rest = rest.get(end..).unwrap_or_default();
    }
    Err(if unknown.is_empty() { StreamError::NoObjects } else { StreamError::UnknownVersions(unknown) })
}

fn is_supported(api_version: &str, behaviour: Behaviour) -> bool {
    api_version == V1ALPHA1 || (behaviour == Behaviour::Extended && api_version == V1BETA1)
}

/// A member that does not fit the schema.
struct Shape {
    member: String,
    expected: &'static str,
}

fn document(members: &Members<'_>) -> Result<Metadata, Shape> {
    members.string("kind", "")?;
    let metadata = match members.get("metadata") {
        None => drakkar_metadata::ObjectMeta::default(),
        Some(value) => {
            Members::parse(value, "metadata")?;
            let expected = Shape { member: "metadata".to_owned(), expected: "the metadata of an object" };
            serde_json::from_str(value.get()).ok().ok_or(expected)?
        }
    };
    Ok(Metadata {
        metadata,
        pod_claim_name: members.optional_string("podClaimName", "")?,
        requests: members.list("requests", "", request)?,
    })
}

fn request(value: &RawValue, at: &str) -> Result<Request, Shape> {
    let members = Members::parse(value, at)?;
    Ok(Request { name: members.string("name", at)?, devices: members.list("devices", at, device)? })
}

fn device(value: &RawValue, at: &str) -> Result<Device, Shape> {
    let members = Members::parse(value, at)?;
    let mut attributes = BTreeMap::new();
    if let Some(value) = members.get("attributes") {
        let path = below(at, "attributes");
        for (name, value) in Members::parse(value, &path)?.0 {
            let attribute = attribute(value, &below(&path, &name))?;
            attributes.insert(name, attribute);
        }
    }
    let network_data = match members.get("networkData") {
        None => None,
        Some(value) => Some(network_data(value, &below(at, "networkData"))?),
    };
    Ok(Device {
        driver: members.string("driver", at)?,
        pool: members.string("pool", at)?,
        name: members.string("name", at)?,
        attributes,
        network_data,
    })
}

fn network_data(value: &RawValue, at: &str) -> Result<NetworkDeviceData, Shape> {
    let members = Members::parse(value, at)?;
    Ok(NetworkDeviceData {
        interface_name: members.string("interfaceName", at)?,
        ips: members.list("ips", at, |value, at| {
            scalar::<Option<String>>(value, at, "a string").map(Option::unwrap_or_default)
        })?,
        hardware_address: members.string("hardwareAddress", at)?,
    })
}

fn attribute(value: &RawValue, at: &str) -> Result<DeviceAttribute, Shape> {
    let members = Members::parse(value, at)?;
    let int = members.get("int").map(|value| {
        // As text, because `-0` is an integer in Go.
        let number = value.get().parse::<i64>();
        number.ok().ok_or_else(|| Shape { member: below(at, "int"), expected: "an integer" })
    });
    let bool = members.get("bool").map(|value| scalar::<bool>(value, &below(at, "bool"), "a boolean"));
    // KubeVirt does not know lists, so one of another type is no error.
    let ints = members.get("ints").and_then(|value| serde_json::from_str::<Vec<i64>>(value.get()).ok());
    Ok(DeviceAttribute {
        int: int.transpose()?,
        bool: bool.transpose()?,
        string: members.optional_string("string", at)?,
        version: members.optional_string("version", at)?,
        ints: ints.unwrap_or_default(),
        ..DeviceAttribute::default()
    })
}

/// The members of an object, in the order of the text, not interpreted yet.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Returns the members of an object; none for `null`.
    fn parse(value: &'a RawValue, at: &str) -> Result<Self, Shape> {
        if value.get() == "null" {
            return Ok(Self::default());
        }
        let expected = || Shape { member: at.to_owned(), expected: "an object" };
        if value.get().starts_with('{') {
            serde_json::from_str(value.get()).ok().ok_or_else(expected)
        } else {
            Err(expected())
        }
    }

    /// Returns the last member of a name, in any case, whose value is not `null`.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let is_member = |(key, value): &&(String, &RawValue)| key.eq_ignore_ascii_case(name) && value.get() != "null";
        self.0.iter().rev().find(is_member).map(|(_, value)| *value)
    }

    fn optional_string(&self, name: &str, at: &str) -> Result<Option<String>, Shape> {
        self.get(name).map(|value| scalar(value, &below(at, name), "a string")).transpose()
    }

    fn string(&self, name: &str, at: &str) -> Result<String, Shape> {
        Ok(self.optional_string(name, at)?.unwrap_or_default())
    }

    fn list<T>(
        &self,
        name: &str,
        at: &str,
        element: impl Fn(&'a RawValue, &str) -> Result<T, Shape>,
    ) -> Result<Vec<T>, Shape> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let path = below(at, name);
        let values: Vec<&RawValue> = scalar(value, &path, "a list")?;
        let elements = values.into_iter().enumerate();
        elements.map(|(index, value)| element(value, &format!("{path}[{index}]"))).collect()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    members.push(entry);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor).map(Members)
    }
}

fn scalar<'a, T: Deserialize<'a>>(value: &'a RawValue, at: &str, expected: &'static str) -> Result<T, Shape> {
    serde_json::from_str(value.get()).ok().ok_or_else(|| Shape { member: at.to_owned(), expected })
}

fn below(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<String, StreamError> {
        let metadata = decode(text.as_bytes(), Behaviour::Strict)?;
        let device = &metadata.requests[0].devices[0];
        Ok(device.attributes["resource.kubernetes.io/pciBusID"].string.clone().unwrap())
    }

    fn document(members: &str) -> String {
        format!(
            r#"{{"apiVersion": "{V1ALPHA1}", "requests": [{{"name": "r", "devices": [{{"name": "d", "attributes":
            {{"resource.kubernetes.io/pciBusID": {{"string": "0000:01:00.0"{members}}}}}}}]}}]}}"#
        )
    }

    #[test]
    fn unknown_members_can_have_any_number_and_depth() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        for members in [r#", "x": 1e999"#, r#", "strings": 1e999"#, r#", "int": -0"#, &format!(r#", "x": {deep}"#)] {
            assert_eq!(address(&document(members)).unwrap(), "0000:01:00.0");
        }
    }

    #[test]
    fn the_last_of_two_members_counts_in_any_case_unless_it_is_null() {
        assert_eq!(address(&document(r#", "String": "b""#)).unwrap(), "b");
        assert_eq!(address(&document(r#", "String": "b", "string": "c", "STRING": null"#)).unwrap(), "c");
    }

    #[test]
    fn known_members_have_their_types() {
        for (members, member) in [
            (r#", "int": 1.5"#, "int"),
            (r#", "int": "1""#, "int"),
            (r#", "bool": 1"#, "bool"),
            (r#", "version": {}"#, "version"),
        ] {
            let path = format!("requests[0].devices[0].attributes.resource.kubernetes.io/pciBusID.{member}");
            let error = address(&document(members)).unwrap_err();
            assert!(matches!(&error, StreamError::Shape { number: 1, member, .. } if *member == path), "{error}");
        }
    }
}
