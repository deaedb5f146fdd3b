//! Decoding: a serde deserializer over protobuf, for anything that can be deserialized from JSON.
//!
//! The fields of a message have the names that they have in JSON. Fields that the schema does not have are ignored, as unknown
//! fields in JSON are.

use std::fmt;
use std::vec::IntoIter;

use drakkar_metadata::Time;
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{MAGIC, UnknownKind};
use crate::schema::{self, Field, Kind, Presence, Type};

/// Why a body cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The body is damaged, or is not protobuf.
    #[error("the body is not a Kubernetes object in protobuf: {0}")]
    Malformed(&'static str),
    /// The kind of the object is not known.
    #[error(transparent)]
    Unknown(Box<UnknownKind>),
    /// The object does not match the type that it is deserialized into.
    #[error("the object has an unexpected form: {0}")]
    Object(Box<str>),
}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Object(message.to_string().into())
    }
}

/// Deserializes the object of a body. `apiVersion` and `kind` are in the envelope, not among the object's fields.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    let Envelope { of, raw, .. } = Envelope::open(body)?;
    T::deserialize(Value::Message(of, raw))
}

/// Returns the object of a body as JSON.
pub fn to_json(body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    Ok(to_value(body)?.to_string().into_bytes())
}

/// Returns the object of a body as a JSON value.
pub fn to_value(body: &[u8]) -> Result<serde_json::Value, DecodeError> {
    let Envelope { api_version, kind, of, raw } = Envelope::open(body)?;
    let mut object: serde_json::Map<String, serde_json::Value> =
        serde::Deserialize::deserialize(Value::Message(of, raw))?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(serde_json::Value::Object(object))
}

/// An object with its type (`runtime.Unknown` in Go).
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    of: &'static Type,
    /// The message of the object.
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn open(body: &'a [u8]) -> Result<Self, DecodeError> {
        let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::Malformed("it does not begin with k8s\\0"))?;
        let mut api_version = "";
        let mut kind = "";
        let mut raw = &[][..];
        for member in Members(envelope) {
            match member? {
                (1, Payload::Bytes(type_meta)) => {
                    for member in Members(type_meta) {
                        match member? {
                            (1, Payload::Bytes(text)) => api_version = utf8(text)?,
                            (2, Payload::Bytes(text)) => kind = utf8(text)?,
                            _ => {}
                        }
                    }
                }
                (2, Payload::Bytes(bytes)) => raw = bytes,
                _ => {}
            }
        }
        match schema::of(api_version, kind) {
            Some(of) => Ok(Self { api_version, kind, of, raw }),
            None => Err(DecodeError::Unknown(Box::new(UnknownKind::new(api_version, kind)))),
        }
    }
}

const TRUNCATED: DecodeError = DecodeError::Malformed("it is truncated");
const WIRE_TYPE: DecodeError = DecodeError::Malformed("a field has another wire type than its kind");
const NO_VALUE: DecodeError = DecodeError::Malformed("an item has no value");
/// A visitor asks for a value before a key.
const NO_KEY: DecodeError = DecodeError::Malformed("a value has no key");

/// The payload of a member.
#[derive(Debug, Clone, Copy)]
enum Payload<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A number of fixed size, which no known field is.
    Fixed,
}

/// The members of a message with their field numbers, in the order of the bytes.
struct Members<'a>(&'a [u8]);

