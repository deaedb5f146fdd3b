//! Query parameters.

use percent_encoding::percent_decode_str;

use super::status::Failure;

/// The decoded query parameters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(key, true), decode(value, true))
            })
            .collect();
        Self { pairs }
    }

    /// Returns a parameter, unless it is missing or empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Returns all values of a parameter, in order.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns a boolean parameter. As in the kube-apiserver, every value but `0` and `false` is true, also an empty one.
    pub(crate) fn flag(&self, key: &str) -> bool {
        let found = self.pairs.iter().find(|(name, _)| name == key);
        found.is_some_and(|(_, value)| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
        self.get(key)
            .map(|value| {
                value.parse().map_err(|error| {
                    Failure::bad_request(format!("invalid value {value:?} of parameter {key}: {error}"))
                })
            })
            .transpose()
    }

    /// Returns the parameter `resourceVersion`.
    pub(crate) fn version(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = self.get("resourceVersion") else { return Ok(None) };
        text.parse().map(Some).map_err(|_not_a_number| {
            Failure::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            ))
        })
    }
}

/// Decodes percent-encoding. Invalid escapes stay as they are.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> String {
    let text = if plus_is_space { text.replace('+', " ") } else { text.to_owned() };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_but_zero_and_false_sets_a_flag() {
        let query = Query::parse("a=true&b=1&c=yes&d=0&e=False&f=&g");
        let set: Vec<&str> =
            ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().filter(|key| query.flag(key)).collect();
        assert_eq!(set, ["a", "b", "c", "f", "g"]);
    }
    #[test]
    fn percent_encoding_is_decoded_and_invalid_escapes_are_kept() {
        assert_eq!(decode("a%2Fb+c", true), "a/b c");
        assert_eq!(decode("a+b", false), "a+b");
        assert_eq!(decode("%C3%A4%", false), "ä%");
        assert_eq!(decode("%zz%+1", false), "%zz%+1");
    }
}
