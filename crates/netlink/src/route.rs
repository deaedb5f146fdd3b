//! Routes.

mod decode;
mod kind;

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteVia,
};
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, encode};
use crate::error::Result;

pub(crate) use self::decode::decode;
pub use self::kind::{RouteScope, RouteType};

pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

/// The number of the main table.
pub const TABLE_MAIN: u32 = 254;
/// The number of the table of the host's own addresses, which the kernel fills.
pub const TABLE_LOCAL: u32 = 255;
/// The origin "configured by an administrator" (`RTPROT_STATIC`).
const PROTOCOL_STATIC: u8 = 4;
const PROTOCOL_KERNEL: u8 = 2;

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination; of prefix length 0 for a default route.
    pub destination: IpNet,
    /// The table.
    pub table: u32,
    /// The kind.
    pub kind: RouteType,
    /// The scope.
    pub scope: RouteScope,
    /// The origin (`RTPROT_…`): 2 the kernel, 3 boot, 4 an administrator, 9 a router, 16 DHCP.
    pub protocol: u8,
    /// The index of the interface, of the first next hop if there are several.
    pub interface: Option<u32>,
    /// The router, of the first next hop if there are several.
    pub gateway: Option<IpAddr>,
    /// All next hops, if there are several.
    pub next_hops: Vec<NextHop>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The metric.
    pub metric: Option<u32>,
    /// The MTU.
    pub mtu: Option<u32>,
    /// Whether the router counts as reachable on the interface.
    pub on_link: bool,
}

/// One of several next hops of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// The index of the interface.
    pub interface: u32,
    /// The router.
    pub gateway: Option<IpAddr>,
}

/// A route to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewRoute {
    /// The destination; of prefix length 0 for a default route.
    pub destination: IpNet,
    /// The table.
    pub table: u32,
    /// The kind.
    pub kind: RouteType,
    /// The scope. `None`: on the link without a router, else global.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RouteScope>,
    /// The origin (`RTPROT_…`).
    pub protocol: u8,
    /// The index of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
    /// The router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// The MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Takes the router for reachable on the interface.
    #[serde(default)]
    pub on_link: bool,
}

impl Route {
    /// Returns whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.destination.prefix_len() == 0 && self.kind == RouteType::Unicast
    }

    /// Returns whether the kernel made it, for an address or an interface, and makes it again with that.
    pub fn is_automatic(&self) -> bool {
        self.protocol == PROTOCOL_KERNEL
    }

    /// Returns whether it goes over an interface.
    pub fn uses(&self, index: u32) -> bool {
        self.interface == Some(index) || self.next_hops.iter().any(|hop| hop.interface == index)
    }
}

impl NewRoute {
    /// A route of the main table over an interface, with all defaults.
    pub fn new(destination: IpNet, interface: u32) -> Self {
        Self {
            destination,
            table: TABLE_MAIN,
            kind: RouteType::Unicast,
            scope: None,
            protocol: PROTOCOL_STATIC,
            interface: Some(interface),
            gateway: None,
            source: None,
            metric: None,
            mtu: None,
            on_link: false,
        }
    }
}

impl From<&Route> for NewRoute {
    /// Of several next hops only the first is taken.
    fn from(route: &Route) -> Self {
        Self {
            destination: route.destination,
            table: route.table,
            kind: route.kind,
            scope: Some(route.scope),
            protocol: route.protocol,
            interface: route.interface,
            gateway: route.gateway,
            source: route.source,
            metric: route.metric,
            mtu: route.mtu,
            on_link: route.on_link,
        }
    }
}

impl Connection {
    /// Returns the routes of all tables.
    pub fn routes(&mut self) -> Result<Vec<Route>> {
        let mut routes = self.dump_routes(AddressFamily::Inet, None)?;
        routes.extend(self.dump_routes(AddressFamily::Inet6, None)?);
        Ok(routes)
    }

    /// Returns the routes of all tables that go over an interface.
    pub fn routes_of(&mut self, index: u32) -> Result<Vec<Route>> {
        let mut routes = self.dump_routes(AddressFamily::Inet, Some(index))?;
        routes.extend(self.dump_routes(AddressFamily::Inet6, Some(index))?);
        Ok(routes)
    }

    fn dump_routes(&mut self, family: AddressFamily, interface: Option<u32>) -> Result<Vec<Route>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.attributes.extend(interface.map(RouteAttribute::Oif));
        let operation = format_args!("list routes");
        let dump = self.socket.dump(operation, RTM_GETROUTE, &encode(&message), |bytes| {
            decode(bytes).map(|route| route.filter(|route| interface.is_none_or(|index| route.uses(index))))
        });
        match dump {
            // A filter by an interface that does not exist, or a kernel without IPv6.
            Err(error) if error.is_not_found() || error.is_unsupported() => Ok(Vec::new()),
            dump => dump,
        }
    }

    /// Adds a route. One that is there already is an error ([`already_exists`](crate::Error::already_exists)).
    pub fn add_route(&mut self, route: &NewRoute) -> Result<()> {
        let operation = format_args!("add route to {} in table {}{}", route.destination, route.table, Over(route));
        self.socket.change(operation, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &encode(&message(route)))
    }

    /// Deletes a route.
    pub fn delete_route(&mut self, route: &NewRoute) -> Result<()> {
        let operation = format_args!("delete route to {} in table {}{}", route.destination, route.table, Over(route));
        self.socket.change(operation, RTM_DELROUTE, 0, &encode(&message(route)))
    }
}

fn message(route: &NewRoute) -> RouteMessage {
    let mut message = RouteMessage::default();
    let is_ipv4 = route.destination.addr().is_ipv4();
    let scope = match route.scope {
        Some(scope) => scope,
        None if is_ipv4 && route.gateway.is_none() && route.kind == RouteType::Unicast => RouteScope::Link,
        None => RouteScope::Global,
    };
    let header = &mut message.header;
    header.address_family = if is_ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    header.destination_prefix_length = route.destination.prefix_len();
    // A number that does not fit is in the attribute alone.
    header.table = u8::try_from(route.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    header.protocol = route.protocol.into();
    header.scope = scope.number().into();
    header.kind = route.kind.number().into();
    header.flags.set(RouteFlags::Onlink, route.on_link);
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Table(route.table));
    if route.destination.prefix_len() > 0 {
        attributes.push(RouteAttribute::Destination(address(route.destination.network())));
    }
    match route.gateway {
        // An IPv4 destination behind an IPv6 router.
        Some(IpAddr::V6(gateway)) if is_ipv4 => attributes.push(RouteAttribute::Via(RouteVia::Inet6(gateway))),
        Some(gateway) => attributes.push(RouteAttribute::Gateway(address(gateway))),
        None => {}
    }
    attributes.extend(route.source.map(address).map(RouteAttribute::PrefSource));
    attributes.extend(route.interface.map(RouteAttribute::Oif));
    attributes.extend(route.metric.map(RouteAttribute::Priority));
    attributes.extend(route.mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
    message
}

fn address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

struct Over<'a>(&'a NewRoute);

impl std::fmt::Display for Over<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(gateway) = self.0.gateway {
            write!(f, " via {gateway}")?;
        }
        self.0.interface.map_or(Ok(()), |interface| write!(f, " over the interface with index {interface}"))
    }
}
