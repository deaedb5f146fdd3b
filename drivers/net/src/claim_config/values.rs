//! The values of fields, which are within the kernel's limits once they are parsed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::words::{IpvlanFlag, IpvlanMode, MacvlanMode, RouteScope, VlanProtocol};

/// The longest name of an interface: `IFNAMSIZ` without the end of the string.
const MAX_INTERFACE_NAME: usize = 15;
/// What a number takes of a name with [`NUMBER`], at least: 0 to 99.
const NUMBER_ROOM: usize = 2;
/// The end of a name that stands for a number.
const NUMBER: &str = "%d";

/// The name of an interface in a pod, or a name that ends with `%d` and gets the lowest free number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// The name as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the part before the number, if the name ends with `%d`.
    pub fn prefix(&self) -> Option<&str> {
        self.0.strip_suffix(NUMBER)
    }

    /// Returns whether an interface can have this name in a pod, and why not.
    pub fn check(name: &str) -> Result<(), String> {
        let template = name.strip_suffix(NUMBER);
        let stem = template.unwrap_or(name);
        let longest = MAX_INTERFACE_NAME - if template.is_some() { NUMBER_ROOM } else { 0 };
        if name.is_empty() {
            return Err("must not be empty".to_owned());
        }
        if stem.len() > longest {
            let with = if template.is_some() { " before %d" } else { "" };
            return Err(format!("{name:?} is too long: the kernel takes at most {longest} bytes{with}"));
        }
        let is_valid = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '/' | ':' | '%');
        if let Some(letter) = stem.chars().find(|letter| !is_valid(*letter)) {
            return Err(format!(
                "{name:?} has {letter:?}: use ASCII letters, digits and '.', '-', '_'; %d at the end stands for a number"
            ));
        }
        match name {
            "." | ".." => Err(format!("{name:?} is a name of a directory")),
            "lo" | "eth0" => Err(format!("{name:?} is an interface that every pod already has: choose another name")),
            "all" | "default" => {
                Err(format!("{name:?} means all interfaces in the kernel's settings: choose another name"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for InterfaceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::check(name)?;
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hardware address of an Ethernet interface: of one interface, not of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Returns its bytes.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let octet = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
        let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
        let octets = octets.and_then(|octets| <[u8; 6]>::try_from(octets).ok());
        let octets = octets.ok_or_else(|| {
            format!("{text:?} is not a MAC address: write six pairs of digits, such as 02:00:5e:10:00:01")
        })?;
        if octets == [0; 6] {
            return Err("all zeros is no address of an interface".to_owned());
        }
        if octets[0] & 1 == 1 {
            let mut unicast = octets;
            unicast[0] = unicast[0] & !1 | 2;
            return Err(format!(
                "{text} is a multicast address (the lowest bit of the first byte is 1): an interface needs a unicast address, such as {}",
                Self(unicast)
            ));
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A range of which an interface gets an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressRange {
    /// The network, whose prefix length the address has.
    pub subnet: IpNet,
    /// The first address that is handed out. By default the first of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// The last address that is handed out. By default the last of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<IpAddr>,
    /// The gateway of the network: never handed out, and the next hop of routes without one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Addresses and networks that are not handed out.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "exclusions")]
    pub exclude: Vec<IpNet>,
}

/// Reads addresses and networks.
fn exclusions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let networks = texts.iter().map(|text| {
        let address = text.parse::<IpAddr>().map(IpNet::from).ok();
        let network = address.or_else(|| text.parse().ok());
        network.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is neither an address nor a network")))
    });
    networks.collect()
}

/// A route through the interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The destination.
    pub destination: IpNet,
    /// The next hop. Without it, and without one from an address range, the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Whether the gateway is on the link although no address of the interface is in its network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_link: bool,
    /// The preferred source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The routing table; the main table by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The metric: of two routes the kernel takes the one with the lower metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// The scope; that of the kernel by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RouteScope>,
}

/// A policy routing rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The source of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpNet>,
    /// The destination of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpNet>,
    /// The mark of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
    /// The family, for a rule with a mark alone; both by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// The table in which the route is looked up.
    pub table: u32,
    /// The priority: rules with a lower number come first. The kernel chooses one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

impl Rule {
    /// Returns the families that the rule is for.
    pub fn families(&self) -> Vec<Family> {
        let of_network = self.from.or(self.to).map(|network| Family::of(network.addr()));
        match of_network.or(self.family) {
            Some(family) => vec![family],
            None => vec![Family::V4, Family::V6],
        }
    }
}

/// A macvlan interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Macvlan {
    /// How the interfaces of a device reach each other.
    pub mode: MacvlanMode,
}

/// An ipvlan interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ipvlan {
    /// The layer at which packets are switched.
    pub mode: IpvlanMode,
    /// How the interfaces of a device reach each other.
    pub flag: IpvlanFlag,
}

/// A VLAN interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Vlan {
    /// The id, from 1 to 4094.
    pub id: u16,
    /// The protocol of the tag.
    #[serde(default)]
    pub protocol: VlanProtocol,
}

/// Serializes as text.
macro_rules! as_text {
    ($($name:ty),+) => {
        $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    to.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
                }
            }
        )+
    };
}

as_text!(InterfaceName, MacAddress, super::sysctl::Sysctl);
