//! The configuration of the driver: which devices are published, and how they are handed to claims.
//!
//! A [`Config`] is valid once it exists: patterns are parsed, CEL expressions are compiled, extra attributes obey the rules
//! of the API. An error names the place in the file, the path of the field, and the values that are allowed.
//!
//! The first rule that matches a device decides; `exclude` comes before all rules.

mod class;
mod matcher;
mod rule;
#[cfg(test)]
mod tests;

use std::path::Path;

use drakkar_driver_kit::config;
pub use drakkar_driver_kit::config::ConfigError;
use serde::Deserialize;

pub use drakkar_driver_kit::config::pattern::{AddressPattern, DriverPattern, NamePattern};

pub use self::class::{ClassPattern, base_class, subclass};
pub use self::matcher::{IdPattern, Match, Subject};
pub use self::rule::{Companions, Count, Rule, VirtualFunctions};

/// The version of the configuration.
pub const API_VERSION: &str = "pci.drakkar.dev/v1alpha1";
/// The kind of the configuration.
pub const KIND: &str = "DriverConfig";

/// The driver's configuration.
///
/// ```
/// # use drakkar_pci::Config;
/// let config = Config::from_yaml("
/// apiVersion: pci.drakkar.dev/v1alpha1
/// kind: DriverConfig
/// devices:
/// - name: gpus
///   match: {ids: ['10de:*'], classes: [display]}
/// ")?;
/// assert_eq!(config.devices[0].name.as_deref(), Some("gpus"));
/// # Ok::<(), drakkar_pci::ConfigError>(())
/// ```
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Document")]
pub struct Config {
    /// Devices that are never published, whatever the rules say.
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
