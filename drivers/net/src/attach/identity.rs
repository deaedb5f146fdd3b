//! How an interface is recognized: by its device and permanent address, never by its name alone.
//!
//! The kernel gives an interface another index if its own is taken where it moves to, and keeps the name of the pod if the
//! namespace ends with the interface in it. What stays is the address on the bus, the permanent hardware address, and
//! the alias, which is set to the claim's mark before anything else is changed.

use std::fmt;

use drakkar_netlink::{BusAddress, HardwareAddress, Link};
use serde::{Deserialize, Serialize};

/// What an interface on the host is recognized by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The name that it has on the host.
    pub name: String,
    /// The index that it has on the host.
    pub index: u32,
    /// The kernel's name of its kind; empty for a device.
    pub kind: String,
    /// The device behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<BusAddress>,
    /// The permanent hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_address: Option<HardwareAddress>,
}

impl From<&Link> for Identity {
    fn from(link: &Link) -> Self {
        Self {
            name: link.name.clone(),
            index: link.index,
            kind: link.kind.name().to_owned(),
            device: link.device.clone(),
            permanent_address: link.permanent_address.clone(),
        }
    }
}

impl Identity {
    /// Returns whether there is something that stays with the interface wherever it is.
    fn is_of_device(&self) -> bool {
        self.device.is_some() || self.permanent_address.is_some()
    }

    /// Returns whether an interface is of the same device. False for all if there is nothing that stays with the interface.
    ///
    /// A device can have several interfaces, which differ in the permanent address.
    pub fn is_device_of(&self, link: &Link) -> bool {
        self.is_of_device()
            && self.kind == link.kind.name()
            && self.device == link.device
            && self.permanent_address == link.permanent_address
    }

    /// Returns whether an interface is of the same kind, and of the same device if there is one. A program in a pod can make
    /// virtual interfaces that are like another, but none that is like a card.
    pub(crate) fn is_like(&self, link: &Link) -> bool {
        self.kind == link.kind.name() && self.device == link.device
    }

    /// Returns whether an interface on the host is this one, as long as nothing has moved or renamed it.
    pub fn is_on_host(&self, link: &Link) -> bool {
        let is_same_place = self.index == link.index && self.kind == link.kind.name() && self.device == link.device;
        // Some drivers of virtual functions change the permanent address with the current one; then the index tells.
        let is_same = is_same_place && (self.name == link.name || self.device.is_some());
        self.is_device_of(link) || is_same
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}", self.name)?;
        match (&self.device, &self.permanent_address) {
            (Some(device), _) => write!(f, " ({} {})", device.bus, device.name),
            (None, Some(address)) => write!(f, " (permanent address {address})"),
            (None, None) => write!(f, " (index {})", self.index),
        }
    }
}
