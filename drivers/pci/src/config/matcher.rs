//! Matching devices: by address, ids, class, kernel driver and a CEL expression.

use drakkar_cel::{DeviceValue, SelectorError};
use drakkar_driver_kit::config::pattern::{AddressPattern, Cel, DriverPattern, NamePattern, any};
use drakkar_sysfs::PciDevice;
use serde::Deserialize;

use super::class::ClassPattern;

/// A condition for devices. All fields that are set must match; of a list, one entry.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Match {
    /// Addresses: `0000:65:00.0`, `0000:65:*`.
    pub addresses: Vec<AddressPattern>,
    /// Vendor and device ids: `10de:2236`, `10de:*`.
    pub ids: Vec<IdPattern>,
    /// Classes: `display`, `nvme`, `0x0302`.
    pub classes: Vec<ClassPattern>,
    /// Kernel drivers that the device has when no claim uses it: `nouveau`, `mlx5_*`, `none` for no driver.
    pub drivers: Vec<DriverPattern>,
    /// Names of devices that are no PCI devices and have types of mediated devices: `mtty`.
    pub parents: Vec<NamePattern>,
    /// An expression over the attributes that are published of the device.
    pub cel: Option<Cel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    addresses: Vec<AddressPattern>,
    #[serde(default)]
    ids: Vec<IdPattern>,
    #[serde(default)]
    classes: Vec<ClassPattern>,
    #[serde(default)]
    drivers: Vec<DriverPattern>,
    #[serde(default)]
    parents: Vec<NamePattern>,
    cel: Option<Cel>,
}

impl TryFrom<Fields> for Match {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { addresses, ids, classes, drivers, parents, cel } = fields;
        let is_pci = !(addresses.is_empty() && ids.is_empty() && classes.is_empty() && drivers.is_empty());
        if !parents.is_empty() && is_pci {
            return Err("parents are no PCI devices: they cannot be matched by addresses, ids, classes or drivers; \
                        write a rule of its own"
                .to_owned());
        }
        if !is_pci && parents.is_empty() && cel.is_none() {
            return Err("it matches everything: set one of addresses, ids, classes, drivers, parents and cel \
                        (for all PCI devices that the host does not use, addresses: ['*'])"
                .to_owned());
        }
        Ok(Self { addresses, ids, classes, drivers, parents, cel })
    }
}

/// What a device is matched by.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// A PCI device.
    Pci {
        /// The device.
        device: &'a PciDevice,
        /// The kernel driver that the device has when no claim uses it.
        driver: Option<&'a str>,
    },
    /// A parent of mediated devices that is no PCI device, by name.
    Parent(&'a str),
}

impl Match {
    /// Returns whether a device with these attributes matches. An expression that fails, because the device lacks an attribute
    /// for example, is an error and not a mismatch.
    pub fn matches(&self, subject: Subject<'_>, attributes: &DeviceValue) -> Result<bool, SelectorError> {
        let matches = match subject {
            Subject::Pci { device, driver } => {
                let address = device.address.to_string();
                self.parents.is_empty()
                    && any(&self.addresses, |pattern| pattern.matches(&address))
                    && any(&self.ids, |pattern| pattern.matches(device.vendor, device.device))
                    && any(&self.classes, |pattern| pattern.matches(device.class))
                    && any(&self.drivers, |pattern| pattern.matches(driver))
            }
            Subject::Parent(name) => self.parents.iter().any(|pattern| pattern.matches(name)),
        };
        match &self.cel {
            Some(cel) if matches => cel.matches(attributes),
            _ => Ok(matches),
        }
    }
}

/// A pattern for vendor and device ids, as `lspci -n` prints them: four digits or `*` each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct IdPattern {
    vendor: Option<u16>,
    device: Option<u16>,
}

impl IdPattern {
    fn matches(&self, vendor: u16, device: u16) -> bool {
        self.vendor.is_none_or(|id| id == vendor) && self.device.is_none_or(|id| id == device)
    }
}

impl TryFrom<String> for IdPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let id = |text: &str| match text {
            "*" => Some(None),
            digits if digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                u16::from_str_radix(digits, 16).ok().map(Some)
            }
            _ => None,
        };
        let parsed = text.split_once(':').and_then(|(vendor, device)| Some((id(vendor)?, id(device)?)));
        match parsed {
            Some((vendor, device)) => Ok(Self { vendor, device }),
            None => Err(format!(
                "{text:?} is no pattern for ids: it is VENDOR:DEVICE with four hexadecimal digits or * each, such as 10de:2236 \
                 or 10de:* (quote it in YAML)"
            )),
        }
    }
}
