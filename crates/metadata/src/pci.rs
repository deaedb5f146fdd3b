//! The addresses of PCI devices.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::DeviceAttribute;

/// The address of a PCI device: domain, bus, device, function.
///
/// Parsing accepts upper and lower case. It is printed as by the kernel: in lower case, the domain with four digits, or
/// with up to eight where it needs them (behind Intel VMD and on Hyper-V).
///
/// ```
/// # use drakkar_metadata::PciAddress;
/// let address: PciAddress = "0000:3B:00.1".parse()?;
/// assert_eq!(address.to_string(), "0000:3b:00.1");
/// # Ok::<(), drakkar_metadata::PciAddressError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a PCI address: it has the form 0000:65:00.0, with a device of at most 1f and a function of at most 7"
)]
pub struct PciAddressError {
    text: String,
}

impl PciAddress {
    /// Returns the value of the attribute `resource.kubernetes.io/pciBusID`.
    pub fn attribute(&self) -> DeviceAttribute {
        self.to_string().into()
    }

    /// Returns the domain.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// Returns the bus.
    pub fn bus(&self) -> u8 {
        self.bus
    }

    /// Returns the device, also called slot.
    pub fn device(&self) -> u8 {
        self.device
    }

    /// Returns the function.
    pub fn function(&self) -> u8 {
        self.function
    }

    /// Returns whether a text names a PCI root complex: `pci`, a domain and a bus, as in `pci0000:60`.
    pub fn is_root_complex(text: &str) -> bool {
        let parts = text.strip_prefix("pci").and_then(|text| text.split_once(':'));
        parts.is_some_and(|(domain, bus)| hex(domain, 4..=8).is_some() && hex(bus, 2..=2).is_some())
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let address = Self {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)?.try_into().ok()?,
                device: hex(device, 2..=2)?.try_into().ok()?,
                function: hex(function, 1..=1)?.try_into().ok()?,
            };
            (address.device <= 0x1f && address.function <= 7).then_some(address)
        };
        parse().ok_or_else(|| PciAddressError { text: text.to_owned() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function))
    }
}

/// Parses a hexadecimal number whose number of digits is in a range.
fn hex(text: &str, digits: RangeInclusive<usize>) -> Option<u32> {
    let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0000:65:00.0", "0000:65:00.0")]
    #[case("0000:3B:1F.7", "0000:3b:1f.7")]
    #[case("10000:e1:00.0", "10000:e1:00.0")]
    #[case("00010000:e1:00.0", "10000:e1:00.0")]
    #[case("ffffffff:00:00.0", "ffffffff:00:00.0")]
    fn an_address_is_printed_as_the_kernel_does(#[case] text: &str, #[case] expected: &str) {
        let address: PciAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), expected);
        assert_eq!(address.attribute(), expected.into());
    }

    #[rstest]
    #[case::empty("")]
    #[case::words("not-an-address")]
    #[case::without_domain("65:00.0")]
    #[case::short_domain("000:65:00.0")]
    #[case::long_domain("000000000:65:00.0")]
    #[case::bus("0000:165:00.0")]
    #[case::device_above_1f("0000:65:20.0")]
    #[case::function_above_7("0000:65:00.8")]
    #[case::long_function("0000:65:00.00")]
    #[case::sign("+000:65:00.0")]
    #[case::space("0000:65:00.0 ")]
    #[case::path("0000:65:00.0/..")]
    fn a_text_that_is_not_an_address_is_refused(#[case] text: &str) {
        let error = text.parse::<PciAddress>().unwrap_err();
        assert!(error.to_string().contains(&format!("{text:?} is not a PCI address")), "{error}");
    }
}
