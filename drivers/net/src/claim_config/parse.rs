//! The first phase: known fields of the right form, each value within the kernel's limits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::fields::{Errors, Fields, text};
use super::sysctl::Sysctl;
use super::values::{AddressRange, Ipvlan, Macvlan, Route, Rule, Vlan};
use super::words::DeviceDriver;
use super::{API_VERSION, ClaimConfig, FieldError, KIND};

/// The smallest MTU of IPv4, and the largest that the kernel's drivers take.
const MTU: std::ops::RangeInclusive<i64> = 68..=65535;
/// The ids of VLANs: 0 and 4095 are reserved.
const VLAN_ID: std::ops::RangeInclusive<i64> = 1..=4094;
/// The routing table that the kernel keeps itself.
const LOCAL_TABLE: u32 = 255;
const U32: std::ops::RangeInclusive<i64> = 0..=u32::MAX as i64;

/// Reads parameters with their version and kind.
pub(super) fn document(value: &Value, path: &str) -> Result<ClaimConfig, Vec<FieldError>> {
    let mut errors = Errors::default();
    let config = read(value, path, &mut errors).unwrap_or_default();
    if errors.0.is_empty() { Ok(config) } else { Err(errors.0) }
}

fn read(value: &Value, path: &str, errors: &mut Errors) -> Option<ClaimConfig> {
    let mut fields = Fields::of(value, path, errors)?;
    let version: Option<String> = fields.text("apiVersion", errors);
    let kind: Option<String> = fields.text("kind", errors);
    let version = fields.required("apiVersion", version, errors);
    let kind = fields.required("kind", kind, errors);
    // The fields of another version or kind would only give errors that mislead.
    if version.is_some_and(|version| version != API_VERSION) {
        errors.add(fields.path_of("apiVersion"), format!("must be {API_VERSION}"));
        return None;
    }
    if kind.is_some_and(|kind| kind != KIND) {
        errors.add(fields.path_of("kind"), format!("must be {KIND}"));
        return None;
    }
    let config = ClaimConfig {
        interface_name: fields.text("interfaceName", errors),
        mtu: fields.number("mtu", MTU, errors),
        mac_address: fields.text("macAddress", errors),
        addresses: fields.list("addresses", errors, address),
        address_ranges: fields.list("addressRanges", errors, range),
        duplicate_detection: fields.text("duplicateDetection", errors),
        routes: fields.list("routes", errors, route),
        rules: fields.list("rules", errors, rule),
        sysctls: sysctls(&mut fields, errors),
        macvlan: fields.object("macvlan", errors).map(|mut fields| {
            let mode = fields.text("mode", errors).unwrap_or_default();
            fields.finish(errors);
            Macvlan { mode }
        }),
        ipvlan: fields.object("ipvlan", errors).map(|mut fields| {
            let mode = fields.text("mode", errors).unwrap_or_default();
            let flag = fields.text("flag", errors).unwrap_or_default();
            fields.finish(errors);
            Ipvlan { mode, flag }
        }),
        vlan: fields.object("vlan", errors).and_then(|mut fields| {
            let id = fields.number("id", VLAN_ID, errors);
            let protocol = fields.text("protocol", errors).unwrap_or_default();
            let id = fields.required("id", id, errors);
            fields.finish(errors);
            Some(Vlan { id: id?, protocol })
        }),
        rdma_exclusive: fields.boolean("rdmaExclusive", errors),
        driver: fields.text::<DeviceDriver>("driver", errors),
    };
    fields.finish(errors);
    Some(config)
}

/// Reads an address with a prefix length that an interface can have.
fn address(value: &Value, path: &str, errors: &mut Errors) -> Option<IpNet> {
    let text: String = text(value, path, errors)?;
    errors.keep(path, interface_address(&text))
}

fn interface_address(text: &str) -> Result<IpNet, String> {
    let Ok(network) = text.parse::<IpNet>() else {
        return Err(match text.parse::<IpAddr>() {
            Ok(address) => {
                format!("{text:?} has no prefix length: write {address}/{}, or that of its network", width(address))
            }
            Err(_) => {
                format!("{text:?} is not an address with a prefix length, such as 192.0.2.10/24 or 2001:db8::10/64")
            }
        });
    };
    check_address(network.addr())?;
    let is_part = network.prefix_len() < network.max_prefix_len() - 1;
    if is_part && network.addr() == network.network() {
        return Err(format!("{text} is the network itself: use an address in it, such as {}", first_host(&network)));
    }
    if is_part && network.addr().is_ipv4() && network.addr() == network.broadcast() {
        return Err(format!(
            "{text} is the broadcast address of its network: use another one, such as {}",
            first_host(&network)
        ));
    }
    Ok(network)
}

