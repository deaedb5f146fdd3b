//! PCI addresses.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::DeviceAttribute;

/// The address of a PCI device: domain, bus, device, function.
///
/// It is parsed in either case, and printed as the kernel does: in lower case, with four digits of the domain or as many as it
/// needs (behind Intel VMD and on Hyper-V that can be more).
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

/// Parses a hexadecimal number of so many digits.
fn hex(text: &str, digits: RangeInclusive<usize>) -> Option<u32> {
    let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}
