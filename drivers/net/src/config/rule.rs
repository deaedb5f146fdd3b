//! A rule: which interfaces it selects, and how they are handed to claims.

use drakkar_driver_kit::config::pattern::is_glob;
use drakkar_driver_kit::config::{self, rule_name};
use serde::{Deserialize, Deserializer};

use super::matcher::Match;
use super::mode::{Mode, Share, ShareKind};
use crate::attributes::{Attributes, MAX_EXTRA, is_own};
use crate::claim_config::{AddressRange, ClaimConfig, DeviceDriver};

/// The longest name of an interface: `IFNAMSIZ` without the end of the string.
const MAX_INTERFACE_NAME: usize = 15;

/// A rule of the configuration.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Rule {
    /// The name of the rule: in messages, and as the attribute `rule` of its devices.
    pub name: Option<String>,
    /// The interfaces that the rule is for.
    pub matches: Match,
    /// How they are handed to claims.
    pub mode: Mode,
    /// What claims get that do not ask for something else.
    pub defaults: ClaimConfig,
    /// Interfaces that are published although the host needs them: by name, never by pattern.
    pub allow: Vec<String>,
    /// Attributes that all devices of the rule have in addition.
    pub attributes: Attributes,
}

/// The fields as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    #[serde(default, deserialize_with = "rule_name")]
    name: Option<String>,
    #[serde(rename = "match")]
    matches: Match,
    #[serde(default)]
    mode: Option<ModeName>,
    #[serde(default)]
    share: Option<Share>,
    #[serde(default)]
    ipam: Vec<AddressRange>,
    #[serde(default)]
    allow: Vec<ExactName>,
    #[serde(default, deserialize_with = "extra")]
    attributes: Attributes,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    Move,
    Dpdk,
}

impl TryFrom<Fields> for Rule {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { name, matches, mode, share, ipam, allow, attributes } = fields;
        let mode = match (mode, share) {
            (Some(_), Some(_)) => {
                return Err(
                    "share and mode exclude each other: a shared interface is neither moved nor bound; remove one"
                        .to_owned(),
                );
            }
            (None, Some(share)) => Mode::Share(share),
            (Some(ModeName::Dpdk), None) => Mode::Dpdk,
            (Some(ModeName::Move) | None, None) => Mode::Move,
        };
        if mode == Mode::Dpdk && !ipam.is_empty() {
            return Err("ipam: mode: dpdk has no interface that could get an address; remove it".to_owned());
        }
        let defaults = defaults(mode, ipam);
        if let Some(error) = defaults.validate().into_iter().next() {
            return Err(error.to_string().replacen("addressRanges", "ipam", 1));
        }
        Ok(Self { name, matches, mode, defaults, allow: allow.into_iter().map(|name| name.0).collect(), attributes })
    }
}

/// Returns what the claims of a rule get that do not ask for something else.
fn defaults(mode: Mode, ipam: Vec<AddressRange>) -> ClaimConfig {
    let kind = mode.share().map(|share| share.kind);
    ClaimConfig {
        address_ranges: (!ipam.is_empty()).then_some(ipam),
        macvlan: match kind {
            Some(ShareKind::Macvlan(macvlan)) => Some(macvlan),
            _ => None,
        },
        ipvlan: match kind {
            Some(ShareKind::Ipvlan(ipvlan)) => Some(ipvlan),
            _ => None,
        },
        driver: (mode == Mode::Dpdk).then_some(DeviceDriver::VfioPci),
        ..ClaimConfig::default()
    }
}

/// The name of an interface, not a pattern.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct ExactName(String);

impl TryFrom<String> for ExactName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_glob(&text) {
            return Err(format!(
                "{text:?} is a pattern: the interfaces that the host needs are allowed by name, on purpose"
            ));
        }
        if text == "lo" {
            return Err("the loopback interface cannot be handed out; remove it".to_owned());
        }
        let is_name = |letter: char| !letter.is_whitespace() && !matches!(letter, '/' | ':' | '\0');
        if text.is_empty() || text.len() > MAX_INTERFACE_NAME || !text.chars().all(is_name) {
            return Err(format!(
                "{text:?} is not the name of an interface: it has 1 to {MAX_INTERFACE_NAME} bytes without spaces, / and :"
            ));
        }
        Ok(Self(text))
    }
}

fn extra<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
    config::attributes::extra(deserializer, MAX_EXTRA, is_own)
}
