//! Protobuf bodies of kinds outside of `resource.k8s.io`: those that `kubectl` sends in protobuf without asking what the server
//! has. They are small, and only sent: responses are JSON, which Go clients read too.
//!
//! An object with a field that is not here is refused (415) rather than stored without it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use Field::{Bool, BytesMap, Ignored, Object, Text, TextList, TextMap};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
/// Wire types of protobuf.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// The fields of a message by their numbers.
type Message = &'static [(u64, Field)];

/// A field: its name in JSON, and what it has.
enum Field {
    Text(&'static str),
    Bool(&'static str),
    TextList(&'static str),
    TextMap(&'static str),
    /// A map of bytes, which JSON has in base64.
    BytesMap(&'static str),
    Object(&'static str, Message),
    /// What the server sets itself, whatever a client sends.
    Ignored,
}

const METADATA: Message = &[
    (1, Text("name")),
    (2, Text("generateName")),
    (3, Text("namespace")),
    (4, Ignored),
    (5, Text("uid")),
    (6, Text("resourceVersion")),
    (7, Ignored),
    (8, Ignored),
    (11, TextMap("labels")),
    (12, TextMap("annotations")),
    (14, TextList("finalizers")),
];
const RESOURCE_ATTRIBUTES: Message = &[
    (1, Text("namespace")),
    (2, Text("verb")),
    (3, Text("group")),
    (4, Text("version")),
    (5, Text("resource")),
    (6, Text("subresource")),
    (7, Text("name")),
];
const ACCESS: Message = &[
    (1, Object("resourceAttributes", RESOURCE_ATTRIBUTES)),
    (2, Object("nonResourceAttributes", &[(1, Text("path")), (2, Text("verb"))])),
];

/// Returns the fields of a kind.
fn message(api_version: &str, kind: &str) -> Option<Message> {
    Some(match (api_version, kind) {
        ("v1", "ConfigMap") => &[
            (1, Object("metadata", METADATA)),
            (2, TextMap("data")),
            (3, BytesMap("binaryData")),
            (4, Bool("immutable")),
        ],
        ("v1", "Namespace") => &[
            (1, Object("metadata", METADATA)),
            (2, Object("spec", &[(1, TextList("finalizers"))])),
            (3, Object("status", &[(1, Text("phase"))])),
        ],
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => {
            &[(1, Ignored), (2, Object("spec", ACCESS)), (3, Ignored)]
        }
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => {
            &[(1, Ignored), (2, Object("spec", &[(1, Text("namespace"))])), (3, Ignored)]
        }
        ("authentication.k8s.io/v1", "SelfSubjectReview") => &[(1, Ignored), (2, Ignored)],
        _ => return None,
    })
}

/// Converts a body to JSON; `None` if it is of another kind, has another field, or is not protobuf.
pub(crate) fn to_json(body: &[u8]) -> Option<Value> {
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for member in members(body.strip_prefix(MAGIC)?)? {
        match member {
            (1, Content::Bytes(bytes)) => {
                for member in members(bytes)? {
                    match member {
                        (1, Content::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Content::Bytes(bytes)) => kind = text(bytes)?,
                        _ => return None,
                    }
                }
            }
            (2, Content::Bytes(bytes)) => raw = bytes,
            // The encoding of the content, which is empty.
            _ => {}
        }
    }
    let mut object = decode(message(&api_version, &kind)?, raw)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Some(object.into())
}

fn decode(message: Message, bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for (number, content) in members(bytes)? {
        let (_, field) = message.iter().find(|(known, _)| *known == number)?;
        match (field, content) {
            (Ignored, _) => {}
            // Go writes texts that are not set, as empty ones.
            (Text(name), Content::Bytes(bytes)) if !bytes.is_empty() => insert(&mut object, name, text(bytes)?.into()),
            (Text(_), Content::Bytes(_)) => {}
            (Bool(name), Content::Number(number)) => insert(&mut object, name, (number != 0).into()),
            (Object(name, below), Content::Bytes(bytes)) => {
                insert(&mut object, name, decode(below, bytes)?.into());
            }
            (TextList(name), Content::Bytes(bytes)) => {
                let list = object.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(text(bytes)?.into());
            }
            (TextMap(name), Content::Bytes(bytes)) => {
                let (key, value) = entry(bytes)?;
                insert(map(&mut object, name)?, &key, text(value)?.into());
            }
            (BytesMap(name), Content::Bytes(bytes)) => {
                let (key, value) = entry(bytes)?;
                insert(map(&mut object, name)?, &key, BASE64_STANDARD.encode(value).into());
            }
            _ => return None,
        }
    }
    Some(object)
}

fn insert(object: &mut Map<String, Value>, name: &str, value: Value) {
    object.insert(name.to_owned(), value);
}

fn map<'a>(object: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.entry(name).or_insert_with(|| Map::new().into()).as_object_mut()
}

/// Reads an entry of a map.
fn entry(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for member in members(bytes)? {
        match member {
            (1, Content::Bytes(bytes)) => key = text(bytes)?,
            (2, Content::Bytes(bytes)) => value = bytes,
            _ => return None,
        }
    }
    Some((key, value))
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// The content of a field.
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Reads the fields of a message.
fn members(mut bytes: &[u8]) -> Option<Vec<(u64, Content<'_>)>> {
    let mut members = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let content = match tag & 7 {
            VARINT => Content::Number(varint(&mut bytes)?),
            BYTES => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Content::Bytes(content)
            }
            _ => return None,
        };
        members.push((tag >> 3, content));
    }
    Some(members)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Encodes a field with bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, length], content].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let kind = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &kind), &field(2, raw), &field(3, b""), &field(4, b"")].concat()
    }

    #[test]
    fn a_config_map_is_read() {
        let metadata =
            [field(1, b"m"), field(3, b""), field(8, b""), field(11, &[field(1, b"a"), field(2, b"b")].concat())];
        let raw = [
            field(1, &metadata.concat()),
            field(2, &[field(1, b"key"), field(2, b"value")].concat()),
            field(3, &[field(1, b"raw"), field(2, &[0, 255])].concat()),
            vec![4 << 3, 1],
        ];
        let wanted = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m", "labels": { "a": "b" } },
            "data": { "key": "value" }, "binaryData": { "raw": "AP8=" }, "immutable": true,
        });
        assert_eq!(to_json(&body("v1", "ConfigMap", &raw.concat())), Some(wanted));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(to_json(&body("v1", "Secret", b"")), None);
        // An owner, which would be lost.
        let metadata = [field(1, b"m"), field(13, b"")].concat();
        assert_eq!(to_json(&body("v1", "Namespace", &field(1, &metadata))), None);
        assert!(to_json(&body("v1", "Namespace", &field(1, &field(1, b"m")))).is_some());
        assert_eq!(to_json(b"{}"), None);
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = to_json(&[MAGIC, &bytes].concat());
            let _ = to_json(&body("v1", "ConfigMap", &bytes[..bytes.len().min(100)]));
        }
    }
}
