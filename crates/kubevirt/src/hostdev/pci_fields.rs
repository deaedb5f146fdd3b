//! The text of PCI addresses, as libvirt's `<address>` element has it.

use std::fmt;

use drakkar_metadata::PciAddress;

use crate::behaviour::Behaviour;

/// The highest device number (slot) of a PCI bus. libvirt refuses a domain with a higher one.
const MAX_SLOT: u8 = 0x1f;

/// The fields of a PCI `<address>`, as the text of its attributes.
///
/// The text is kept because KubeVirt writes it unchanged, in whatever case the driver has chosen. A guest's address can
/// also have a decimal bus: the index of a root port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciFields {
    /// The domain, for example `0x0000`.
    pub domain: String,
    /// The bus, for example `0x65`, or the index of a controller, for example `9`.
    pub bus: String,
    /// The slot, for example `0x1f`.
    pub slot: String,
    /// The function, for example `0x0`.
    pub function: String,
}

/// A text that is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PciTextError {
    /// The text has another form.
    #[error("{0:?} is not a PCI address: it must have the form DDDD:BB:SS.F, for example 0000:65:00.0")]
    Form(String),
    /// The slot is higher than any PCI bus has.
    #[error(
        "PCI address {text:?} has slot 0x{slot:02x}, but a bus has only the slots 0x00 to 0x1f, and libvirt refuses others"
    )]
    Slot {
        /// The text.
        text: String,
        /// Its slot.
        slot: u8,
    },
}

impl PciFields {
    /// Parses `DDDD:BB:SS.F`: four, two and two hexadecimal digits in any case, and a digit from 0 to 7.
    ///
    /// Released KubeVirt accepts slots above 0x1f, and libvirt then refuses the domain. [`Behaviour::Extended`] refuses
    /// them here.
    pub fn parse(text: &str, behaviour: Behaviour) -> Result<Self, PciTextError> {
        let form = || PciTextError::Form(text.to_owned());
        let (domain, bus, slot, function) = split(text).ok_or_else(form)?;
        if behaviour == Behaviour::Extended {
            let number = u8::from_str_radix(slot, 16).ok().ok_or_else(form)?;
            if number > MAX_SLOT {
                return Err(PciTextError::Slot { text: text.to_owned(), slot: number });
            }
        }
        let prefixed = |digits: &str| format!("0x{digits}");
        Ok(Self { domain: prefixed(domain), bus: prefixed(bus), slot: prefixed(slot), function: prefixed(function) })
    }

    /// Creates a guest's address: function 0 of a slot of a bus, in domain 0.
    pub fn guest(bus: impl Into<String>, slot: u8) -> Self {
        Self { domain: "0x0000".to_owned(), bus: bus.into(), slot: format!("0x{slot:02x}"), function: "0x0".to_owned() }
    }

    /// Returns the address as a value; `None` if the slot is above 0x1f, or for a guest's address with a decimal bus.
    pub fn address(&self) -> Option<PciAddress> {
        self.to_string().parse().ok()
    }

    /// Returns the address as libvirt prints it: in lower case.
    #[must_use]
    pub fn to_lowercase(&self) -> Self {
        let Self { domain, bus, slot, function } = self;
        Self {
            domain: domain.to_ascii_lowercase(),
            bus: bus.to_ascii_lowercase(),
            slot: slot.to_ascii_lowercase(),
            function: function.to_ascii_lowercase(),
        }
    }
}

/// Prints `DDDD:BB:SS.F`, the name of a device in sysfs if it is in lower case.
impl fmt::Display for PciFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn digits(text: &str) -> &str {
            text.strip_prefix("0x").unwrap_or(text)
        }
        let Self { domain, bus, slot, function } = self;
        write!(f, "{}:{}:{}.{}", digits(domain), digits(bus), digits(slot), digits(function))
    }
}

fn split(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (slot, function) = rest.split_once('.')?;
    let is_hex = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_function = matches!(function.as_bytes(), [b'0'..=b'7']);
    let fits = is_hex(domain, 4) && is_hex(bus, 2) && is_hex(slot, 2) && is_function;
    fits.then_some((domain, bus, slot, function))
}
