//! Configuration files of drivers: YAML, parsed strictly and within limits.
//!
//! A driver's configuration is a type of its own, valid once it exists. [`parse`] reads it and says where an error is: the line, the
//! path of the field, and what is allowed there. [`watch`] follows a file, [`pattern`] and [`attributes`] have what rules are made of.

pub mod attributes;
pub mod pattern;
pub mod watch;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// The largest file that is read. The rules of a large cluster have some thousand bytes.
pub const MAX_BYTES: u64 = 1 << 18;
/// The most values in a file: texts, numbers, lists and maps.
pub const MAX_NODES: usize = 4_000;
/// The most values that aliases (`*name`) repeat.
pub const MAX_REPEATED: usize = 200;
/// The longest name of a rule, in bytes. It is published as an attribute, whose limit this is.
const MAX_RULE_NAME: usize = crate::attributes::MAX_TEXT;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The file is larger than any configuration.
    #[error("{} has more than {MAX_BYTES} bytes: it is not a configuration of this driver", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The parser has failed, by a defect of its own.
    #[error("parse {}: {source}", .path.display())]
    Task {
        /// The file.
        path: PathBuf,
        /// The error of the task, with the text of the panic.
        source: tokio::task::JoinError,
    },
    /// The content is not a valid configuration.
    #[error("{}{field}{message}", location(*.line, *.column))]
    Invalid {
        /// The line, from 1; 0 if it is not known.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// The path of the field, with `: ` behind it, or nothing.
        field: String,
        /// What is wrong, and what is allowed.
        message: String,
    },
}

fn location(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}

/// Parses and checks a configuration.
///
/// ```
/// #[derive(Debug, serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Config {
///     rules: Vec<String>,
/// }
/// let config: Config = drakkar_driver_kit::config::parse("rules: [a, b]")?;
/// assert_eq!(config.rules.len(), 2);
/// let error = drakkar_driver_kit::config::parse::<Config>("rules:\n- {}").unwrap_err();
/// assert!(error.to_string().starts_with("line 2, column 3: rules[0]: "), "{error}");
/// # Ok::<(), drakkar_driver_kit::config::ConfigError>(())
/// ```
pub fn parse<C: DeserializeOwned>(text: &str) -> Result<C, ConfigError> {
    // The closure of the parser can only return the parser's own error, so the path comes out beside it.
    let path = RefCell::new(String::new());
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, limits(), |deserializer| {
        serde_path_to_error::deserialize::<_, C>(deserializer).map_err(|error| {
            *path.borrow_mut() = error.path().to_string();
            error.into_inner()
        })
    });
    parsed.map_err(|error| {
        let location = error.location();
        let field = match path.into_inner() {
            field if field.is_empty() || field == "." => String::new(),
            field => format!("{field}: "),
        };
        ConfigError::Invalid {
            line: location.as_ref().map_or(0, serde_saphyr::Location::line),
            column: location.as_ref().map_or(0, serde_saphyr::Location::column),
            field,
            message: message_of(&error),
        }
    })
}

/// Reads a configuration from a file. Blocks.
pub fn from_file<C: DeserializeOwned>(path: &Path) -> Result<C, ConfigError> {
    parse(&read(path)?)
}

/// Refuses a document of another version or kind.
pub fn check_header(api_version: &str, kind: &str, expected: (&str, &str)) -> Result<(), String> {
    let (expected_version, expected_kind) = expected;
    if api_version != expected_version {
        return Err(format!("apiVersion is {api_version:?}: this driver reads {expected_version:?}"));
    }
    if kind != expected_kind {
        return Err(format!("kind is {kind:?}: it must be {expected_kind:?}"));
    }
    Ok(())
}

/// Refuses two rules of one name. `field` is the list of rules.
pub fn check_rule_names<'a>(field: &str, names: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        Some(name) => Err(format!("{field}: two rules are called {name:?}: give each a name of its own")),
        None => Ok(()),
    }
}

/// Deserializes the optional name of a rule, for `#[serde(default, deserialize_with = "…")]`.
pub fn rule_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    match name {
        Some(name) if name.is_empty() || name.len() > MAX_RULE_NAME => {
            Err(serde::de::Error::custom(format!("a name has 1 to {MAX_RULE_NAME} bytes, {name:?} has {}", name.len())))
        }
        name => Ok(name),
    }
}

/// Returns the limits of the parser. Each node can be a pattern that is compiled, and each text an expression, also where an alias
/// repeats it: together they keep the reading of any file to about a second.
fn limits() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_NODES },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
    }
}

/// Reads a file that is small enough to be a configuration. To open a pipe would block until somebody writes to it, and to read
/// from a device may never end: only regular files are read.
fn read(path: &Path) -> Result<String, ConfigError> {
    let read = || {
        let mut text = String::new();
        let file = std::fs::File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
        }
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_BYTES + 1), &mut text)?;
        Ok(text)
    };
    let text = read().map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

/// Returns the text of a parser's error without the place, which is shown once, in front.
fn message_of(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let place = error.location().map(|location| format!(" at line {}, column {}", location.line(), location.column()));
    let text = place.and_then(|place| text.strip_suffix(&place).map(str::to_owned)).unwrap_or(text);
    // The parser names its limit in its own terms.
    let is_limit = text.contains("budget breached") || text.contains("replay limit exceeded");
    if is_limit {
        return format!(
            "too large: a configuration has at most {MAX_NODES} values, of which aliases repeat at most {MAX_REPEATED} ({})",
            text.trim_end()
        );
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Config {
        #[serde(default)]
        rules: Vec<Rule>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rule {
        #[serde(default, deserialize_with = "rule_name")]
        name: Option<String>,
    }

    #[rstest]
    #[case("rules: [{nam: a}]", "line 1, column 10: rules[0].nam: unknown field `nam`, expected")]
    #[case("rules: [{name: ''}]", "rules[0].name: a name has 1 to 64 bytes, \"\" has 0")]
    #[case("rules: {", "line 1")]
    fn an_error_names_place_and_field(#[case] yaml: &str, #[case] expected: &str) {
        let error = parse::<Config>(yaml).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_file_with_too_many_values_is_refused() {
        let yaml = format!("rules: [{}]", "{name: a}, ".repeat(MAX_NODES));
        let error = parse::<Config>(&yaml).unwrap_err().to_string();
        assert!(error.contains("too large: a configuration has at most 4000 values"), "{error}");
    }

    #[test]
    fn a_file_that_is_too_large_or_not_regular_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, " ".repeat(1 << 19)).unwrap();
        assert!(matches!(from_file::<Config>(&path), Err(ConfigError::TooLarge { .. })));
        let error = from_file::<Config>(directory.path()).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn names_of_rules_are_unique() {
        let config: Config = parse("rules: [{name: a}, {}, {name: a}]").unwrap();
        let names = config.rules.iter().filter_map(|rule| rule.name.as_deref());
        let error = check_rule_names("rules", names).unwrap_err();
        assert_eq!(error, "rules: two rules are called \"a\": give each a name of its own");
    }
}
