//! The second phase: what several fields say together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::fields::Errors;
use super::values::{AddressRange, Family, Route, Rule};
use super::words::{MacvlanMode, RouteScope};
use super::{ClaimConfig, FieldError, MAX_ADDRESSES};

/// The smallest MTU of IPv6.
const IPV6_MTU: u32 = 1280;
/// The main routing table, where the pod's own routes are.
const MAIN_TABLE: u32 = 254;

pub(super) fn validate(config: &ClaimConfig) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if config.is_userspace() {
        without_interface(config, &mut errors);
        return errors.0;
    }
    addresses(config, &mut errors);
    for (index, range) in config.address_ranges.iter().flatten().enumerate() {
        check_range(range, &format!("addressRanges[{index}]"), &mut errors);
    }
    routes(config, &mut errors);
    for (index, rule) in config.rules.iter().flatten().enumerate() {
        check_rule(config, rule, index, &mut errors);
    }
    link(config, &mut errors);
    errors.0
}

/// Refuses everything about an interface for a device that has none.
fn without_interface(config: &ClaimConfig, errors: &mut Errors) {
    let ClaimConfig {
        interface_name,
        mtu,
        mac_address,
        addresses,
        address_ranges,
        duplicate_detection,
        routes,
        rules,
        sysctls,
        macvlan,
        ipvlan,
        vlan,
        rdma_exclusive,
        driver,
    } = config;
    let fields = [
        ("interfaceName", interface_name.is_some()),
        ("mtu", mtu.is_some()),
        ("macAddress", mac_address.is_some()),
        ("addresses", addresses.is_some()),
        ("addressRanges", address_ranges.is_some()),
        ("duplicateDetection", duplicate_detection.is_some()),
        ("routes", routes.is_some()),
        ("rules", rules.is_some()),
        ("sysctls", sysctls.is_some()),
        ("macvlan", macvlan.is_some()),
        ("ipvlan", ipvlan.is_some()),
        ("vlan", vlan.is_some()),
        ("rdmaExclusive", *rdma_exclusive == Some(true)),
    ];
    let driver = driver.map_or("", super::DeviceDriver::as_str);
    for (field, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
        errors.add(field, format!("a device with the driver {driver} has no interface: remove this field, or driver"));
    }
}

fn addresses(config: &ClaimConfig, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, address) in config.addresses.iter().flatten().enumerate() {
        let path = format!("addresses[{index}]");
        if !seen.insert(address.addr()) {
            errors.add(&path, format!("{} is there twice", address.addr()));
        }
        let ranges = config.address_ranges.iter().flatten();
        if let Some(range) = ranges.into_iter().find(|range| range.gateway == Some(address.addr())) {
            errors.add(&path, format!("{} is the gateway of the range {}", address.addr(), range.subnet));
        }
    }
    let mut subnets = BTreeSet::new();
    for (index, range) in config.address_ranges.iter().flatten().enumerate() {
        if !subnets.insert(range.subnet) {
            errors.add(format!("addressRanges[{index}].subnet"), format!("{} is there twice", range.subnet));
        }
    }
    let count = config.addresses.iter().flatten().count() + config.address_ranges.iter().flatten().count();
    if count > MAX_ADDRESSES {
        let field = if config.addresses.is_some() { "addresses" } else { "addressRanges" };
        errors.add(field, format!("{count} addresses: an interface can have at most {MAX_ADDRESSES}"));
    }
}

fn check_range(range: &AddressRange, path: &str, errors: &mut Errors) {
    let AddressRange { subnet, first, last, gateway, exclude } = range;
    for (name, address) in [("first", first), ("last", last), ("gateway", gateway)] {
        let Some(address) = address.filter(|address| !subnet.contains(address)) else { continue };
        errors.add(format!("{path}.{name}"), format!("{address} is not in the subnet {subnet}"));
    }
    for (index, excluded) in exclude.iter().enumerate().filter(|(_, excluded)| !subnet.contains(*excluded)) {
        errors.add(format!("{path}.exclude[{index}]"), format!("{excluded} is not in the subnet {subnet}"));
    }
    match (first, last) {
        (Some(first), Some(last)) if first > last => {
            errors.add(format!("{path}.last"), format!("{last} is before first, {first}"));
        }
        _ if range.size() == 0 => {
            errors.add(path, "no address is left to hand out: make the range larger or exclude less");
        }
        _ => {}
    }
}

