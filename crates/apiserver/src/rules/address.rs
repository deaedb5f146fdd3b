//! Addresses of network interfaces in CIDR form: `10.9.8.7/24`, `2001:db8::1/64`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::field::quoted;

/// Validates an address. Returns the problem, if any.
pub(super) fn interface_address(text: &str) -> Option<String> {
    let Some(canonical) = canonical(text) else {
        return Some("must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)".to_owned());
    };
    (text != canonical).then(|| format!("must be in canonical form ({})", quoted(&canonical)))
}

fn canonical(text: &str) -> Option<String> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || prefix.len() > 8 || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let prefix: u8 = prefix.parse().ok()?;
    if let Some(address) = parse_v4(address) {
        return (prefix <= 32).then(|| format!("{address}/{prefix}"));
    }
    let address = parse_v6(address)?;
    if prefix > 128 {
        return None;
    }
    // Go converts an IPv4-mapped IPv6 address to IPv4, and its prefix length accordingly.
    Some(match address.to_canonical() {
        IpAddr::V4(address) => {
            let prefix = i16::from(prefix);
            format!("{address}/{}", if prefix > 32 { prefix - 96 } else { prefix })
        }
        IpAddr::V6(address) => format!("{}/{prefix}", format_v6(address)),
    })
}

/// Parses an IPv4 address. Leading zeros are allowed, as in Go's legacy parser.
fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<_> = text.split('.').collect();
    let [a, b, c, d] = parts[..] else { return None };
    let byte = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits
            .then(|| part.trim_start_matches('0'))
            .and_then(|part| if part.is_empty() { Some(0) } else { part.parse().ok() })
    };
    Some(Ipv4Addr::new(byte(a)?, byte(b)?, byte(c)?, byte(d)?))
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    text.parse().ok()
}

/// Formats an IPv6 address like Go: unlike Rust, never with an IPv4 part.
fn format_v6(address: Ipv6Addr) -> String {
    let segments = address.segments();
    let mut longest = 0..0;
    let mut at = 0;
    while at < segments.len() {
        let zeros = segments[at..].iter().take_while(|segment| **segment == 0).count();
        // `::` replaces the first of the longest runs of at least two zeros.
        if zeros > longest.len() && zeros > 1 {
            longest = at..at + zeros;
        }
        at += zeros.max(1);
    }
    let hex = |segments: &[u16]| segments.iter().map(|segment| format!("{segment:x}")).collect::<Vec<_>>().join(":");
    if longest.is_empty() {
        return hex(&segments);
    }
    format!("{}::{}", hex(&segments[..longest.start]), hex(&segments[longest.end..]))
}
