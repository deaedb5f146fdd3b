//! Matching interfaces: by name, kind, kernel driver, PCI address, hardware address and a CEL expression.

use drakkar_cel::{DeviceValue, SelectorError};
use drakkar_driver_kit::config::pattern::{AddressPattern, Cel, DriverPattern, NamePattern, Pattern, any, is_glob};
use drakkar_netlink::HardwareAddress;
use drakkar_plugin::attributes::PCI_BUS_ID;
use serde::Deserialize;

use crate::attributes::{Attributes, DRIVER, INTERFACE_NAME, MAC, TYPE, text_of};
use crate::inventory::Kind;

/// The octets of an Ethernet address. Those of InfiniBand have more, and none has less.
const ETHERNET_OCTETS: usize = 6;

/// A condition for interfaces. All fields that are set must match; of a list, one entry.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Match {
    /// Names of interfaces on the host: `ens1f0`, `eth*`. A function without an interface matches none.
    pub names: Vec<NamePattern>,
    /// Kinds: `physical`, `vf`, `dummy`, `vlan`.
    pub types: Vec<TypeName>,
    /// Kernel drivers: `mlx5_core`, `ice`, `none` for no driver.
    pub drivers: Vec<DriverPattern>,
    /// PCI addresses: `0000:65:00.0`, `0000:65:*`.
    pub addresses: Vec<AddressPattern>,
    /// Hardware addresses: `02:00:5e:10:00:01`, `02:00:*`.
    pub macs: Vec<MacPattern>,
    /// An expression over the attributes that are published of the interface.
    pub cel: Option<Cel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    names: Vec<NamePattern>,
    #[serde(default)]
    types: Vec<TypeName>,
    #[serde(default)]
    drivers: Vec<DriverPattern>,
    #[serde(default)]
    addresses: Vec<AddressPattern>,
    #[serde(default)]
    macs: Vec<MacPattern>,
    cel: Option<Cel>,
}

impl TryFrom<Fields> for Match {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { names, types, drivers, addresses, macs, cel } = fields;
        let lists = [names.is_empty(), types.is_empty(), drivers.is_empty(), addresses.is_empty(), macs.is_empty()];
        if lists.into_iter().all(|is_empty| is_empty) && cel.is_none() {
            return Err("it matches everything: set one of names, types, drivers, addresses, macs and cel (for all \
                        interfaces that the host does not need itself, names: ['*'])"
                .to_owned());
        }
        Ok(Self { names, types, drivers, addresses, macs, cel })
    }
}

impl Match {
    /// Returns whether an interface with these attributes matches. An expression that fails, because the interface lacks an attribute
    /// for example, is an error and not a mismatch.
    pub fn matches(&self, attributes: &Attributes, value: &DeviceValue) -> Result<bool, SelectorError> {
        let text = |name: &str| text_of(attributes, name);
        let of = |name: &str, matches: &dyn Fn(&str) -> bool| text(name).is_some_and(matches);
        let matches = any(&self.names, |pattern| of(INTERFACE_NAME, &|name| pattern.matches(name)))
            && any(&self.types, |kind| text(TYPE) == Some(&kind.0))
            && any(&self.drivers, |pattern| pattern.matches(text(DRIVER)))
            && any(&self.addresses, |pattern| of(PCI_BUS_ID, &|address| pattern.matches(address)))
            && any(&self.macs, |pattern| of(MAC, &|mac| pattern.0.matches(mac)));
        match &self.cel {
            Some(cel) if matches => cel.matches(value),
            _ => Ok(matches),
        }
    }
}

/// A kind of interfaces, one of [`Kind::WORDS`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TypeName(String);

impl TryFrom<String> for TypeName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if Kind::WORDS.contains(&text.as_str()) {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is no type: use one of {} (for others, cel: device.attributes['net.drakkar.dev'].type == …)",
            Kind::WORDS.join(", ")
        ))
    }
}

/// A pattern for hardware addresses, with `*`, `?`, `[0-3]` and `{a,b}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct MacPattern(Pattern);

impl TryFrom<String> for MacPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_address = |address: HardwareAddress| address.octets().len() >= ETHERNET_OCTETS;
        if !is_glob(&text) && !text.parse().is_ok_and(is_address) {
            return Err(format!(
                "{text:?} is neither a hardware address such as 02:00:5e:10:00:01 nor a pattern such as 02:00:* (quote it in YAML)"
            ));
        }
        let strange = text.chars().find(|letter| !letter.is_ascii_hexdigit() && !":*?[]{}!,-".contains(*letter));
        if let Some(letter) = strange {
            return Err(format!(
                "{text:?} has {letter:?}, which is in no hardware address: use digits, a-f, colons and the patterns * ? [] {{}}"
            ));
        }
        Pattern::new(&text.to_ascii_lowercase()).map(Self)
    }
}