fn first_host(network: &IpNet) -> String {
    let first = network.hosts().next().unwrap_or_else(|| network.addr());
    format!("{first}/{}", network.prefix_len())
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Refuses what is no address of one interface.
fn check_address(address: IpAddr) -> Result<(), String> {
    let problem = match address {
        _ if address.is_unspecified() => "is no address of an interface",
        _ if address.is_loopback() => "is a loopback address",
        _ if address.is_multicast() => "is a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "is the broadcast address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "is an IPv4 address in IPv6 form: write it as IPv4",
        _ => return Ok(()),
    };
    Err(format!("{address} {problem}"))
}

/// Reads a network: nothing but zeros behind the prefix.
fn network(value: &Value, path: &str, errors: &mut Errors) -> Option<IpNet> {
    let text: String = text(value, path, errors)?;
    errors.keep(path, parse_network(&text))
}

fn parse_network(text: &str) -> Result<IpNet, String> {
    if text == "default" {
        return Err("write 0.0.0.0/0 for IPv4 or ::/0 for IPv6".to_owned());
    }
    let Ok(network) = text.parse::<IpNet>() else {
        return Err(match text.parse::<IpAddr>() {
            Ok(address) => {
                format!("{text:?} has no prefix length: write {address}/{} for this address alone", width(address))
            }
            Err(_) => format!("{text:?} is not a network, such as 192.0.2.0/24 or 2001:db8::/64"),
        });
    };
    if network.addr() != network.network() {
        return Err(format!(
            "{text} is an address in a network: write {} or {}/{}",
            network.trunc(),
            network.addr(),
            network.max_prefix_len()
        ));
    }
    Ok(network)
}

/// Reads a network, or an address, which is a network of its own.
fn exclusion(value: &Value, path: &str, errors: &mut Errors) -> Option<IpNet> {
    let text: String = text(value, path, errors)?;
    let parsed = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| parse_network(&text));
    errors.keep(path, parsed)
}

fn optional_network(fields: &mut Fields<'_>, name: &'static str, errors: &mut Errors) -> Option<IpNet> {
    let path = fields.path_of(name);
    network(fields.value(name)?, &path, errors)
}

/// Reads an address of a host.
fn host(fields: &mut Fields<'_>, name: &'static str, errors: &mut Errors) -> Option<IpAddr> {
    let path = fields.path_of(name);
    let text: String = text(fields.value(name)?, &path, errors)?;
    let address = match (text.parse::<IpAddr>(), text.parse::<IpNet>()) {
        (Ok(address), _) => Ok(address),
        (Err(_), Ok(network)) => Err(format!("{text:?} must not have a prefix length: write {}", network.addr())),
        (Err(_), Err(_)) => Err(format!("{text:?} is not an address, such as 192.0.2.1 or 2001:db8::1")),
    };
    errors.keep(&path, address.and_then(|address| check_address(address).map(|()| address)))
}

fn range(value: &Value, path: &str, errors: &mut Errors) -> Option<AddressRange> {
    let mut fields = Fields::of(value, path, errors)?;
    let subnet = optional_network(&mut fields, "subnet", errors);
    let subnet = fields.required("subnet", subnet, errors);
    let first = host(&mut fields, "first", errors);
    let last = host(&mut fields, "last", errors);
    let gateway = host(&mut fields, "gateway", errors);
    let exclude = fields.list("exclude", errors, exclusion).unwrap_or_default();
    fields.finish(errors);
    Some(AddressRange { subnet: subnet?, first, last, gateway, exclude })
}

fn route(value: &Value, path: &str, errors: &mut Errors) -> Option<Route> {
    let mut fields = Fields::of(value, path, errors)?;
    let destination = optional_network(&mut fields, "destination", errors);
    let destination = fields.required("destination", destination, errors);
    let gateway = host(&mut fields, "gateway", errors);
    let source = host(&mut fields, "source", errors);
    let on_link = fields.boolean("onLink", errors).unwrap_or_default();
    let table = table(&mut fields, errors);
    let metric = fields.number("metric", U32, errors);
    let scope = fields.text("scope", errors);
    fields.finish(errors);
    Some(Route { destination: destination?, gateway, on_link, source, table, metric, scope })
}

fn rule(value: &Value, path: &str, errors: &mut Errors) -> Option<Rule> {
    let mut fields = Fields::of(value, path, errors)?;
    let from = optional_network(&mut fields, "from", errors);
    let to = optional_network(&mut fields, "to", errors);
    let fwmark = fields.number("fwmark", 1..=*U32.end(), errors);
    let family = family(&mut fields, errors);
    let table = table(&mut fields, errors);
    let table = fields.required("table", table, errors);
    // 0 is the rule of the local table, without which nothing reaches the pod.
    let priority = fields.number("priority", 1..=*U32.end(), errors);
    fields.finish(errors);
    Some(Rule { from, to, fwmark, family, table: table?, priority })
}

fn family(fields: &mut Fields<'_>, errors: &mut Errors) -> Option<super::Family> {
    let path = fields.path_of("family");
    let text: String = fields.text("family", errors)?;
    match text.as_str() {
        "IPv4" => Some(super::Family::V4),
        "IPv6" => Some(super::Family::V6),
        _ => {
            errors.add(path, super::fields::unknown(&format!("{text:?} is not known"), &text, &["IPv4", "IPv6"]));
            None
        }
    }
}

fn table(fields: &mut Fields<'_>, errors: &mut Errors) -> Option<u32> {
    let path = fields.path_of("table");
    let table = fields.number("table", 1..=*U32.end(), errors)?;
    if table == LOCAL_TABLE {
        errors.add(path, format!("{table} is the table that the kernel keeps itself: use another one"));
        return None;
    }
    Some(table)
}

fn sysctls(fields: &mut Fields<'_>, errors: &mut Errors) -> Option<BTreeMap<Sysctl, i64>> {
    let path = fields.path_of("sysctls");
    let value = fields.value("sysctls")?;
    let Value::Object(entries) = value else {
        errors.add(path, "must be an object with the names of settings and their values");
        return None;
    };
    let mut sysctls = BTreeMap::new();
    for (name, value) in entries {
        let path = format!("{path}[{name}]");
        let Some(sysctl) = errors.keep(&path, name.parse()) else { continue };
        // Pods have them as texts.
        match value.as_i64().or_else(|| value.as_str()?.parse().ok()) {
            Some(number) => drop(sysctls.insert(sysctl, number)),
            None => errors.add(path, format!("must be a whole number, but is {value}")),
        }
    }
    Some(sysctls)
}
