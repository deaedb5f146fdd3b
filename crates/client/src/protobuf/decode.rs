//! Protobuf as anything that can be read from JSON.
//!
//! The members of a message are handed on under the names that they have in JSON. What is not in the tables is passed over, as
//! fields that are not known are in JSON.

use std::fmt;
use std::vec::IntoIter;

use drakkar_metadata::Time;
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::messages::{self, Count, Field, Kind};
use super::{MAGIC, UnknownKind};

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is damaged, or something else.
    #[error("the body is no protobuf of Kubernetes: {0}")]
    Malformed(&'static str),
    /// It is of an object whose message is not known here.
    #[error(transparent)]
    Unknown(Box<UnknownKind>),
    /// It is not what was asked for.
    #[error("the object is not what it should be: {0}")]
    Object(Box<str>),
}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Object(message.to_string().into())
    }
}

/// An object of a body. `apiVersion` and `kind`, which are told around it, are not among its members.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    let Envelope { fields, raw, .. } = Envelope::open(body)?;
    T::deserialize(Value::Message(fields, raw))
}

/// A body as JSON.
pub fn to_json(body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let Envelope { api_version, kind, fields, raw } = Envelope::open(body)?;
    let mut object: serde_json::Map<String, serde_json::Value> =
        serde::Deserialize::deserialize(Value::Message(fields, raw))?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(serde_json::Value::Object(object).to_string().into_bytes())
}

/// What is around an object.
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    fields: &'static [Field],
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn open(body: &'a [u8]) -> Result<Self, DecodeError> {
        let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::Malformed("it does not begin with k8s\\0"))?;
        let (mut api_version, mut kind, mut raw) = ("", "", &[][..]);
        for member in Members(envelope) {
            match member? {
                (1, Payload::Bytes(of_type)) => {
                    for member in Members(of_type) {
                        match member? {
                            (1, Payload::Bytes(text)) => api_version = text_of(text)?,
                            (2, Payload::Bytes(text)) => kind = text_of(text)?,
                            _ => {}
                        }
                    }
                }
                (2, Payload::Bytes(bytes)) => raw = bytes,
                _ => {}
            }
        }
        match messages::of(api_version, kind) {
            Some(fields) => Ok(Self { api_version, kind, fields, raw }),
            None => Err(DecodeError::Unknown(Box::new(UnknownKind::new(api_version, kind)))),
        }
    }
}

const CUT: DecodeError = DecodeError::Malformed("it is cut off");
const SHAPE: DecodeError = DecodeError::Malformed("a field is of another kind than it should be");

/// What a member has.
#[derive(Debug, Clone, Copy)]
enum Payload<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of fixed size, which none of our fields is.
    Other,
}

/// The members of a message with their numbers, in the order of the bytes.
struct Members<'a>(&'a [u8]);

