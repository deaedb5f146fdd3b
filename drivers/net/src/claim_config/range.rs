//! The addresses of a range, as spans: an IPv6 network has too many to go through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::values::AddressRange;

/// Addresses from the first to the last, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u128,
    last: u128,
}

impl Span {
    fn of(network: &IpNet) -> Self {
        Self { first: number(network.network()), last: number(network.broadcast()) }
    }

    fn count(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }
}

impl AddressRange {
    /// Returns the number of addresses that can be handed out.
    pub fn size(&self) -> u128 {
        self.spans().into_iter().map(Span::count).fold(0, u128::saturating_add)
    }

    /// Returns the address at a place among those that can be handed out, from 0.
    pub fn nth(&self, place: u128) -> Option<IpAddr> {
        let mut left = place;
        for span in self.spans() {
            if left < span.count() {
                return Some(self.address(span.first + left));
            }
            left -= span.count();
        }
        None
    }

    /// Returns whether an address can be handed out.
    pub fn contains(&self, address: IpAddr) -> bool {
        let number = number(address);
        let is_inside = |span: Span| (span.first..=span.last).contains(&number);
        address.is_ipv4() == self.subnet.addr().is_ipv4() && self.spans().into_iter().any(is_inside)
    }

    /// The addresses that can be handed out, in order: from first to last, without the network, its broadcast address, the gateway and
    /// what is excluded.
    fn spans(&self) -> Vec<Span> {
        let network = Span::of(&self.subnet);
        let first = self.first.map_or(network.first, number).max(network.first);
        let last = self.last.map_or(network.last, number).min(network.last);
        let mut excluded: Vec<Span> = self.exclude.iter().map(Span::of).collect();
        excluded.extend(self.gateway.map(|gateway| Span::of(&gateway.into())));
        if self.subnet.prefix_len() < self.subnet.max_prefix_len() - 1 {
            excluded.push(Span { first: network.first, last: network.first });
            if self.subnet.addr().is_ipv4() {
                excluded.push(Span { first: network.last, last: network.last });
            }
        }
        excluded.sort_unstable_by_key(|span| span.first);
        let mut spans = Vec::new();
        // The next address that may be free; `None` behind the last of all.
        let mut next = Some(first);
        for hole in excluded.into_iter().filter(|hole| hole.first <= last) {
            let Some(from) = next else { break };
            if hole.first > from {
                spans.push(Span { first: from, last: hole.first - 1 });
            }
            if hole.last >= from {
                next = hole.last.checked_add(1);
            }
        }
        spans.extend(next.filter(|from| *from <= last).map(|from| Span { first: from, last }));
        spans
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.subnet {
            // A span of IPv4 has 32 bits.
            IpNet::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            IpNet::V6(_) => Ipv6Addr::from(number).into(),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(
        subnet: &str,
        first: Option<&str>,
        last: Option<&str>,
        gateway: Option<&str>,
        exclude: &[&str],
    ) -> AddressRange {
        let address = |text: &str| text.parse().unwrap();
        AddressRange {
            subnet: subnet.parse().unwrap(),
            first: first.map(address),
            last: last.map(address),
            gateway: gateway.map(address),
            exclude: exclude.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn all(range: &AddressRange) -> Vec<String> {
        (0..range.size()).map(|place| range.nth(place).unwrap().to_string()).collect()
    }

    #[test]
    fn network_broadcast_gateway_and_exclusions_are_not_handed_out() {
        let range = range("192.0.2.0/29", None, None, Some("192.0.2.1"), &["192.0.2.4/31"]);
        assert_eq!(all(&range), ["192.0.2.2", "192.0.2.3", "192.0.2.6"]);
        assert_eq!(range.nth(3), None);
        assert!(range.contains("192.0.2.3".parse().unwrap()) && !range.contains("192.0.2.4".parse().unwrap()));
    }

    #[test]
    fn small_networks_are_used_whole() {
        assert_eq!(all(&range("192.0.2.8/31", None, None, None, &[])), ["192.0.2.8", "192.0.2.9"]);
        assert_eq!(all(&range("192.0.2.8/32", None, None, None, &[])), ["192.0.2.8"]);
        assert_eq!(all(&range("2001:db8::/127", None, None, None, &[])), ["2001:db8::", "2001:db8::1"]);
    }

    #[test]
    fn an_ipv6_network_is_not_gone_through() {
        let large = range("2001:db8::/64", None, None, None, &["2001:db8::/65"]);
        assert_eq!(large.size(), 1 << 63);
        assert_eq!(large.nth(0), Some("2001:db8::8000:0:0:0".parse().unwrap()));
        assert_eq!(range("::/0", None, None, None, &["::/1", "8000::/1"]).size(), 0);
        assert_eq!(range("::/0", None, None, None, &[]).size(), u128::MAX);
    }

    proptest! {
        #[test]
        fn spans_are_what_counting_gives(
            first in 0u8..=255, last in 0u8..=255, gateway in 0u8..=255, holes in prop::collection::vec((0u8..=255, 24u8..=32), 0..5),
        ) {
            let address = |last: u8| IpAddr::from([192, 0, 2, last]);
            let exclude: Vec<IpNet> = holes.iter().map(|(last, prefix)| IpNet::new(address(*last), *prefix).unwrap().trunc()).collect();
            let range = AddressRange {
                subnet: "192.0.2.0/24".parse().unwrap(),
                first: Some(address(first)),
                last: Some(address(last)),
                gateway: Some(address(gateway)),
                exclude: exclude.clone(),
            };
            let is_free = |number: &u8| {
                (first..=last).contains(number) && !matches!(*number, 0 | 255) && *number != gateway
                    && !exclude.iter().any(|hole| hole.contains(&address(*number)))
            };
            let expected: Vec<IpAddr> = (0..=255u8).filter(is_free).map(address).collect();
            let found: Vec<IpAddr> = (0..range.size()).map(|place| range.nth(place).unwrap()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
