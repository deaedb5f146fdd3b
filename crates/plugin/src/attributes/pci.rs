//! Where a PCI device is: its address and its root complex.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use drakkar_metadata::DeviceAttribute;

use super::{AttributeError, Sysfs};

/// The address of a PCI device: domain, bus, device, function.
///
/// Read in either case, and written as the kernel does: in lower case, with four digits of the domain or as many as it needs
/// (behind Intel VMD and on Hyper-V that can be more).
///
/// ```
/// # use drakkar_plugin::attributes::PciAddress;
/// let address: PciAddress = "0000:3B:00.1".parse()?;
/// assert_eq!(address.to_string(), "0000:3b:00.1");
/// # Ok::<(), drakkar_plugin::attributes::AttributeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// The value of [`super::PCI_BUS_ID`].
    pub fn attribute(&self) -> DeviceAttribute {
        self.to_string().into()
    }
}

impl FromStr for PciAddress {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let address = Self {
                domain: number(domain, 4..=8)?,
                bus: number(bus, 2..=2)?.try_into().ok()?,
                device: number(device, 2..=2)?.try_into().ok()?,
                function: number(function, 1..=1)?.try_into().ok()?,
            };
            (address.device <= 0x1f && address.function <= 7).then_some(address)
        };
        parse().ok_or_else(|| AttributeError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function))
    }
}

/// A hexadecimal number of so many digits.
fn number(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_number = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl Sysfs {
    /// The value of [`super::PCIE_ROOT`]: the root complex that the device is behind, `pci0000:60`.
    ///
    /// It is the nearest one: devices behind Intel VMD have one of their own below another.
    pub fn pcie_root(&self, address: &PciAddress) -> Result<DeviceAttribute, AttributeError> {
        let link = self.pci_device(address);
        let target = std::fs::read_link(&link).map_err(|source| AttributeError::Read { path: link.clone(), source })?;
        let target = resolved(&self.path("bus/pci/devices"), &target);
        let devices = self.path("devices");
        let root = target.strip_prefix(&devices).ok().and_then(|below| root_of(below, address)).map(str::to_owned);
        root.map(DeviceAttribute::from).ok_or(AttributeError::NotBelowRoot { path: link, target, root: devices })
    }

    /// The link to a device among all PCI devices.
    pub(super) fn pci_device(&self, address: &PciAddress) -> PathBuf {
        self.path("bus/pci/devices").join(address.to_string())
    }
}

/// The last component before the device that is a root complex, if the path is that of the device.
fn root_of<'a>(path: &'a Path, address: &PciAddress) -> Option<&'a str> {
    let is_device = path.file_name().and_then(|name| name.to_str()) == Some(address.to_string().as_str());
    let components = path.components().rev().skip(1).filter_map(|component| component.as_os_str().to_str());
    components.filter(|_| is_device).find(|component| is_root(component))
}

/// `pci`, a domain and a bus.
fn is_root(name: &str) -> bool {
    let parts = name.strip_prefix("pci").and_then(|name| name.split_once(':'));
    parts.is_some_and(|(domain, bus)| number(domain, 4..=8).is_some() && number(bus, 2..=2).is_some())
}

/// The target of a link in a directory, by its words alone: the tree of a test is not where links say that it is.
fn resolved(directory: &Path, target: &Path) -> PathBuf {
    let mut path = directory.to_owned();
    for component in target.components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            component => path.push(component),
        }
    }
    path
}
