//! Bodies in protobuf: what clients in Go send unless they are told otherwise, as JSON.
//!
//! Only requests, and only what drivers write: slices, claims with their status, and the options of deletions. Other objects are refused with 415, as
//! a server does that has no protobuf of them. Answers are always JSON, which those clients take as well.

mod messages;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use self::messages::{Count, Field, Kind};
use super::status::Failure;

/// What every such body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Whether a body of this type is protobuf.
pub(super) fn is_so(content_type: &str) -> bool {
    content_type.contains("application/vnd.kubernetes.protobuf")
}

/// A body as JSON.
pub(super) fn to_json(body: &[u8]) -> Result<Vec<u8>, Failure> {
    let wrong =
        |problem: Problem| Failure::bad_request(format!("the body is no protobuf of Kubernetes: {}", problem.0));
    let envelope = body.strip_prefix(MAGIC).ok_or_else(|| wrong(Problem("it does not begin with k8s\\0")))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), None);
    for member in Members(envelope) {
        match member.map_err(wrong)? {
            (1, Payload::Bytes(of_type)) => {
                for member in Members(of_type) {
                    match member.map_err(wrong)? {
                        (1, Payload::Bytes(text)) => api_version = text_of(text).map_err(wrong)?,
                        (2, Payload::Bytes(text)) => kind = text_of(text).map_err(wrong)?,
                        _ => {}
                    }
                }
            }
            (2, Payload::Bytes(bytes)) => raw = Some(bytes),
            _ => {}
        }
    }
    let fields = messages::of(&api_version, &kind).ok_or_else(Failure::media_type)?;
    let mut object = object(fields, raw.unwrap_or_default()).map_err(wrong)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object).to_string().into_bytes())
}

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Problem(&'static str);

const CUT: Problem = Problem("it is cut off");
const SHAPE: Problem = Problem("a field is of another kind than it should be");

/// What a field has.
#[derive(Debug, Clone, Copy)]
enum Payload<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of fixed size, which none of our fields is.
    Other,
}

/// The fields of a message with their numbers, in the order of the bytes.
struct Members<'a>(&'a [u8]);

impl<'a> Members<'a> {
    fn varint(&mut self) -> Result<u64, Problem> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Problem("a number has too many bytes"))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn member(&mut self) -> Result<(u64, Payload<'a>), Problem> {
        let key = self.varint()?;
        let payload = match key & 7 {
            0 => Payload::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Payload::Other)?,
            2 => {
                let length = self.varint()?;
                Payload::Bytes(self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.bytes(4).map(|_| Payload::Other)?,
            _ => return Err(Problem("a field has a type that there is not")),
        };
        Ok((key >> 3, payload))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(u64, Payload<'a>), Problem>;

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

/// A message as an object. Fields that are not known are passed over, as in JSON.
fn object(fields: &[Field], bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    let mut object = Map::new();
    for member in Members(bytes) {
        let (number, payload) = member?;
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        if let (Kind::Inline(fields), Payload::Bytes(bytes)) = (field.kind, payload) {
            object.append(&mut self::object(fields, bytes)?);
            continue;
        }
        let name = || field.name.to_owned();
        match field.count {
            Count::One => {
                if let Some(value) = value(field.kind, payload)? {
                    object.insert(name(), value);
                }
            }
            Count::Many => {
                let list = object.entry(name()).or_insert_with(|| Value::Array(Vec::new()));
                if let (Value::Array(list), Some(value)) = (list, value(field.kind, payload)?) {
                    list.push(value);
                }
            }
            Count::Map => {
                let (key, value) = entry(field.kind, payload)?;
                let map = object.entry(name()).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
            }
        }
    }
    Ok(object)
}

/// An entry of a map: a message with the key as field 1 and the value as field 2.
fn entry(kind: Kind, payload: Payload<'_>) -> Result<(String, Value), Problem> {
    let Payload::Bytes(bytes) = payload else { return Err(SHAPE) };
    // An absent value is one with nothing in it.
    let (mut key, mut found) = (String::new(), value(kind, Payload::Bytes(&[]))?);
    for member in Members(bytes) {
        match member? {
            (1, Payload::Bytes(text)) => key = text_of(text)?,
            (2, payload) => found = value(kind, payload)?,
            _ => {}
        }
    }
    Ok((key, found.unwrap_or_default()))
}

/// A value as JSON has it; `None` where JSON has none.
fn value(kind: Kind, payload: Payload<'_>) -> Result<Option<Value>, Problem> {
    Ok(match (kind, payload) {
        (Kind::Text, Payload::Bytes(bytes)) => Some(text_of(bytes)?.into()),
        (Kind::TextIfAny, Payload::Bytes(bytes)) => {
            Some(text_of(bytes)?).filter(|text| !text.is_empty()).map(Into::into)
        }
        (Kind::Int, Payload::Number(number)) => Some(number.cast_signed().into()),
        (Kind::IntIfAny, Payload::Number(number)) => (number != 0).then(|| number.cast_signed().into()),
        (Kind::Bool, Payload::Number(number)) => Some((number != 0).into()),
        (Kind::Quantity, Payload::Bytes(bytes)) => {
            let text = object(&[Field { number: 1, name: "text", count: Count::One, kind: Kind::Text }], bytes)?;
            Some(text.get("text").cloned().unwrap_or_else(|| "0".into()))
        }
        (Kind::Time, Payload::Bytes(bytes)) => time(bytes)?,
        (Kind::Json, Payload::Bytes(bytes)) => json(bytes)?,
        (Kind::Message(fields), Payload::Bytes(bytes)) => Some(object(fields, bytes)?.into()),
        _ => return Err(SHAPE),
    })
}

/// A time; the one of a field that is not set has nothing in it.
fn time(bytes: &[u8]) -> Result<Option<Value>, Problem> {
    let mut seconds = None;
    for member in Members(bytes) {
        if let (1, Payload::Number(number)) = member? {
            seconds = Some(number.cast_signed());
        }
    }
    let Some(seconds) = seconds else { return Ok(None) };
    let time = drakkar_metadata::Time::from_unix_seconds(seconds).ok().ok_or(Problem("a time is beyond all years"))?;
    Ok(Some(time.to_string().into()))
}

/// JSON that is carried as it is.
fn json(bytes: &[u8]) -> Result<Option<Value>, Problem> {
    let mut found = None;
    for member in Members(bytes) {
        if let (1, Payload::Bytes(text)) = member? {
            found = Some(serde_json::from_slice(text).ok().ok_or(Problem("a part that should be JSON is not"))?);
        }
    }
    Ok(found)
}

fn text_of(bytes: &[u8]) -> Result<String, Problem> {
    str::from_utf8(bytes).ok().map(str::to_owned).ok_or(Problem("a text is not UTF-8"))
}
