//! Device attributes, which have a value of one of eight types.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lenient;

/// A device attribute, as in a metadata file.
///
/// A valid attribute has exactly one field set, which [`DeviceAttribute::value`] returns. The type can hold any
/// combination, because another writer's file may, and decoding and encoding must not change it. An empty list counts as
/// not set.
///
/// ```
/// use drakkar_metadata::{AttributeValue, DeviceAttribute};
///
/// let memory = DeviceAttribute::from(80_i64);
/// assert_eq!(memory.value(), Some(AttributeValue::Int(80)));
/// assert_eq!(DeviceAttribute::version("1.2.3").to_string(), "1.2.3");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceAttribute {
    /// A number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int: Option<i64>,
    /// A boolean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bool: Option<bool>,
    /// A string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string: Option<String>,
    /// A semantic version (2.0.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A list of numbers.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub ints: Vec<i64>,
    /// A list of booleans.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub bools: Vec<bool>,
    /// A list of strings.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub strings: Vec<String>,
    /// A list of semantic versions.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
}

/// The value of a valid [`DeviceAttribute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeValue<'a> {
    /// A number.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(&'a str),
    /// A semantic version.
    Version(&'a str),
    /// A list of numbers.
    Ints(&'a [i64]),
    /// A list of booleans.
    Bools(&'a [bool]),
    /// A list of strings.
    Strings(&'a [String]),
    /// A list of semantic versions.
    Versions(&'a [String]),
}

impl DeviceAttribute {
    /// Creates an attribute that is a semantic version. Other types of values convert with `from`.
    pub fn version(version: impl Into<String>) -> Self {
        Self { version: Some(version.into()), ..Self::default() }
    }

    /// Creates an attribute that is a list of semantic versions.
    pub fn versions<I>(versions: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self { versions: versions.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns every value that is set, in the order of the file format.
    pub fn set_values(&self) -> impl Iterator<Item = AttributeValue<'_>> {
        fn some<T>(list: &[T]) -> Option<&[T]> {
            (!list.is_empty()).then_some(list)
        }
        [
            self.int.map(AttributeValue::Int),
            self.bool.map(AttributeValue::Bool),
            self.string.as_deref().map(AttributeValue::String),
            self.version.as_deref().map(AttributeValue::Version),
            some(&self.ints).map(AttributeValue::Ints),
            some(&self.bools).map(AttributeValue::Bools),
            some(&self.strings).map(AttributeValue::Strings),
            some(&self.versions).map(AttributeValue::Versions),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the value if exactly one is set, as in a valid file.
    pub fn value(&self) -> Option<AttributeValue<'_>> {
        let mut values = self.set_values();
        match (values.next(), values.next()) {
            (Some(value), None) => Some(value),
            _ => None,
        }
    }

    /// Returns the `string` value if it is not empty, which is what consumers such as KubeVirt read.
    pub fn as_non_empty_str(&self) -> Option<&str> {
        self.string.as_deref().filter(|text| !text.is_empty())
    }
}

impl AttributeValue<'_> {
    /// Returns the JSON name of the field that holds a value of this type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Version(_) => "version",
            Self::Ints(_) => "ints",
            Self::Bools(_) => "bools",
            Self::Strings(_) => "strings",
            Self::Versions(_) => "versions",
        }
    }

    /// Returns the elements as text: one for a scalar, any number for a list.
    pub fn elements(&self) -> Vec<String> {
        fn texts<T: ToString>(list: &[T]) -> Vec<String> {
            list.iter().map(ToString::to_string).collect()
        }
        match self {
            Self::Int(value) => vec![value.to_string()],
            Self::Bool(value) => vec![value.to_string()],
            Self::String(value) | Self::Version(value) => vec![(*value).to_owned()],
            Self::Ints(list) => texts(list),
            Self::Bools(list) => texts(list),
            Self::Strings(list) | Self::Versions(list) => texts(list),
        }
    }
}

/// Prints the bare value; the elements of a list are separated by commas.
impl fmt::Display for AttributeValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.elements().join(","))
    }
}

/// Prints all values that are set, separated by commas.
impl fmt::Display for DeviceAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.set_values().map(|value| value.to_string()).collect();
        f.pad(&texts.join(","))
    }
}

macro_rules! attribute_from {
    ($($type:ty => $member:ident: $value:expr;)*) => {
        $(
            impl From<$type> for DeviceAttribute {
                fn from(value: $type) -> Self {
                    Self { $member: $value(value), ..Self::default() }
                }
            }
        )*
    };
}

attribute_from! {
    i64 => int: Some;
    bool => bool: Some;
    &str => string: |text: &str| Some(text.to_owned());
    String => string: Some;
    Vec<i64> => ints: std::convert::identity;
    Vec<bool> => bools: std::convert::identity;
    Vec<String> => strings: std::convert::identity;
    Vec<&str> => strings: |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_has_a_value_only_if_exactly_one_is_set() {
        assert_eq!(DeviceAttribute::default().value(), None);
        assert_eq!(DeviceAttribute::from("x").value(), Some(AttributeValue::String("x")));
        let two = DeviceAttribute { int: Some(1), ..DeviceAttribute::from("x") };
        assert_eq!(two.value(), None);
        assert_eq!(two.set_values().map(|value| value.kind()).collect::<Vec<_>>(), ["int", "string"]);
    }

    #[test]
    fn an_empty_list_is_not_a_value_but_an_empty_string_is() {
        assert_eq!(DeviceAttribute::from(Vec::<i64>::new()).value(), None);
        assert_eq!(DeviceAttribute::from("").value(), Some(AttributeValue::String("")));
        assert_eq!(DeviceAttribute::from("").as_non_empty_str(), None);
    }

    #[test]
    fn values_are_printed_bare() {
        assert_eq!(DeviceAttribute::from(-3).to_string(), "-3");
        assert_eq!(DeviceAttribute::from(vec![true, false]).to_string(), "true,false");
        assert_eq!(DeviceAttribute::versions(["1.0.0", "2.0.0"]).to_string(), "1.0.0,2.0.0");
        assert_eq!(DeviceAttribute::default().to_string(), "");
    }
}