fn routes(config: &ClaimConfig, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, route) in config.routes.iter().flatten().enumerate() {
        let path = |field: &str| format!("routes[{index}].{field}");
        check_route(config, route, path, errors);
        if !seen.insert((route.destination, route.table.unwrap_or(MAIN_TABLE), route.metric)) {
            errors.add(
                path("destination"),
                format!("{} is there twice: set different tables or metrics", route.destination),
            );
        }
    }
}

fn check_route(config: &ClaimConfig, route: &Route, path: impl Fn(&str) -> String, errors: &mut Errors) {
    let family = Family::of(route.destination.addr());
    let is_default = route.destination.prefix_len() == 0;
    if is_default && route.table.unwrap_or(MAIN_TABLE) == MAIN_TABLE && route.metric.is_none() {
        errors.add(
            path("destination"),
            "the pod has a default route of its own: set a metric, or a table and a rule that uses it",
        );
    }
    for (field, address) in [("gateway", route.gateway), ("source", route.source)] {
        if let Some(address) = address.filter(|address| Family::of(*address) != family) {
            let message = format!("{address} is {}, but the destination is {family}", Family::of(address));
            errors.add(path(field), message);
        }
    }
    if route.on_link && route.gateway.is_none() {
        errors.add(path("onLink"), "is about the gateway, and there is none");
    }
    if route.gateway.is_some() && matches!(route.scope, Some(RouteScope::Link | RouteScope::Host)) {
        errors.add(path("scope"), "a route with a gateway is global: remove scope or gateway");
    }
    // Otherwise they are set elsewhere, by the device class or the rule, or they are those of the host.
    if !config.leaves_addresses() {
        check_reach(config, route, path, errors);
    }
}

/// Checks a route against the addresses of its interface.
fn check_reach(config: &ClaimConfig, route: &Route, path: impl Fn(&str) -> String, errors: &mut Errors) {
    let family = Family::of(route.destination.addr());
    let is_own = |address: IpAddr| config.addresses.iter().flatten().any(|own| own.addr() == address);
    if !config.has_family(family) {
        let none =
            format!("the interface gets no {family} address, so the kernel would refuse an {family} route: add one");
        errors.add(path("destination"), none);
    }
    if let Some(source) = route.source.filter(|source| !is_own(*source)) {
        errors.add(
            path("source"),
            format!("{source} is not one of addresses: the kernel takes only an address of the interface"),
        );
    }
    let Some(gateway) = route.gateway else { return };
    if is_own(gateway) {
        errors.add(path("gateway"), format!("{gateway} is an address of the interface itself"));
    } else if Family::of(gateway) == family && !route.on_link && config.has_family(family) && !config.reaches(gateway) {
        errors.add(
            path("gateway"),
            format!(
                "{gateway} is in no network of the interface's addresses: add such an address, or set onLink: true"
            ),
        );
    }
}

fn check_rule(config: &ClaimConfig, rule: &Rule, index: usize, errors: &mut Errors) {
    let path = |field: &str| format!("rules[{index}].{field}");
    if rule.from.is_none() && rule.to.is_none() && rule.fwmark.is_none() {
        errors.add(format!("rules[{index}]"), "matches every packet: set from, to or fwmark");
    }
    let families = [rule.from, rule.to].into_iter().flatten().map(|network| Family::of(network.addr()));
    let families: BTreeSet<Family> = families.chain(rule.family).collect();
    if families.len() > 1 {
        errors.add(format!("rules[{index}]"), "from, to and family must be of one family, IPv4 or IPv6");
    }
    let earlier = config.rules.iter().flatten().take(index);
    if earlier.into_iter().any(|other| other == rule) {
        errors.add(format!("rules[{index}]"), "is there twice");
    }
    let has_routes = rule.table == MAIN_TABLE
        || rule.table == MAIN_TABLE - 1
        || config.routes.iter().flatten().any(|route| route.table == Some(rule.table));
    if !has_routes {
        errors.add(path("table"), format!("no route is in table {}: add one with table: {0}", rule.table));
    }
}

