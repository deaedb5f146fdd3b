//! Values that are stored as their text, such as addresses: for `#[serde(with = "…")]`.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Serializes a value as its text.
pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Deserializes a value from its text.
pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// An optional value. Combine it with `default`.
pub mod optional {
    use serde::Serialize as _;

    use super::*;

    /// Serializes a value as its text, or `null`.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(to)
    }

    /// Deserializes a value from its text, or `null`.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A list of values.
pub mod list {
    use super::*;

    /// Serializes values as their texts.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Deserializes values from their texts.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Vec::<String>::deserialize(from)?.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}
