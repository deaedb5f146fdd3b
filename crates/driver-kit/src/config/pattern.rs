//! Patterns of rules: names, kernel drivers, PCI addresses, CEL expressions. Each is compiled when the configuration is read.

use drakkar_cel::{DeviceValue, Selector, SelectorError};
use drakkar_metadata::PciAddress;
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;

/// Returns whether one of the patterns matches, or there are none.
pub fn any<P>(patterns: &[P], matches: impl Fn(&P) -> bool) -> bool {
    patterns.is_empty() || patterns.iter().any(matches)
}

/// A pattern for PCI addresses, with `*`, `?`, `[0-3]` and `{a,b}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct AddressPattern(Pattern);

impl AddressPattern {
    /// Returns whether the text of an address matches.
    pub fn matches(&self, address: &str) -> bool {
        self.0.matches(address)
    }
}

impl TryFrom<String> for AddressPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !is_glob(&text) && text.parse::<PciAddress>().is_err() {
            return Err(format!(
                "{text:?} is neither a PCI address such as 0000:65:00.0, with its domain, nor a pattern such as 0000:65:*"
            ));
        }
        let strange = text.chars().find(|letter| !letter.is_ascii_hexdigit() && !":.*?[]{}!,-".contains(*letter));
        if let Some(letter) = strange {
            return Err(format!(
                "{text:?} has {letter:?}, which is in no PCI address: use digits, a-f and the patterns * ? [] {{}}"
            ));
        }
        Pattern::new(&text.to_ascii_lowercase()).map(Self)
    }
}

/// A pattern for the names of kernel drivers; `none` for a device without one.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct DriverPattern(Option<Pattern>);

impl DriverPattern {
    /// Returns whether a driver matches, or the absence of one.
    pub fn matches(&self, driver: Option<&str>) -> bool {
        match (&self.0, driver) {
            (Some(pattern), Some(driver)) => pattern.matches(driver),
            (None, None) => true,
            _ => false,
        }
    }
}

impl TryFrom<String> for DriverPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Err("\"\" is no driver: write none for devices without a driver".to_owned());
        }
        if text == "none" {
            return Ok(Self(None));
        }
        Pattern::new(&text).map(|pattern| Self(Some(pattern)))
    }
}

/// A pattern for names.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct NamePattern(Pattern);

impl NamePattern {
    /// Returns whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

impl TryFrom<String> for NamePattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Err("\"\" matches nothing: write '*' for everything".to_owned());
        }
        Pattern::new(&text).map(Self)
    }
}

/// A compiled expression over the attributes of a device.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Cel(Selector);

impl Cel {
    /// Evaluates the expression. One that fails, because the device lacks an attribute for example, is an error and not a mismatch.
    pub fn matches(&self, attributes: &DeviceValue) -> Result<bool, SelectorError> {
        self.0.matches(attributes)
    }
}

impl TryFrom<String> for Cel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Selector::compile(&text).map(Self).map_err(|error| error.to_string())
    }
}

/// Returns whether a text is a pattern and not a plain text.
pub fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// The length limit of a pattern, in bytes. Addresses and names of drivers are much shorter.
const MAX_PATTERN_BYTES: usize = 256;
/// How deep braces can be nested. The regular expression that a pattern becomes has a limit too, and reaching it is a panic.
const MAX_BRACE_DEPTH: usize = 8;

/// A text, or a pattern for texts.
#[derive(Debug, Clone)]
pub struct Pattern(Matcher);

#[derive(Debug, Clone)]
enum Matcher {
    Text(String),
    Glob(GlobMatcher),
}

impl Pattern {
    /// Returns whether a text matches.
    pub fn matches(&self, text: &str) -> bool {
        match &self.0 {
            Matcher::Text(expected) => expected == text,
            Matcher::Glob(glob) => glob.is_match(text),
        }
    }

    /// Compiles a pattern. To compile costs more than to match all devices, so a plain text stays one.
    pub fn new(text: &str) -> Result<Self, String> {
        check_size(text)?;
        if !text.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            return Ok(Self(Matcher::Text(text.to_owned())));
        }
        let glob =
            GlobBuilder::new(text).build().map_err(|error| format!("{text:?} is no pattern: {}", error.kind()))?;
        Ok(Self(Matcher::Glob(glob.compile_matcher())))
    }
}

/// Refuses patterns that cannot be compiled, or only at great cost.
fn check_size(text: &str) -> Result<(), String> {
    if text.len() > MAX_PATTERN_BYTES {
        let start: String = text.chars().take(32).collect();
        return Err(format!("\"{start}…\" has {} bytes: a pattern has at most {MAX_PATTERN_BYTES}", text.len()));
    }
    let mut depth = 0_usize;
    for letter in text.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACE_DEPTH {
            return Err(format!("{text:?} nests braces deeper than {MAX_BRACE_DEPTH}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("mlx5_core", "mlx5_core", true)]
    #[case("mlx5_core", "mlx5_core2", false)]
    #[case("mlx5_*", "mlx5_core", true)]
    #[case("{nvidia,nouveau}", "nouveau", true)]
    #[case("nvm[a-f]", "nvme", true)]
    #[case("a\\*", "a*", true)]
    fn patterns_match_texts(#[case] pattern: &str, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(NamePattern::try_from(pattern.to_owned()).unwrap().matches(text), expected);
    }

    #[test]
    fn no_driver_is_a_pattern_of_its_own() {
        let none = DriverPattern::try_from("none".to_owned()).unwrap();
        assert!(none.matches(None) && !none.matches(Some("igb")));
        let any = DriverPattern::try_from("*".to_owned()).unwrap();
        assert!(!any.matches(None) && any.matches(Some("igb")));
    }

    #[rstest]
    #[case("65:00.0", "with its domain")]
    #[case("0000:6x:*", "has 'x', which is in no PCI address")]
    #[case("0000:[65:00.0", "is no pattern")]
    fn addresses_are_checked(#[case] pattern: &str, #[case] expected: &str) {
        let error = AddressPattern::try_from(pattern.to_owned()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
