//! A rule: which devices it selects, and how they are handed to claims.

use drakkar_driver_kit::config::pattern::{NamePattern, is_glob};
use drakkar_driver_kit::config::{self, rule_name};
use drakkar_metadata::PciAddress;
use serde::{Deserialize, Deserializer};

use super::matcher::Match;
use crate::attributes::{Attributes, is_own};
use crate::mode::{IommuBackend, Mode};

/// A rule of the configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The name of the rule: in messages, and as the attribute `rule` of its devices.
    #[serde(default, deserialize_with = "rule_name")]
    pub name: Option<String>,
    /// The devices that the rule is for.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The mode of claims that ask for none.
    #[serde(default)]
    pub mode: Mode,
    /// The interface of VFIO of claims that ask for none.
    #[serde(default)]
    pub iommu_backend: IommuBackend,
    /// The virtual functions of the physical functions that the rule matches.
    #[serde(default)]
    pub virtual_functions: Option<VirtualFunctions>,
    /// The types of mediated devices that are published, by their ids (`nvidia-63`) or names.
    #[serde(default)]
    pub mdev_types: Vec<NamePattern>,
    /// What happens to the other devices of the IOMMU group.
    #[serde(default)]
    pub companions: Companions,
    /// Devices that are published although the host uses them: by address, never by pattern.
    #[serde(default, deserialize_with = "addresses")]
    pub allow_in_use: Vec<PciAddress>,
    /// Attributes that all devices of the rule have in addition.
    #[serde(default, deserialize_with = "extra")]
    pub attributes: Attributes,
}

/// What happens to devices that share an IOMMU group with a device of the rule, and that no rule selects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Companions {
    /// The device is refused: they could not be used by the host while a claim has it.
    #[default]
    Refuse,
    /// They are bound to vfio-pci with the device, and back with it. The ones that the host uses are still refused.
    Bind,
}

/// The virtual functions of a physical function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VirtualFunctions {
    /// The number of virtual functions.
    pub count: Count,
    /// Whether they are made when the first claim needs one; otherwise only those that exist are published.
    #[serde(default = "on")]
    pub on_demand: bool,
}

fn on() -> bool {
    true
}

/// A number of virtual functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// At most this many.
    Number(u16),
    /// As many as the device has (`sriov_totalvfs`).
    Max,
}

impl Count {
    /// Returns the number for a device with this many.
    pub fn of(self, total: u16) -> u16 {
        match self {
            Self::Number(count) => count.min(total),
            Self::Max => total,
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Count;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number from 1 to 65535, or max")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Count, E> {
                match u16::try_from(value) {
                    Ok(count @ 1..) => Ok(Count::Number(count)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(value), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Count, E> {
                match u64::try_from(value) {
                    Ok(value) => self.visit_u64(value),
                    Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(value), &self)),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Count, E> {
                match text {
                    "max" => Ok(Count::Max),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Rule {
    /// Returns whether the rule publishes a type of mediated devices.
    pub fn publishes_type(&self, id: &str, name: Option<&str>) -> bool {
        let matches = |text: &str| self.mdev_types.iter().any(|pattern| pattern.matches(text));
        matches(id) || name.is_some_and(matches)
    }
}

/// The most attributes of a rule. A device has at most 32, and the driver's own take 24 of them.
const MAX_EXTRA: usize = 8;

fn extra<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
    config::attributes::extra(deserializer, MAX_EXTRA, is_own)
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PciAddress>, D::Error> {
    #[derive(Deserialize)]
    #[serde(try_from = "String")]
    struct Address(PciAddress);

    impl TryFrom<String> for Address {
        type Error = String;

        fn try_from(text: String) -> Result<Self, String> {
            let hint = if is_glob(&text) { "; patterns are not allowed here, on purpose" } else { "" };
            text.parse().map(Self).map_err(|error| format!("{error}{hint}"))
        }
    }
    Ok(Vec::<Address>::deserialize(deserializer)?.into_iter().map(|address| address.0).collect())
}
