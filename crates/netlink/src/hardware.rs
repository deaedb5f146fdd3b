//! Hardware addresses: six octets for Ethernet, twenty for InfiniBand.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maximum length of a hardware address in octets (the kernel's `MAX_ADDR_LEN`).
const MAX_LENGTH: usize = 32;

/// A hardware address, written as octets with colons: `02:00:5e:10:00:01`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HardwareAddress(Vec<u8>);

/// A text or a number of octets that is no hardware address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hardware address: expected octets with colons, such as 02:00:5e:10:00:01")]
pub struct HardwareAddressError(String);

impl HardwareAddress {
    /// Makes an address of 1 to 32 octets.
    pub fn new(octets: impl Into<Vec<u8>>) -> Result<Self, HardwareAddressError> {
        let octets = octets.into();
        if (1..=MAX_LENGTH).contains(&octets.len()) {
            Ok(Self(octets))
        } else {
            Err(HardwareAddressError(format!("{} octets", octets.len())))
        }
    }

    /// Returns the octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether this is the address of one Ethernet interface: six octets, not a group address and not zero.
    pub fn is_ethernet_unicast(&self) -> bool {
        self.0.len() == 6 && self.0[0] & 1 == 0 && !self.is_zero()
    }

    /// Returns whether all octets are zero, as for the loopback interface.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|octet| *octet == 0)
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(":")?;
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HardwareAddress {
    type Err = HardwareAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || HardwareAddressError(text.to_owned());
        let octet = |part: &str| {
            let is_octet = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_octet.then(|| u8::from_str_radix(part, 16).ok()).flatten().ok_or_else(error)
        };
        let octets: Vec<u8> = text.split(':').map(octet).collect::<Result<_, _>>()?;
        Self::new(octets).ok().ok_or_else(error)
    }
}

impl TryFrom<String> for HardwareAddress {
    type Error = HardwareAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HardwareAddress> for String {
    fn from(address: HardwareAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("02:00:5E:10:00:01", "02:00:5e:10:00:01")]
    #[case(
        "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01",
        "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01"
    )]
    fn an_address_is_read_and_written(#[case] text: &str, #[case] written: &str) {
        assert_eq!(text.parse::<HardwareAddress>().unwrap().to_string(), written);
    }

    #[rstest]
    #[case("")]
    #[case("02:00:5e:10:00:1")]
    #[case("02:00:5e:10:00:+1")]
    #[case("02-00-5e-10-00-01")]
    #[case("02:00:5e:10:00:01:")]
    fn a_text_that_is_no_address_is_refused(#[case] text: &str) {
        assert!(text.parse::<HardwareAddress>().is_err());
    }

    #[test]
    fn group_and_zero_addresses_are_not_of_one_interface() {
        assert!("02:00:5e:10:00:01".parse::<HardwareAddress>().unwrap().is_ethernet_unicast());
        assert!(!"01:00:5e:10:00:01".parse::<HardwareAddress>().unwrap().is_ethernet_unicast());
        assert!(!"00:00:00:00:00:00".parse::<HardwareAddress>().unwrap().is_ethernet_unicast());
    }
}
