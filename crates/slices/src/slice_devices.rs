//! The devices of one slice as they should be: their text, and what is known of each.

use super::content::{DeviceFacts, TaintTime};
use super::device_json;

/// The devices of one slice. Versions of a pool share those that did not change.
#[derive(Debug)]
pub(super) struct SliceDevices {
    /// The devices as a JSON array.
    json: Box<str>,
    devices: Box<[Entry]>,
    /// The taints, in the order of the devices, each with the index of its device.
    taints: Box<[(usize, TaintTime)]>,
}

#[derive(Debug)]
struct Entry {
    /// The end of the device's text.
    end: usize,
    facts: DeviceFacts,
}

/// Devices in a row that become a slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) texts: &'a [&'a [u8]],
    pub(super) facts: &'a [DeviceFacts],
    /// The taints, each with the number of its device: more than those of this row.
    pub(super) taints: &'a [(usize, TaintTime)],
    /// The number of the first device.
    pub(super) first: usize,
}

impl SliceDevices {
    /// Copies devices into a slice.
    pub(super) fn new(row: Row<'_>) -> Self {
        let length = row.texts.iter().map(|text| text.len() + 1).sum::<usize>() + 1;
        let mut json = String::with_capacity(length.max(2));
        json.push('[');
        let mut devices = Vec::with_capacity(row.texts.len());
        for (text, facts) in row.texts.iter().zip(row.facts) {
            if json.len() > 1 {
                json.push(',');
            }
            json.push_str(&String::from_utf8_lossy(text));
            devices.push(Entry { end: json.len(), facts: *facts });
        }
        json.push(']');
        let numbers = row.first..row.first + row.texts.len();
        let from = row.taints.partition_point(|(number, _)| *number < numbers.start);
        let to = row.taints.partition_point(|(number, _)| *number < numbers.end);
        let taints = row.taints[from..to].iter().map(|(number, taint)| (number - numbers.start, taint.clone()));
        Self { json: json.into(), devices: devices.into(), taints: taints.collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns the devices as a JSON array.
    pub(super) fn json(&self) -> &str {
        &self.json
    }

    /// Returns the text of a device.
    pub(super) fn text(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.devices[before].end) + 1;
        &self.json.as_bytes()[start..self.devices[index].end]
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.text(index))
    }

    /// Returns the name of a device.
    pub(super) fn name(&self, index: usize) -> &str {
        // Valid names are ASCII, and only valid devices become slices.
        str::from_utf8(device_json::name(self.text(index))).unwrap_or_default()
    }

    pub(super) fn facts(&self, index: usize) -> &DeviceFacts {
        &self.devices[index].facts
    }

    pub(super) fn all_facts(&self) -> impl Iterator<Item = &DeviceFacts> {
        self.devices.iter().map(|device| &device.facts)
    }

    /// Returns the taints of all devices, each with the index of its device.
    pub(super) fn taints(&self) -> &[(usize, TaintTime)] {
        &self.taints
    }

    /// Returns the taints of a device.
    pub(super) fn taints_of(&self, index: usize) -> impl Iterator<Item = &TaintTime> {
        self.taints.iter().filter(move |(device, _)| *device == index).map(|(_, taint)| taint)
    }
}
