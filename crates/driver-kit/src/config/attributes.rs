//! Extra attributes of a rule: checked by the rules of the API when the configuration is read.

use std::collections::BTreeMap;

use drakkar_metadata::DeviceAttribute;
use drakkar_slices::{DriverResources, Pool, PublishedDevice};
use serde::{Deserialize, Deserializer};

use crate::attributes::Attributes;

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a whole number, true or false")]
enum Scalar {
    Bool(bool),
    Int(i64),
    Text(String),
}

/// Deserializes the attributes that a rule adds. There are at most `max`: a device has at most 32, of which the driver publishes
/// some itself, whose names `is_own` knows.
pub fn extra<'de, D: Deserializer<'de>>(
    deserializer: D,
    max: usize,
    is_own: impl Fn(&str) -> bool,
) -> Result<Attributes, D::Error> {
    use serde::de::Error as _;

    let written = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
    let attributes: BTreeMap<_, _> = written
        .into_iter()
        .map(|(name, value)| {
            let value = match value {
                Scalar::Bool(value) => DeviceAttribute::from(value),
                Scalar::Int(value) => DeviceAttribute::from(value),
                Scalar::Text(value) => DeviceAttribute::from(value),
            };
            (name, value)
        })
        .collect();
    if attributes.len() > max {
        return Err(D::Error::custom(format!("{} attributes: a rule can add at most {max}", attributes.len())));
    }
    if let Some(name) = attributes.keys().find(|name| is_own(name)) {
        return Err(D::Error::custom(format!(
            "{name} is an attribute that the driver publishes itself: choose another name"
        )));
    }
    let device = PublishedDevice { attributes: attributes.clone(), ..PublishedDevice::new("device") };
    DriverResources::default().pool("pool", Pool::default().device(device)).validate().map_err(D::Error::custom)?;
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::parse;

    #[derive(Debug, Deserialize)]
    struct Rule {
        #[serde(deserialize_with = "two")]
        attributes: Attributes,
    }

    fn two<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
        extra(deserializer, 2, |name| name == "driver")
    }

    #[test]
    fn texts_numbers_and_truth_values_are_attributes() {
        let rule: Rule = parse("attributes: {team: ml, fast: true}").unwrap();
        assert_eq!(rule.attributes["team"], "ml".into());
        assert_eq!(rule.attributes["fast"], true.into());
    }

    #[rstest]
    #[case("{driver: x}", "driver is an attribute that the driver publishes itself")]
    #[case("{a: 1, b: 2, c: 3}", "3 attributes: a rule can add at most 2")]
    #[case("{a: [1]}", "a text, a whole number, true or false")]
    #[case("{'a b': x}", "a b")]
    fn an_attribute_that_the_api_refuses_is_an_error_of_the_file(#[case] attributes: &str, #[case] expected: &str) {
        let error = parse::<Rule>(&format!("attributes: {attributes}")).unwrap_err().to_string();
        assert!(error.contains("column") && error.contains(": attributes") && error.contains(expected), "{error}");
    }
}