impl<'a> Members<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        // Most are that short.
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
        Err(DecodeError::Malformed("a number has too many bytes"))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn member(&mut self) -> Result<(u64, Payload<'a>), DecodeError> {
        let key = self.varint()?;
        let payload = match key & 7 {
            0 => Payload::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Payload::Other)?,
            2 => {
                let length = self.varint()?;
                Payload::Bytes(self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.bytes(4).map(|_| Payload::Other)?,
            _ => return Err(DecodeError::Malformed("a field has a type that there is not")),
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

/// One value.
#[derive(Clone, Copy)]
enum Value<'a> {
    Text(&'a str),
    Int(i64),
    Bool(bool),
    Time(Time),
    /// JSON that is carried as it is.
    Json(&'a [u8]),
    Message(&'static [Field], &'a [u8]),
}

impl<'a> Value<'a> {
    /// The value of a member; `None` where JSON has none.
    fn of(kind: Kind, payload: Payload<'a>) -> Result<Option<Self>, DecodeError> {
        Ok(match (kind, payload) {
            (Kind::Text, Payload::Bytes(bytes)) => Some(Self::Text(text_of(bytes)?)),
            (Kind::TextIfAny, Payload::Bytes(bytes)) => {
                Some(text_of(bytes)?).filter(|text| !text.is_empty()).map(Self::Text)
            }
            (Kind::Int, Payload::Number(number)) => Some(Self::Int(number.cast_signed())),
            (Kind::IntIfAny, Payload::Number(number)) => (number != 0).then_some(Self::Int(number.cast_signed())),
            (Kind::Bool, Payload::Number(number)) => Some(Self::Bool(number != 0)),
            (Kind::Quantity, Payload::Bytes(bytes)) => {
                let text = inner(bytes)?.map(text_of).transpose()?;
                Some(Self::Text(text.unwrap_or("0")))
            }
            (Kind::Time, Payload::Bytes(bytes)) => time(bytes)?.map(Self::Time),
            (Kind::Json, Payload::Bytes(bytes)) => inner(bytes)?.map(Self::Json),
            (Kind::Message(fields), Payload::Bytes(bytes)) => Some(Self::Message(fields, bytes)),
            _ => return Err(SHAPE),
        })
    }
}

/// The bytes that are the only member of a message.
fn inner(bytes: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    let mut found = None;
    for member in Members(bytes) {
        if let (1, Payload::Bytes(bytes)) = member? {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// A time; the one of a field that is not set has nothing in it.
fn time(bytes: &[u8]) -> Result<Option<Time>, DecodeError> {
    let mut seconds = None;
    for member in Members(bytes) {
        if let (1, Payload::Number(number)) = member? {
            seconds = Some(number.cast_signed());
        }
    }
    let beyond = DecodeError::Malformed("a time is beyond all years");
    seconds.map(|seconds| Time::from_unix_seconds(seconds).ok().ok_or(beyond)).transpose()
}

fn text_of(bytes: &[u8]) -> Result<&str, DecodeError> {
    str::from_utf8(bytes).ok().ok_or(DecodeError::Malformed("a text is not UTF-8"))
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Self::Text(text) => visitor.visit_borrowed_str(text),
            Self::Int(number) => visitor.visit_i64(number),
            Self::Bool(is_so) => visitor.visit_bool(is_so),
            Self::Time(time) => visitor.visit_string(time.to_string()),
            Self::Json(json) => serde_json::Deserializer::from_slice(json)
                .deserialize_any(visitor)
                .map_err(|error| DecodeError::Object(format!("a part that should be JSON: {error}").into())),
            Self::Message(fields, bytes) => visitor.visit_map(Message::new(fields, bytes)?),
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

/// A message whose members are being read.
struct Message<'a> {
    fields: &'static [Field],
    members: Ordered<'a>,
    /// The member whose name was told last.
    current: Option<(&'static Field, First<'a>)>,
    /// A message whose members are those of this one.
    inline: Option<Box<Self>>,
}

/// What a member begins with.
#[derive(Clone, Copy)]
enum First<'a> {
    /// The only value.
    One(Value<'a>),
    /// The first item of a list or a map.
    Item(Payload<'a>),
}

/// Members in the order of their numbers, so that those of a list are beside each other.
enum Ordered<'a> {
    /// As nearly all writers have them.
    Found(Members<'a>),
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
        Ok(Self::Found(Members(bytes)))
    }

    fn next(&mut self) -> Result<Option<(u64, Payload<'a>)>, DecodeError> {
        match self {
            Self::Found(members) => members.next().transpose(),
            Self::Sorted(members) => Ok(members.next()),
        }
    }

    /// The next member, if it has this number.
    fn next_of(&mut self, number: u64) -> Option<Payload<'a>> {
        match self {
            Self::Found(members) => {
                let mut ahead = Members(members.0);
                // It was looked at before: it is whole.
                let (next, payload) = ahead.next()?.ok()?;
                (next == number).then(|| {
                    *members = ahead;
                    payload
                })
            }
            Self::Sorted(members) => {
                let (next, payload) = *members.as_slice().first()?;
                (next == number).then(|| {
                    members.next();
                    payload
                })
            }
        }
    }
}

impl<'a> Message<'a> {
    fn new(fields: &'static [Field], bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { fields, members: Ordered::new(bytes)?, current: None, inline: None })
    }

    /// The next member that there is in JSON.
    fn advance(&mut self) -> Result<Option<&'static str>, DecodeError> {
        // What nobody wanted to have of a list.
        if let Some((field, _)) = self.current.take() {
            while self.members.next_of(field.number).is_some() {
                if let Count::One = field.count {
                    return Err(DecodeError::Malformed("a field is there twice"));
                }
            }
        }
        loop {
            if let Some(inline) = &mut self.inline {
                match inline.advance()? {
                    Some(name) => return Ok(Some(name)),
                    None => self.inline = None,
                }
            }
            let Some((number, payload)) = self.members.next()? else { return Ok(None) };
            let Some(field) = self.fields.iter().find(|field| field.number == number) else { continue };
            let first = match (field.kind, field.count, payload) {
                (Kind::Inline(fields), _, Payload::Bytes(bytes)) => {
                    self.inline = Some(Box::new(Self::new(fields, bytes)?));
                    continue;
                }
                (kind, Count::One, payload) => Value::of(kind, payload)?.map(First::One),
                _ => Some(First::Item(payload)),
            };
            if let Some(first) = first {
                self.current = Some((field, first));
                return Ok(Some(field.name));
            }
        }
    }
}

impl<'de> MapAccess<'de> for Message<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some(name) = self.advance()? else { return Ok(None) };
        seed.deserialize(StrDeserializer::<DecodeError>::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        if let Some(inline) = &mut self.inline {
            return inline.next_value_seed(seed);
        }
        // The name was told before.
        let Some((field, first)) = self.current else { return Err(SHAPE) };
        let named = |error| match error {
            DecodeError::Object(problem) => DecodeError::Object(format!("{}: {problem}", field.name).into()),
            error => error,
        };
        match first {
            First::One(value) => seed.deserialize(value),
            First::Item(payload) => {
                seed.deserialize(Repeated { message: self, field, first: Some(payload), value: None })
            }
        }
        .map_err(named)
    }
}

/// A list or a map.
struct Repeated<'a, 'de> {
    message: &'a mut Message<'de>,
    field: &'static Field,
    first: Option<Payload<'de>>,
    /// What belongs to the key that was told last.
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
        seed.deserialize(Value::of(self.field.kind, payload)?.ok_or(SHAPE)?).map(Some)
    }
}

/// Each entry of a map is a message with the key as field 1 and the value as field 2.
impl<'de> MapAccess<'de> for Repeated<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let kind = self.field.kind;
        let Some(payload) = self.next() else { return Ok(None) };
        let Payload::Bytes(bytes) = payload else { return Err(SHAPE) };
        // An absent value is one with nothing in it.
        let (mut key, mut value) = ("", Value::of(kind, Payload::Bytes(&[]))?);
        for member in Members(bytes) {
            match member? {
                (1, Payload::Bytes(text)) => key = text_of(text)?,
                (2, payload) => value = Value::of(kind, payload)?,
                _ => {}
            }
        }
        self.value = value;
        seed.deserialize(BorrowedStrDeserializer::<DecodeError>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(self.value.take().ok_or(SHAPE)?)
    }
}

impl<'de> Deserializer<'de> for Repeated<'_, 'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.field.count {
            Count::Map => visitor.visit_map(self),
            Count::One | Count::Many => visitor.visit_seq(self),
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
