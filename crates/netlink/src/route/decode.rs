//! Reads a route from a message of the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::DecodeError;

use super::{NextHop, Route, RouteScope, RouteType};
use crate::wire::{AF_INET, AF_INET6, Attribute, align, attributes, u8_at, u16_at, u32_at};

const HEADER: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;

const RTNH_F_ONLINK: u32 = 4;
/// A copy of a route in the kernel's cache.
const RTM_F_CLONED: u32 = 0x200;
/// The length of a next hop's header.
const HOP_HEADER: usize = 8;

/// Reads a route. `None` for those of other protocols than IP, and for cached ones.
pub(crate) fn decode(payload: &[u8]) -> Result<Option<Route>, DecodeError> {
    let family = u8_at(payload, 0)?;
    let prefix = u8_at(payload, 1)?;
    let flags = u32_at(payload, 8)?;
    let everything: IpAddr = match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Ok(None),
    };
    if flags & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut destination = everything;
    let mut route = Route {
        destination: IpNet::new_assert(everything, 0),
        table: u32::from(u8_at(payload, 4)?),
        kind: RouteType::from_number(u8_at(payload, 7)?),
        scope: RouteScope::from_number(u8_at(payload, 6)?),
        protocol: u8_at(payload, 5)?,
        interface: None,
        gateway: None,
        next_hops: Vec::new(),
        source: None,
        metric: None,
        mtu: None,
        on_link: flags & RTNH_F_ONLINK != 0,
    };
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_DST => destination = attribute.ip()?,
            RTA_OIF => route.interface = Some(attribute.u32()?),
            RTA_GATEWAY => route.gateway = Some(attribute.ip()?),
            RTA_VIA => route.gateway = via(attribute)?,
            RTA_PRIORITY => route.metric = Some(attribute.u32()?),
            RTA_PREFSRC => route.source = Some(attribute.ip()?),
            RTA_TABLE => route.table = attribute.u32()?,
            RTA_METRICS => route.mtu = mtu(attribute)?,
            RTA_MULTIPATH => route.next_hops = next_hops(attribute.value)?,
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, prefix)
        .map_err(|error| DecodeError::from(format!("prefix length {prefix}: {error}")))?;
    if let Some(first) = route.next_hops.first() {
        route.interface = route.interface.or(Some(first.interface));
        route.gateway = route.gateway.or(first.gateway);
    }
    Ok(Some(route))
}

/// A router of another family than the destination's: the family, then the address.
fn via(attribute: Attribute<'_>) -> Result<Option<IpAddr>, DecodeError> {
    let address = attribute.value.get(2..).unwrap_or_default();
    Attribute { kind: attribute.kind, value: address }.ip().map(Some)
}

fn mtu(attribute: Attribute<'_>) -> Result<Option<u32>, DecodeError> {
    for metric in attribute.nested() {
        let metric = metric?;
        if metric.kind == RTAX_MTU {
            return metric.u32().map(Some);
        }
    }
    Ok(None)
}

fn next_hops(mut bytes: &[u8]) -> Result<Vec<NextHop>, DecodeError> {
    let mut hops = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16_at(bytes, 0)?);
        let interface = u32_at(bytes, 4)?;
        let hop = bytes.get(..length.max(HOP_HEADER)).ok_or_else(|| DecodeError::from("next hop is cut off"))?;
        let mut gateway = None;
        for attribute in attributes(hop, HOP_HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                RTA_GATEWAY => gateway = Some(attribute.ip()?),
                RTA_VIA => gateway = via(attribute)?,
                _ => {}
            }
        }
        hops.push(NextHop { interface, gateway });
        bytes = bytes.get(align(length.max(HOP_HEADER), 4)..).unwrap_or_default();
    }
    Ok(hops)
}
