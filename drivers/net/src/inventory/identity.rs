//! How an interface is recognized.

use std::fmt;

use drakkar_netlink::{BusAddress, HardwareAddress};
use serde::{Deserialize, Serialize};

/// How the interface of a device is recognized. Its name alone never does: anybody can rename it, and another interface can get
/// the name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Its name on the host.
    pub name: String,
    /// Its index on the host. 0 for a PCI function without an interface.
    pub index: u32,
    /// The device behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<BusAddress>,
    /// The hardware address that the device was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_address: Option<HardwareAddress>,
}

impl Identity {
    /// Returns whether two are the same interface. The device decides, with its permanent address: several interfaces can be of one
    /// device. Without a device the index does, which no other interface of the namespace gets in one boot.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.device, &other.device) {
            (Some(one), Some(two)) => {
                let is_known = self.permanent_address.is_some() && other.permanent_address.is_some();
                one == two && (!is_known || self.permanent_address == other.permanent_address)
            }
            (None, None) => self.index == other.index && self.permanent_address == other.permanent_address,
            _ => false,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "function" } else { self.name.as_str() };
        match &self.device {
            Some(device) => write!(f, "{name} ({} {})", device.bus, device.name),
            None => write!(f, "{name} (index {})", self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(address: &str, mac: Option<&str>, index: u32) -> Identity {
        Identity {
            name: "eth1".into(),
            index,
            device: Some(BusAddress { bus: "pci".into(), name: address.into() }),
            permanent_address: mac.map(|mac| mac.parse().unwrap()),
        }
    }

    #[test]
    fn a_device_is_recognized_after_a_rename_and_with_another_index() {
        let one = device("0000:17:00.0", Some("02:00:00:00:00:01"), 4);
        let renamed = Identity { name: "data0".into(), ..device("0000:17:00.0", Some("02:00:00:00:00:01"), 9) };
        assert!(one.is_same(&renamed));
        assert!(!one.is_same(&device("0000:17:00.0", Some("02:00:00:00:00:02"), 4)), "the other port of the card");
        assert!(!one.is_same(&device("0000:17:00.1", Some("02:00:00:00:00:01"), 4)));
    }

    #[test]
    fn another_virtual_interface_of_the_same_name_is_another() {
        let one = Identity { name: "dummy0".into(), index: 4, ..Identity::default() };
        assert!(!one.is_same(&Identity { index: 5, ..one.clone() }));
        assert!(one.is_same(&Identity { name: "renamed".into(), ..one.clone() }));
    }
}
