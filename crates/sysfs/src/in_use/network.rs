//! The network interfaces of routes, and those that are part of others, down to the cards.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::text::read;
use super::{HostUse, InUseKind, controller, names, target};
use crate::Sysfs;

/// The route is usable (`RTF_UP`).
const UP: u32 = 0x1;
/// The route refuses packets (`RTF_REJECT`): every host has such a default route for IPv6.
const REJECT: u32 = 0x200;
/// The route is to an address of the host itself (`RTF_ANYCAST`, `RTF_LOCAL`).
const OWN: u32 = 0x8010_0000;

/// The destinations of routes, by interface. A default route stands for all others.
type Routes = BTreeMap<String, Route>;

/// A route over an interface. The default route is the least.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    Default,
    To(String),
}

impl Route {
    fn kind(&self) -> InUseKind {
        match self {
            Self::Default => InUseKind::DefaultRoute,
            Self::To(_) => InUseKind::Route,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Default => "the default route".to_owned(),
            Self::To(destination) => format!("the route to {destination}"),
        }
    }
}

pub(super) fn find(sysfs: &Sysfs, found: &mut HostUse) {
    let routes = routes(sysfs, found);
    let mut missing = Vec::new();
    for (interface, route) in &routes {
        let mut seen = Vec::new();
        if !descend(sysfs, route, [interface, interface], &mut seen, found) {
            missing.push(interface);
        }
    }
    // The interfaces of pods go at any time, and their routes before them.
    let still = if missing.is_empty() { Routes::new() } else { self::routes(sysfs, found) };
    for (interface, route) in missing.into_iter().filter_map(|interface| still.get_key_value(interface)) {
        let message = format!(
            "there is no such interface, but {} goes over it: a container needs the host's sysfs",
            route.text()
        );
        found.problem(sysfs.roots().sys.join("class/net").join(interface), message);
    }
    parts(sysfs, found);
}

/// Reads the usable routes of the host.
fn routes(sysfs: &Sysfs, found: &mut HostUse) -> Routes {
    let mut routes = Routes::new();
    let mut is_known = false;
    for (file, parse) in [("route", v4 as fn(&str) -> Option<(&str, Route)>), ("ipv6_route", v6)] {
        // Of process 1: the namespace of this process may be a pod's.
        let path = sysfs.roots().proc.join("1/net").join(file);
        match read(&path) {
            Ok(text) => {
                is_known |= text.is_some();
                for (interface, route) in text.unwrap_or_default().lines().filter_map(parse) {
                    let known = routes.entry(interface.to_owned()).or_insert_with(|| route.clone());
                    if route == Route::Default {
                        *known = route;
                    }
                }
            }
            Err(error) => {
                is_known = true;
                found.problem(path, error.to_string());
            }
        }
    }
    // A kernel can be without one of them.
    if !is_known {
        found.problem(
            sysfs.roots().proc.join("1/net/route"),
            "there is no such file, so the routes are not known: a container needs the host's procfs",
        );
    }
    routes
}

/// Returns the interface of a route in `/proc/net/route`, which has the numbers in the order of the processor.
fn v4(line: &str) -> Option<(&str, Route)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (interface, flags) = (*fields.first()?, *fields.get(3)?);
    let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
    let (destination, mask) = (number(1)?, number(7)?);
    let route = match mask.count_ones() {
        0 => Route::Default,
        length => Route::To(format!("{}/{length}", Ipv4Addr::from(destination.to_ne_bytes()))),
    };
    is_usable(interface, flags).then_some((interface, route))
}

/// Returns the interface of a route in `/proc/net/ipv6_route`. Every interface that is up has routes to link-local and multicast
/// addresses, so these do not count.
fn v6(line: &str) -> Option<(&str, Route)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (destination, length, flags, interface) = (fields.first()?, fields.get(1)?, fields.get(8)?, fields.get(9)?);
    let destination = Ipv6Addr::from(u128::from_str_radix(destination, 16).ok()?);
    let route = match u8::from_str_radix(length, 16).ok()? {
        0 => Route::Default,
        _ if destination.is_unicast_link_local() || destination.is_multicast() => return None,
        length => Route::To(format!("{destination}/{length}")),
    };
    is_usable(interface, flags).then_some((*interface, route))
}

fn is_usable(interface: &str, flags: &str) -> bool {
    let is_usable = |flags: u32| flags & UP != 0 && flags & (REJECT | OWN) == 0;
    // A route without an interface has a star.
    !matches!(interface, "lo" | "*") && u32::from_str_radix(flags, 16).is_ok_and(is_usable)
}

/// Adds the card of an interface, and those of the interfaces that it is made of: the interface of the route, and the one that is
/// looked at. Returns whether there is such an interface.
fn descend(
    sysfs: &Sysfs,
    route: &Route,
    [of_route, interface]: [&str; 2],
    seen: &mut Vec<String>,
    found: &mut HostUse,
) -> bool {
    if seen.iter().any(|known| known == interface) {
        return true;
    }
    seen.push(interface.to_owned());
    let link = Path::new("class/net").join(interface);
    let Some(path) = target(sysfs, &link) else { return false };
    if let Some(address) = controller(&path) {
        let below = if of_route == interface { String::new() } else { format!(", which is made of {interface}") };
        found.add(address, route.kind(), format!("{} goes over {of_route}{below}", route.text()));
    }
    // Bonds, bridges, VLANs and the like have a link to each interface below.
    for name in names(sysfs, &path) {
        if let Some(lower) = name.strip_prefix("lower_") {
            descend(sysfs, route, [of_route, lower], seen, found);
        }
    }
    true
}

/// Adds the cards of interfaces that are part of others. The interface of a virtual switch that has the route does not tell which
/// cards are in the switch; the cards do.
fn parts(sysfs: &Sysfs, found: &mut HostUse) {
    for interface in names(sysfs, Path::new("class/net")) {
        let Some(path) = target(sysfs, &Path::new("class/net").join(&interface)) else { continue };
        let Some(address) = controller(&path) else { continue };
        let Ok(master) = std::fs::read_link(sysfs.roots().sys.join(&path).join("master")) else { continue };
        let master = super::last(&master).unwrap_or_default();
        found.add(address, InUseKind::Interface, format!("{interface} is part of {master}"));
    }
}
