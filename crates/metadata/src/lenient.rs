//! Deserializes as Go does: `null` is the zero value everywhere, and a list is not accepted as an object.
//!
//! Go's decoder leaves a field unchanged for `null`, and a `null` in a list or map is the element's zero value. Go
//! writers produce such files (`"creationTimestamp": null` is the best-known case). Serde's derived code would also
//! accept a list instead of an object; Go refuses it, and so does this module.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::show::Quoted;

/// Deserializes a field whose `null` is its default.
pub(crate) fn value<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes an object that may be `null`.
pub(crate) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(optional_object(deserializer)?.unwrap_or_default())
}

/// Deserializes an object that may be `null`, as `None`.
pub(crate) fn optional_object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(Wrapper::into_inner))
}

/// Deserializes a list that may be `null`, of elements that may be `null`.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(ListVisitor(PhantomData::<Plain<T>>))
}

/// Deserializes a list that may be `null`, of objects that may be `null`.
pub(crate) fn object_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(ListVisitor(PhantomData::<Object<T>>))
}

/// Deserializes a map that may be `null`, with values that may be `null`. A duplicate key is an error.
pub(crate) fn map<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(MapVisitor(PhantomData::<Plain<T>>))
}

/// Deserializes a map that may be `null`, of objects that may be `null`. A duplicate key is an error.
pub(crate) fn object_map<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    deserializer.deserialize_any(MapVisitor(PhantomData::<Object<T>>))
}

/// A way to deserialize an element.
trait Wrapper<'de>: Deserialize<'de> {
    type Inner;

    fn into_inner(self) -> Self::Inner;
}

/// Deserializes an element as its type does.
#[derive(Deserialize)]
#[serde(transparent)]
struct Plain<T>(T);

impl<'de, T: Deserialize<'de>> Wrapper<'de> for Plain<T> {
    type Inner = T;

    fn into_inner(self) -> T {
        self.0
    }
}

/// Deserializes an element from an object only. Derived code would also accept a list of the fields in order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Wrapper<'de> for Object<T> {
    type Inner = T;

    fn into_inner(self) -> T {
        self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // `deserialize_map` would report an error one token too early.
        deserializer.deserialize_any(ObjectVisitor(PhantomData)).map(Object)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

struct ListVisitor<W>(PhantomData<W>);

impl<'de, W: Wrapper<'de>> Visitor<'de> for ListVisitor<W>
where
    W::Inner: Default,
{
    type Value = Vec<W::Inner>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element::<Option<W>>()? {
            list.push(element.map(W::into_inner).unwrap_or_default());
        }
        Ok(list)
    }
}

struct MapVisitor<W>(PhantomData<W>);

impl<'de, W: Wrapper<'de>> Visitor<'de> for MapVisitor<W>
where
    W::Inner: Default,
{
    type Value = BTreeMap<String, W::Inner>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            match map.entry(key) {
                Entry::Vacant(entry) => {
                    let value = entries.next_value::<Option<W>>()?;
                    entry.insert(value.map(W::into_inner).unwrap_or_default());
                }
                Entry::Occupied(entry) => {
                    return Err(A::Error::custom(format_args!("duplicate field {}", Quoted(entry.key()))));
                }
            }
        }
        Ok(map)
    }
}

/// Deserializes a string or a list of strings; any other value is ignored.
pub(crate) fn strings_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let Some(json) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(Vec::new()) };
    let as_list = serde_json::from_str(json.get());
    Ok(as_list.or_else(|_| serde_json::from_str(json.get()).map(|one| vec![one])).unwrap_or_default())
}
