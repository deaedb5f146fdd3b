//! Changes of single devices of a pool that wait for the publisher.

use std::collections::HashMap;

use super::device_json;
use super::devices::encoded;
use super::resources::PublishedDevice;

/// Changes of single devices of a pool. Of several changes of a device the last one counts.
#[derive(Debug, Default)]
pub(super) struct PoolUpdate {
    changes: Vec<DeviceChange>,
    /// The positions of changes by the name of their device.
    positions: HashMap<Vec<u8>, usize>,
}

#[derive(Debug)]
struct DeviceChange {
    /// The name as it is written in JSON.
    name: Vec<u8>,
    /// The text of the new device, or `None` if the device is removed.
    text: Option<Vec<u8>>,
}

impl PoolUpdate {
    /// Adds a device, or replaces the one of that name.
    pub(super) fn set(&mut self, device: &PublishedDevice) {
        let text = encoded(device);
        self.change(device_json::name(&text).to_vec(), Some(text));
    }

    /// Removes a device.
    pub(super) fn remove(&mut self, name: &str) {
        self.change(escaped(name), None);
    }

    /// Adds later changes.
    pub(super) fn merge(&mut self, later: Self) {
        for DeviceChange { name, text } in later.changes {
            self.change(name, text);
        }
    }

    fn change(&mut self, name: Vec<u8>, text: Option<Vec<u8>>) {
        match self.positions.get(&name) {
            Some(position) => self.changes[*position].text = text,
            None => {
                self.positions.insert(name.clone(), self.changes.len());
                self.changes.push(DeviceChange { name, text });
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the position of the change of a device.
    pub(super) fn position(&self, name: &[u8]) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// Returns the names of the changed devices as they are written in JSON.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.changes.iter().map(|change| &*change.name)
    }

    /// Returns the texts of the changed devices, `None` for those that are removed.
    pub(super) fn texts(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.changes.iter().map(|change| change.text.as_deref())
    }
}

/// Returns a name as it is written in JSON, without quotes.
fn escaped(name: &str) -> Vec<u8> {
    let quoted = serde_json::Value::from(name).to_string();
    quoted.as_bytes()[1..quoted.len() - 1].to_vec()
}

#[cfg(test)]
mod tests;
