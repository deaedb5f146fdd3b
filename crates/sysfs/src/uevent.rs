//! The kernel's messages about devices that come, go and change.
//!
//! They come over netlink and are sent to every network namespace that belongs to the initial user namespace, so a driver in a
//! pod gets them without the host's network. What the kernel could not deliver, it reports: [`Uevent::Overflow`].

mod parse;
mod socket;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use self::parse::ParseUeventError;
pub use self::socket::{UeventError, UeventSocket};

/// A message of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uevent {
    /// Something happened to a device.
    Device(DeviceEvent),
    /// Messages were lost, because they came faster than they were read: scan again.
    Overflow,
}

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvent {
    /// What happened.
    pub action: Action,
    /// The directory of the device below sysfs, relative: `devices/pci0000:64/0000:64:00.0/0000:65:00.0`.
    pub path: PathBuf,
    /// The subsystem, such as `pci`, `mdev`, `net`.
    pub subsystem: String,
    /// All properties, such as `DRIVER`, `PCI_SLOT_NAME`, `MODALIAS`.
    pub properties: BTreeMap<String, String>,
}

/// What happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is new.
    Add,
    /// It is gone.
    Remove,
    /// It has changed.
    Change,
    /// It has another name.
    Move,
    /// It is online.
    Online,
    /// It is offline.
    Offline,
    /// A driver has taken it.
    Bind,
    /// Its driver has left it.
    Unbind,
    /// Something that is not known here: look at the device.
    Other,
}

impl DeviceEvent {
    /// Returns a property, such as `DRIVER` or `PCI_SLOT_NAME`.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }
}
