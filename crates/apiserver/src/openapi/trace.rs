//! The fields of a type, found by decoding one: a type asks its decoder for the values that it has, by name and kind. So the
//! description is of the very types that the server decodes objects with.

use std::collections::BTreeMap;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// The kind of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A string, with its format in OpenAPI.
    Text(Option<&'static str>),
    /// An integer of this format.
    Int(&'static str),
    Number,
    Bool,
    /// An integer or a string.
    IntOrText,
    Quantity,
    /// Anything.
    Any,
    List(Box<Shape>),
    Map(Box<Shape>),
    /// An object of the type with this name.
    Object(&'static str),
}

/// The types that were found, by name, each with its fields.
pub(super) type Types = BTreeMap<&'static str, Vec<(&'static str, Shape)>>;

/// Adds a type and all types in it.
pub(super) fn add<T: DeserializeOwned + k8s_openapi::Resource>(types: &mut Types) -> Result<(), Error> {
    let mut shape = Shape::Any;
    let samples = Samples { api_version: T::API_VERSION, kind: T::KIND };
    T::deserialize(Tracer { types, samples, shape: &mut shape, newtype: None, sample: "" }).map(drop)
}

/// The values that an object has to have for its type to accept it.
#[derive(Clone, Copy)]
struct Samples {
    api_version: &'static str,
    kind: &'static str,
}

/// A decoder that records what it is asked for, and answers with values that are accepted.
struct Tracer<'a> {
    types: &'a mut Types,
    samples: Samples,
    /// What was asked for.
    shape: &'a mut Shape,
    /// The name of the type around the value, if it is a newtype.
    newtype: Option<&'static str>,
    /// The answer if a text is asked for.
    sample: &'static str,
}

impl Tracer<'_> {
    fn below<'b>(&'b mut self, shape: &'b mut Shape) -> Tracer<'b> {
        Tracer { types: self.types, samples: self.samples, shape, newtype: None, sample: "" }
    }

    fn answer<'de, V: Visitor<'de>>(
        self,
        shape: Shape,
        answer: impl FnOnce(V) -> Result<V::Value, Error>,
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.shape = shape;
        answer(visitor)
    }
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let shape = match self.newtype {
            Some("Quantity") => Shape::Quantity,
            Some(_) => Shape::Any,
            None => Shape::IntOrText,
        };
        self.answer(shape, |visitor| visitor.visit_str("0"), visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.answer(Shape::Bool, |visitor| visitor.visit_bool(false), visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.answer(Shape::Int("int32"), |visitor| visitor.visit_i32(0), visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.answer(Shape::Int("int64"), |visitor| visitor.visit_i64(0), visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.answer(Shape::Number, |visitor| visitor.visit_f64(0.0), visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (format, sample) = match self.newtype {
            Some("Time" | "MicroTime") => (Some("date-time"), "1970-01-01T00:00:00Z"),
            _ => (None, self.sample),
        };
        self.answer(Shape::Text(format), |visitor| visitor.visit_str(sample), visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(Self { newtype: Some(name), ..self })
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let mut item = Shape::Any;
        let value = visitor.visit_seq(Once { tracer: Some(self.below(&mut item)) });
        *self.shape = Shape::List(Box::new(item));
        value
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let mut item = Shape::Any;
        let value = visitor.visit_map(Once { tracer: Some(self.below(&mut item)) });
        *self.shape = Shape::Map(Box::new(item));
        value
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.shape = Shape::Object(name);
        // A type that was seen before, or contains itself, needs no second look: an empty object will do.
        let is_new = !self.types.contains_key(name);
        if is_new {
            self.types.insert(name, Vec::new());
        }
        let fields = if is_new { fields } else { &[] };
        visitor.visit_map(Fields { types: self.types, samples: self.samples, name, fields })
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

/// The fields of an object, one after the other.
struct Fields<'a> {
    types: &'a mut Types,
    samples: Samples,
    name: &'static str,
    fields: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.fields.first() else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = field.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((field, rest)) = self.fields.split_first() else {
            return Err(serde::de::Error::custom("a value without a key"));
        };
        self.fields = rest;
        let sample = match *field {
            "apiVersion" => self.samples.api_version,
            "kind" => self.samples.kind,
            _ => "",
        };
        let mut shape = Shape::Any;
        let samples = self.samples;
        let tracer = Tracer { types: &mut *self.types, samples, shape: &mut shape, newtype: None, sample };
        let value = seed.deserialize(tracer)?;
        self.types.entry(self.name).or_default().push((field, shape));
        Ok(value)
    }
}

/// One item of a list, or one entry of a map.
struct Once<'a> {
    tracer: Option<Tracer<'a>>,
}

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.tracer.take().map(|tracer| seed.deserialize(tracer)).transpose()
    }
}

impl<'de> MapAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let key = || -> StrDeserializer<'_, Error> { "key".into_deserializer() };
        self.tracer.as_ref().map(|_| seed.deserialize(key())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let tracer = self.tracer.take().ok_or_else(|| serde::de::Error::custom("a value without a key"))?;
        seed.deserialize(tracer)
    }
}
