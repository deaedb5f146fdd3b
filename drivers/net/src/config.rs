//! The configuration of the driver: which interfaces are published, and how they are handed to claims.
//!
//! A [`Config`] is valid once it exists: patterns are parsed, CEL expressions are compiled, address ranges and extra attributes
//! are checked. An error names the place in the file, the path of the field, and what is allowed. Files are followed with
//! [`drakkar_driver_kit::config::watch`].
//!
//! The first rule that matches an interface decides; `exclude` comes before all rules.

mod matcher;
mod mode;
mod rule;
#[cfg(test)]
mod tests;

use std::path::Path;

use drakkar_driver_kit::config;
pub use drakkar_driver_kit::config::ConfigError;
use serde::Deserialize;

pub use self::matcher::{MacPattern, Match, TypeName};
pub use self::mode::{Mode, Share, ShareKind};
pub use self::rule::Rule;
pub use crate::claim_config::API_VERSION;

/// The kind of the configuration.
pub const KIND: &str = "DriverConfig";

/// The driver's configuration.
///
/// ```
/// # use drakkar_net::Config;
/// let config = Config::from_yaml("
/// apiVersion: net.drakkar.dev/v1alpha1
/// kind: DriverConfig
/// devices:
/// - name: fast
///   match: {types: [physical, vf], drivers: [mlx5_core]}
/// - name: shared
///   match: {names: [bond1]}
///   share: {kind: macvlan, max: 32}
/// ")?;
/// assert_eq!(config.devices[1].name.as_deref(), Some("shared"));
/// # Ok::<(), drakkar_net::ConfigError>(())
/// ```
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Document")]
pub struct Config {
    /// Interfaces that are never published, whatever the rules say.
    pub exclude: Vec<Match>,
    /// The rules, in the order in which they are tried.
    pub devices: Vec<Rule>,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    exclude: Vec<Match>,
    #[serde(default)]
    devices: Vec<Rule>,
}

impl TryFrom<Document> for Config {
    type Error = String;

    fn try_from(document: Document) -> Result<Self, String> {
        let Document { api_version, kind, exclude, devices } = document;
        config::check_header(&api_version, &kind, (API_VERSION, KIND))?;
        config::check_rule_names("devices", devices.iter().filter_map(|rule| rule.name.as_deref()))?;
        Ok(Self { exclude, devices })
    }
}

impl Config {
    /// Parses and checks a configuration.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        config::parse(text)
    }

    /// Reads a configuration from a file. Blocks.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        config::from_file(path)
    }
}
