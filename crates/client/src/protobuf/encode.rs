//! Encoding: protobuf is written while the JSON is read, without an object tree in between.

use std::borrow::Cow;
use std::fmt;

use drakkar_metadata::Time;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{MAGIC, UnknownKind};
use crate::schema::{self, Field, Kind, Type};

/// Why an object cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The kind of the object is not known.
    #[error(transparent)]
    Unknown(UnknownKind),
    /// The object is not JSON, or does not match the schema of its kind.
    #[error("the object cannot be encoded as protobuf: {0}")]
    Json(#[from] serde_json::Error),
}

/// The type of an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

/// Encodes an object as a body of [`MEDIA_TYPE`](super::MEDIA_TYPE).
pub fn from_json(json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let TypeMeta { api_version, kind } = serde_json::from_slice(json)?;
    let Some(of) = schema::of(&api_version, &kind) else {
        return Err(EncodeError::Unknown(UnknownKind::new(&api_version, &kind)));
    };
    let mut out = Vec::with_capacity(json.len());
    out.extend_from_slice(MAGIC);
    let type_meta = begin(&mut out, 1);
    text(&mut out, 1, &api_version);
    text(&mut out, 2, &kind);
    end(&mut out, type_meta);
    let raw = begin(&mut out, 2);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.deserialize_map(Message { of, out: &mut out })?;
    deserializer.end()?;
    end(&mut out, raw);
    Ok(out)
}

/// Encodes an event of a watch with its length in front. `kind` is the type of the event, such as `ADDED`.
pub fn watch_event(kind: &str, object: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let object = from_json(object)?;
    let mut out = vec![0; 4];
    text(&mut out, 1, kind);
    let extension = begin(&mut out, 2);
    bytes(&mut out, 1, &object);
    end(&mut out, extension);
    // Cannot fail: an API server stores no object that is nearly as large.
    let length = u32::try_from(out.len() - 4).map_err(serde_json::Error::custom)?;
    out[..4].copy_from_slice(&length.to_be_bytes());
    Ok(out)
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Begins a message, and returns the position of its length, for which it reserves one byte.
fn begin(out: &mut Vec<u8>, number: u32) -> usize {
    varint(out, u64::from(number) << 3 | 2);
    out.push(0);
    out.len() - 1
}

/// Ends a message: writes its length. Most messages are short enough for the reserved byte.
fn end(out: &mut Vec<u8>, position: usize) {
    let start = position + 1;
    let mut length = out.len() - start;
    if length < 0x80 {
        out[position] = length as u8;
        return;
    }
    // As `varint`, but without a vector of its own.
    let mut prefix = [0; 10];
    let mut used = 0;
    while length >= 0x80 {
        prefix[used] = (length & 0x7f) as u8 | 0x80;
        length >>= 7;
        used += 1;
    }
    prefix[used] = length as u8;
    out.splice(position..start, prefix[..=used].iter().copied());
}

fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn text(out: &mut Vec<u8>, number: u32, text: &str) {
    bytes(out, number, text.as_bytes());
}

fn integer(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

/// Encodes an object as the fields of a message.
struct Message<'a> {
    of: &'static Type,
    out: &'a mut Vec<u8>,
}

impl<'de> Visitor<'de> for Message<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(member) = map.next_key_seed(Name(self.of))? {
            match member {
                Member::Field(field) => match field.embedded_in {
                    None => map.next_value_seed(Value::of(field, self.out))?,
                    // Each field gets a message of its own. Readers merge messages of the same number.
                    Some(outer) => {
                        let message = begin(self.out, outer);
                        map.next_value_seed(Value::of(field, self.out))?;
                        end(self.out, message);
                    }
                },
                Member::TypeMeta => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A member of a JSON object.
enum Member {
    Field(&'static Field),
    /// `apiVersion` or `kind`, which the envelope has.
    TypeMeta,
}

/// Finds a member by its name.
struct Name(&'static Type);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Member;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Member, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Member, E> {
        match (self.0.field(name), name) {
            (Some(field), _) => Ok(Member::Field(field)),
            (None, "apiVersion" | "kind") => Ok(Member::TypeMeta),
            (None, _) => Err(E::custom(format_args!("{} has no field {name:?}", self.0.name))),
        }
    }
}

/// Encodes a value of a field.
struct Value<'a> {
    number: u32,
    kind: &'static Kind,
    out: &'a mut Vec<u8>,
}

impl<'a> Value<'a> {
    fn of(field: &'static Field, out: &'a mut Vec<u8>) -> Self {
        Self { number: field.number, kind: &field.kind, out }
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let Kind::Raw = self.kind {
            // Copied as it is, `null` included: only the driver knows what it means.
            let json = Box::<RawValue>::deserialize(deserializer)?;
            let message = begin(self.out, self.number);
            text(self.out, 1, json.get());
            end(self.out, message);
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::List(_) => "a list",
            Kind::Map(..) | Kind::Object(_) => "an object",
            Kind::Int => "an integer",
            Kind::Bool => "a boolean",
            Kind::Time => "a time",
            Kind::Quantity => "a quantity",
            Kind::Text | Kind::Named(_) => "a string",
            Kind::Raw => "JSON",
        })
    }

    /// A `null` is an absent field.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Kind::List(kind) = self.kind else { return Err(mismatch(&self, "a list")) };
        while list.next_element_seed(Value { number: self.number, kind, out: self.out })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match self.kind {
            Kind::Object(of) => {
                let message = begin(self.out, self.number);
                Message { of, out: self.out }.visit_map(map)?;
                end(self.out, message);
                Ok(())
            }
            Kind::Map(_, kind) => {
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    let entry = begin(self.out, self.number);
                    text(self.out, 1, &key);
                    map.next_value_seed(Value { number: 2, kind, out: self.out })?;
                    end(self.out, entry);
                }
                Ok(())
            }
            _ => Err(mismatch(&self, "an object")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        match self.kind {
            Kind::Text | Kind::Named(_) => text(self.out, self.number, value),
            Kind::Quantity => {
                let message = begin(self.out, self.number);
                text(self.out, 1, value);
                end(self.out, message);
            }
            Kind::Time => {
                let time: Time = value.parse().map_err(E::custom)?;
                let message = begin(self.out, self.number);
                integer(self.out, 1, time.unix_seconds().cast_unsigned());
                end(self.out, message);
            }
            _ => return Err(mismatch(&self, "a string")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        match self.kind {
            Kind::Int => integer(self.out, self.number, value.cast_unsigned()),
            // JSON may have a quantity as a number.
            Kind::Quantity => return self.visit_str(&value.to_string()),
            _ => return Err(mismatch(&self, "a number")),
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(mismatch(&self, "a number of more than 63 bits")),
        }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        let Kind::Bool = self.kind else { return Err(mismatch(&self, "a boolean")) };
        integer(self.out, self.number, value.into());
        Ok(())
    }
}

fn mismatch<E: serde::de::Error>(expected: &Value<'_>, found: &str) -> E {
    E::invalid_type(serde::de::Unexpected::Other(found), expected)
}