impl<'a> Members<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        // Most have one byte.
        if let [byte @ 0..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DecodeError::Malformed("a number has more than ten bytes"))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn member(&mut self) -> Result<(u64, Payload<'a>), DecodeError> {
        let key = self.varint()?;
        let payload = match key & 7 {
            0 => Payload::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Payload::Fixed)?,
            2 => {
                let length = self.varint()?;
                Payload::Bytes(self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.bytes(4).map(|_| Payload::Fixed)?,
            _ => return Err(DecodeError::Malformed("a field has an unknown wire type")),
        };
        Ok((key >> 3, payload))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(u64, Payload<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let member = self.member();
        if member.is_err() {
            self.0 = &[];
        }
        Some(member)
    }
}

/// A value that is not a list or a map.
#[derive(Clone, Copy)]
enum Value<'a> {
    Text(&'a str),
    Int(i64),
    Bool(bool),
    Time(Time),
    /// The text of a [`Kind::Raw`].
    Json(&'a [u8]),
    Message(&'static Type, &'a [u8]),
}

impl<'a> Value<'a> {
    /// Decodes a value; `None` for a time or raw JSON that is not set, which Go also writes.
    fn decode(kind: Kind, payload: Payload<'a>) -> Result<Option<Self>, DecodeError> {
        Ok(match (kind, payload) {
            (Kind::Text | Kind::Named(_), Payload::Bytes(bytes)) => Some(Self::Text(utf8(bytes)?)),
            (Kind::Int, Payload::Number(number)) => Some(Self::Int(number.cast_signed())),
            (Kind::Bool, Payload::Number(number)) => Some(Self::Bool(number != 0)),
            (Kind::Quantity, Payload::Bytes(bytes)) => {
                let text = only_member(bytes)?.map(utf8).transpose()?;
                Some(Self::Text(text.unwrap_or("0")))
            }
            (Kind::Time, Payload::Bytes(bytes)) => time(bytes)?.map(Self::Time),
            (Kind::Raw, Payload::Bytes(bytes)) => only_member(bytes)?.map(Self::Json),
            (Kind::Object(of), Payload::Bytes(bytes)) => Some(Self::Message(of, bytes)),
            _ => return Err(WIRE_TYPE),
        })
    }

    /// Returns whether `omitempty` leaves the value out of JSON.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Text("") | Self::Int(0) | Self::Bool(false))
    }
}

/// Returns the bytes of field 1, the only one of quantities and raw JSON.
fn only_member(bytes: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    let mut found = None;
    for member in Members(bytes) {
        if let (1, Payload::Bytes(bytes)) = member? {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// Decodes a time; `None` for the empty message that Go writes where it is not set.
fn time(bytes: &[u8]) -> Result<Option<Time>, DecodeError> {
    let mut seconds = None;
    for member in Members(bytes) {
        if let (1, Payload::Number(number)) = member? {
            seconds = Some(number.cast_signed());
        }
    }
    let out_of_range = DecodeError::Malformed("a time is out of range");
    seconds.map(|seconds| Time::from_unix_seconds(seconds).ok().ok_or(out_of_range)).transpose()
}

fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    str::from_utf8(bytes).ok().ok_or(DecodeError::Malformed("a string is not UTF-8"))
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Self::Text(text) => visitor.visit_borrowed_str(text),
            Self::Int(number) => visitor.visit_i64(number),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Time(time) => visitor.visit_string(time.to_string()),
            Self::Json(json) => serde_json::Deserializer::from_slice(json)
                .deserialize_any(visitor)
                .map_err(|error| DecodeError::Object(format!("invalid JSON: {error}").into())),
            Self::Message(of, bytes) => visitor.visit_map(Message::new(of, None, bytes)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

/// The map of a message.
struct Message<'a> {
    of: &'static Type,
    /// The number of this message, if its fields are those of the message that contains it.
    embedded_in: Option<u32>,
    members: Ordered<'a>,
    /// The field whose name was returned last.
    current: Option<(&'static Field, First<'a>)>,
    /// The embedded message that is being read.
    embedded: Option<Box<Self>>,
}

/// The first value of a field.
#[derive(Clone, Copy)]
enum First<'a> {
    /// The only value.
    One(Value<'a>),
    /// The first item of a list or a map.
    Item(Payload<'a>),
}

/// Members in the order of their field numbers, so that the items of a list are adjacent.
enum Ordered<'a> {
    /// The order of the bytes: nearly all writers sort by field number.
    AsWritten(Members<'a>),
    Sorted(IntoIter<(u64, Payload<'a>)>),
}

impl<'a> Ordered<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut last = 0;
        for member in Members(bytes) {
            let (number, _) = member?;
            if number < last {
                let mut members = Members(bytes).collect::<Result<Vec<_>, _>>()?;
                members.sort_by_key(|(number, _)| *number);
                return Ok(Self::Sorted(members.into_iter()));
            }
            last = number;
        }
        Ok(Self::AsWritten(Members(bytes)))
    }

    fn next(&mut self) -> Result<Option<(u64, Payload<'a>)>, DecodeError> {
        match self {
            Self::AsWritten(members) => members.next().transpose(),
            Self::Sorted(members) => Ok(members.next()),
        }
    }

    /// Returns the next member, if it has this number.
    fn next_of(&mut self, number: u32) -> Option<Payload<'a>> {
        match self {
            Self::AsWritten(members) => {
                let mut ahead = Members(members.0);
                // Cannot fail: `new` has read all members.
                let (next, payload) = ahead.next()?.ok()?;
                (next == u64::from(number)).then(|| {
                    *members = ahead;
                    payload
                })
            }
            Self::Sorted(members) => {
                let (next, payload) = *members.as_slice().first()?;
                (next == u64::from(number)).then(|| {
                    members.next();
                    payload
                })
            }
        }
    }
}

impl<'a> Message<'a> {
    fn new(of: &'static Type, embedded_in: Option<u32>, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { of, embedded_in, members: Ordered::new(bytes)?, current: None, embedded: None })
    }

    /// Advances to the next field that JSON has, and returns its name.
    fn advance(&mut self) -> Result<Option<&'static str>, DecodeError> {
        // Skips items of a list that the visitor ignored.
        if let Some((field, _)) = self.current.take() {
            while self.members.next_of(field.number).is_some() {
                if !matches!(field.kind, Kind::List(_) | Kind::Map(..)) {
                    return Err(DecodeError::Malformed("a field is there twice"));
                }
            }
        }
        loop {
            if let Some(embedded) = &mut self.embedded {
                match embedded.advance()? {
                    Some(name) => return Ok(Some(name)),
                    None => self.embedded = None,
                }
            }
            let Some((number, payload)) = self.members.next()? else { return Ok(None) };
            let Ok(number) = u32::try_from(number) else { continue };
            let is_this = |field: &&Field| field.number == number && field.embedded_in == self.embedded_in;
            let Some(field) = self.of.fields.iter().find(is_this) else {
                self.open_embedded(number, payload)?;
                continue;
            };
            let first = match field.kind {
                Kind::List(_) | Kind::Map(..) => Some(First::Item(payload)),
                // Protobuf has all values that are not pointers, JSON not those with `omitempty`.
                kind => Value::decode(kind, payload)?
                    .filter(|value| field.presence != Presence::OmitEmpty || !value.is_empty())
                    .map(First::One),
            };
            if let Some(first) = first {
                self.current = Some((field, first));
                return Ok(Some(field.name));
            }
        }
    }

    /// Opens the message of an embedded struct, if there is one of this number.
    fn open_embedded(&mut self, number: u32, payload: Payload<'a>) -> Result<(), DecodeError> {
        if self.embedded_in.is_none() && self.of.fields.iter().any(|field| field.embedded_in == Some(number)) {
            let Payload::Bytes(bytes) = payload else { return Err(WIRE_TYPE) };
            self.embedded = Some(Box::new(Self::new(self.of, Some(number), bytes)?));
        }
        Ok(())
    }
}

impl<'de> MapAccess<'de> for Message<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some(name) = self.advance()? else { return Ok(None) };
        seed.deserialize(StrDeserializer::<DecodeError>::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        if let Some(embedded) = &mut self.embedded {
            return embedded.next_value_seed(seed);
        }
        let Some((field, first)) = self.current else { return Err(NO_KEY) };
        let in_field = |error| match error {
            DecodeError::Object(problem) => DecodeError::Object(format!("{}: {problem}", field.name).into()),
            error => error,
        };
        match first {
            First::One(value) => seed.deserialize(value),
            First::Item(payload) => {
                seed.deserialize(Repeated { message: self, field, first: Some(payload), value: None })
            }
        }
        .map_err(in_field)
    }
}

/// The items of a list or a map.
struct Repeated<'a, 'de> {
    message: &'a mut Message<'de>,
    field: &'static Field,
    first: Option<Payload<'de>>,
    /// The value of the key that was returned last.
    value: Option<Value<'de>>,
}

impl<'de> Repeated<'_, 'de> {
    fn next(&mut self) -> Option<Payload<'de>> {
        self.first.take().or_else(|| self.message.members.next_of(self.field.number))
    }
}

impl<'de> SeqAccess<'de> for Repeated<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some(payload) = self.next() else { return Ok(None) };
        seed.deserialize(Value::decode(self.field.kind.item(), payload)?.ok_or(NO_VALUE)?).map(Some)
    }
}

/// Each entry of a map is a message with the key as field 1 and the value as field 2.
impl<'de> MapAccess<'de> for Repeated<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let kind = self.field.kind.item();
        let Some(payload) = self.next() else { return Ok(None) };
        let Payload::Bytes(bytes) = payload else { return Err(WIRE_TYPE) };
        let mut key = "";
        // An absent value is an empty one.
        let mut value = Value::decode(kind, Payload::Bytes(&[]))?;
        for member in Members(bytes) {
            match member? {
                (1, Payload::Bytes(text)) => key = utf8(text)?,
                (2, payload) => value = Value::decode(kind, payload)?,
                _ => {}
            }
        }
        self.value = value;
        seed.deserialize(BorrowedStrDeserializer::<DecodeError>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(self.value.take().ok_or(NO_VALUE)?)
    }
}

impl<'de> Deserializer<'de> for Repeated<'_, 'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.field.kind {
            Kind::Map(..) => visitor.visit_map(self),
            _ => visitor.visit_seq(self),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}
