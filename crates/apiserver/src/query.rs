//! The query of a request.

use super::status::Failure;

/// The parameters of a request's URL, decoded.
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

    /// The parameter, unless it is absent or empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Whether the parameter says yes: to a real server everything does that does not say no, also nothing at all.
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

    /// The resource version, if one is given.
    pub(crate) fn version(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = self.get("resourceVersion") else { return Ok(None) };
        text.parse().map(Some).map_err(|_not_a_number| {
            Failure::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            ))
        })
    }
}

/// Undoes percent-encoding. What is not a valid escape stays as it is.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' && plus_is_space { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_set_by_all_that_does_not_say_no() {
        let query = Query::parse("a=true&b=1&c=yes&d=0&e=False&f=&g");
        let set: Vec<&str> =
            ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().filter(|key| query.flag(key)).collect();
        assert_eq!(set, ["a", "b", "c", "f", "g"]);
    }
}