/// Checks what becomes of the link itself.
fn link(config: &ClaimConfig, errors: &mut Errors) {
    let children =
        [("macvlan", config.macvlan.is_some()), ("ipvlan", config.ipvlan.is_some()), ("vlan", config.vlan.is_some())];
    let children: Vec<&str> = children.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    if let [first, others @ ..] = children.as_slice() {
        for other in others {
            errors.add(*other, format!("{first} is set as well, and an interface is one of them"));
        }
        if config.rdma_exclusive == Some(true) {
            errors.add("rdmaExclusive", format!("an RDMA device goes along with its own interface, not with {first}"));
        }
    }
    if config.ipvlan.is_some() && config.mac_address.is_some() {
        errors.add(
            "macAddress",
            "an ipvlan interface has the MAC address of its device: remove this field, or use macvlan",
        );
    }
    if config.macvlan.is_some_and(|macvlan| macvlan.mode == MacvlanMode::Passthru) && config.mac_address.is_some() {
        errors.add("macAddress", "macvlan in the mode passthru has the MAC address of its device: remove this field");
    }
    if config.mtu.is_some_and(|mtu| mtu < IPV6_MTU) && config.has_family(Family::V6) {
        errors.add("mtu", format!("IPv6 needs an MTU of at least {IPV6_MTU}"));
    }
    let is_off = |sysctl: &&super::Sysctl| sysctl.is("net.ipv6.conf", "disable_ipv6");
    let sysctls = config.sysctls.iter().flatten();
    let disables = sysctls.into_iter().find(|(sysctl, value)| is_off(sysctl) && **value != 0);
    if let Some((sysctl, _)) = disables.filter(|_| config.has_family(Family::V6)) {
        errors.add(format!("sysctls[{sysctl}]"), "the interface gets IPv6 addresses: remove them, or this setting");
    }
}

impl ClaimConfig {
    /// Returns whether nothing is said of addresses, and the interface can have some all the same: those that it has on the host.
    fn leaves_addresses(&self) -> bool {
        self.addresses.is_none() && self.address_ranges.is_none() && !self.has_child()
    }

    /// Returns whether the interface gets an address of this family. Every interface has an IPv6 address on its link.
    fn has_family(&self, family: Family) -> bool {
        self.networks().any(|network| Family::of(network.addr()) == family)
    }

    /// Returns the networks in which the interface gets addresses.
    fn networks(&self) -> impl Iterator<Item = IpNet> {
        let fixed = self.addresses.iter().flatten().copied();
        fixed.chain(self.address_ranges.iter().flatten().map(|range| range.subnet))
    }

    /// Returns whether a gateway is on the link: in the network of an address, or behind a route to the link.
    fn reaches(&self, gateway: IpAddr) -> bool {
        let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let mut on_link = self.routes.iter().flatten().filter(|route| self.gateway_of(route).is_none());
        is_link_local
            || self.networks().any(|network| network.contains(&gateway))
            || on_link.any(|route| route.destination.prefix_len() > 0 && route.destination.contains(&gateway))
    }

    /// Returns the next hop of a route: its own, or that of the first address range of its family.
    pub fn gateway_of(&self, route: &Route) -> Option<IpAddr> {
        if route.gateway.is_some() || matches!(route.scope, Some(RouteScope::Link | RouteScope::Host)) {
            return route.gateway;
        }
        let family = Family::of(route.destination.addr());
        let gateways = self.address_ranges.iter().flatten().filter_map(|range| range.gateway);
        gateways.into_iter().find(|gateway| Family::of(*gateway) == family)
    }
}
