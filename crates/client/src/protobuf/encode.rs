//! JSON as protobuf: written while the JSON is read, with nothing kept in between.

use std::borrow::Cow;
use std::fmt;

use drakkar_metadata::Time;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::messages::{self, Count, Field, Kind};
use super::{MAGIC, UnknownKind};

/// Why an object has no protobuf.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Its message is not known here.
    #[error(transparent)]
    Unknown(UnknownKind),
    /// It is not JSON, or has something that its message has not.
    #[error("the object has no protobuf: {0}")]
    Json(#[from] serde_json::Error),
}

/// What tells an object's message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

/// The body of an object.
pub fn from_json(json: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let TypeMeta { api_version, kind } = serde_json::from_slice(json)?;
    let Some(fields) = messages::of(&api_version, &kind) else {
        return Err(EncodeError::Unknown(UnknownKind::new(&api_version, &kind)));
    };
    let mut out = Vec::with_capacity(json.len());
    out.extend_from_slice(MAGIC);
    let of_type = begin(&mut out, 1);
    text(&mut out, 1, &api_version);
    text(&mut out, 2, &kind);
    end(&mut out, of_type);
    let raw = begin(&mut out, 2);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.deserialize_map(Message { fields, out: &mut out })?;
    deserializer.end()?;
    end(&mut out, raw);
    Ok(out)
}

/// What a watch tells in one piece: `kind` is what happened to the object, `ADDED` for example.
pub fn watch_event(kind: &str, object: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let object = from_json(object)?;
    let mut out = vec![0; 4];
    text(&mut out, 1, kind);
    let extension = begin(&mut out, 2);
    bytes(&mut out, 1, &object);
    end(&mut out, extension);
    // An event is no larger than what an API server stores, which is far below this.
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

/// Begins a message, and gives where its length is.
fn begin(out: &mut Vec<u8>, number: u64) -> usize {
    varint(out, number << 3 | 2);
    out.push(0);
    out.len() - 1
}

/// Ends it. Most messages are short, and their length has one byte, for which there is room.
fn end(out: &mut Vec<u8>, length: usize) {
    let begin = length + 1;
    let mut prefix = Vec::new();
    varint(&mut prefix, (out.len() - begin) as u64);
    match prefix.as_slice() {
        [one] => out[length] = *one,
        more => drop(out.splice(length..begin, more.iter().copied())),
    }
}

fn bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn text(out: &mut Vec<u8>, number: u64, text: &str) {
    bytes(out, number, text.as_bytes());
}

fn integer(out: &mut Vec<u8>, number: u64, value: u64) {
    varint(out, number << 3);
    varint(out, value);
}

/// The fields of a message, from an object.
struct Message<'a> {
    fields: &'static [Field],
    out: &'a mut Vec<u8>,
}

impl<'de> Visitor<'de> for Message<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(place) = map.next_key_seed(Name(self.fields))? {
            match place {
                Place::Field(field) => map.next_value_seed(Value::of(field, self.out))?,
                Place::Within(outer, field) => {
                    let message = begin(self.out, outer.number);
                    map.next_value_seed(Value::of(field, self.out))?;
                    end(self.out, message);
                }
                Place::Nowhere => drop(map.next_value::<serde::de::IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Where a member of an object goes.
enum Place {
    Field(&'static Field),
    /// Into a message of its own. If there are several of one number, readers take them for one.
    Within(&'static Field, &'static Field),
    /// The type of an object is told around it.
    Nowhere,
}

/// The name of a member.
struct Name(&'static [Field]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Place;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Place, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Place;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Place, E> {
        for field in self.0 {
            match field.kind {
                Kind::Inline(fields) => {
                    if let Some(inner) = fields.iter().find(|inner| inner.name == name) {
                        return Ok(Place::Within(field, inner));
                    }
                }
                _ if field.name == name => return Ok(Place::Field(field)),
                _ => {}
            }
        }
        match name {
            "apiVersion" | "kind" => Ok(Place::Nowhere),
            _ => Err(E::custom(format_args!("there is no field {name:?}"))),
        }
    }
}

/// The value of a field.
struct Value<'a> {
    number: u64,
    count: Count,
    kind: Kind,
    out: &'a mut Vec<u8>,
}

impl<'a> Value<'a> {
    fn of(field: &Field, out: &'a mut Vec<u8>) -> Self {
        Self { number: field.number, count: field.count, kind: field.kind, out }
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let (Count::One, Kind::Json) = (self.count, self.kind) {
            // As it is, `null` too: what it means is not ours to know.
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
        f.write_str(match (self.count, self.kind) {
            (Count::Many, _) => "a list",
            (Count::Map, _) | (_, Kind::Message(_) | Kind::Inline(_)) => "an object",
            (_, Kind::Int | Kind::IntIfAny) => "a whole number",
            (_, Kind::Bool) => "true or false",
            (_, Kind::Time) => "a time",
            (_, Kind::Quantity) => "a quantity",
            (_, Kind::Text | Kind::TextIfAny) => "a text",
            (_, Kind::Json) => "JSON",
        })
    }

    /// What is null is not there.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Count::Many = self.count else { return Err(wrong(&self, "a list")) };
        loop {
            let item = Value { number: self.number, count: Count::One, kind: self.kind, out: self.out };
            if list.next_element_seed(item)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match (self.count, self.kind) {
            (Count::One, Kind::Message(fields)) => {
                let message = begin(self.out, self.number);
                Message { fields, out: self.out }.visit_map(map)?;
                end(self.out, message);
                Ok(())
            }
            (Count::Map, kind) => {
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    let entry = begin(self.out, self.number);
                    text(self.out, 1, &key);
                    map.next_value_seed(Value { number: 2, count: Count::One, kind, out: self.out })?;
                    end(self.out, entry);
                }
                Ok(())
            }
            _ => Err(wrong(&self, "an object")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        match (self.count, self.kind) {
            (Count::One, Kind::Text | Kind::TextIfAny) => text(self.out, self.number, value),
            (Count::One, Kind::Quantity) => {
                let message = begin(self.out, self.number);
                text(self.out, 1, value);
                end(self.out, message);
            }
            (Count::One, Kind::Time) => {
                let time: Time = value.parse().map_err(E::custom)?;
                let message = begin(self.out, self.number);
                integer(self.out, 1, time.unix_seconds().cast_unsigned());
                end(self.out, message);
            }
            _ => return Err(wrong(&self, "a text")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        match (self.count, self.kind) {
            (Count::One, Kind::Int | Kind::IntIfAny) => integer(self.out, self.number, value.cast_unsigned()),
            // A quantity can be a number in JSON.
            (Count::One, Kind::Quantity) => return self.visit_str(&value.to_string()),
            _ => return Err(wrong(&self, "a number")),
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(wrong(&self, "a number of more than 63 bits")),
        }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        let (Count::One, Kind::Bool) = (self.count, self.kind) else { return Err(wrong(&self, "a boolean")) };
        integer(self.out, self.number, value.into());
        Ok(())
    }
}

fn wrong<E: serde::de::Error>(wanted: &Value<'_>, found: &str) -> E {
    E::invalid_type(serde::de::Unexpected::Other(found), wanted)
}
