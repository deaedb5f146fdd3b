//! The devices of a pool in little memory.

use std::fmt;
use std::ops::Range;

use super::device_json;
use super::resources::PublishedDevice;

/// The text of a device that cannot be encoded. Validation reports it.
const UNENCODABLE: &[u8] = b"null";

/// A list of devices in little memory: as the text that is published, in one piece.
///
/// A [`PublishedDevice`] is made of maps and strings and takes several kilobytes; here it is a few hundred bytes. So a driver
/// with many devices adds one after the other, or gives an iterator, and never has all of them as maps and strings:
///
/// ```
/// use drakkar_slices::{Pool, PublishedDevice};
///
/// let gpus = (0..10_000).map(|index| PublishedDevice::new(format!("gpu-{index}")).attribute("index", index));
/// let mut pool = Pool::default().devices(gpus);
/// pool.devices.set(7, PublishedDevice::new("gpu-7").taint("example.com/broken", "", "NoSchedule"));
/// assert_eq!(pool.devices.get(7).map(|device| device.taints.len()), Some(1));
/// ```
///
/// Devices that are read from the list are decoded. They are equal to those that were added, but for times of taints, which
/// have whole seconds.
#[derive(Clone, Default, PartialEq)]
pub struct Devices {
    text: Vec<u8>,
    /// The end of each device's text.
    ends: Vec<usize>,
}

impl Devices {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends a device.
    #[allow(clippy::needless_pass_by_value, reason = "as that of `Vec`; the device is kept in another form")]
    pub fn push(&mut self, device: PublishedDevice) {
        encode(&device, &mut self.text);
        self.ends.push(self.text.len());
    }

    /// Returns the device at an index.
    pub fn get(&self, index: usize) -> Option<PublishedDevice> {
        (index < self.len()).then(|| decode(self.text(index)))
    }

    /// Replaces the device at an index.
    ///
    /// # Panics
    ///
    /// Panics if there is no device at the index.
    #[allow(clippy::needless_pass_by_value, reason = "as that of `Vec`; the device is kept in another form")]
    pub fn set(&mut self, index: usize, device: PublishedDevice) {
        self.replace_text(index, &encoded(&device));
    }

    /// Inserts a device at an index; the one that was there and all that follow move to the next.
    ///
    /// # Panics
    ///
    /// Panics if the index is greater than the number of devices.
    #[allow(clippy::needless_pass_by_value, reason = "as that of `Vec`; the device is kept in another form")]
    pub fn insert(&mut self, index: usize, device: PublishedDevice) {
        let start = self.start(index);
        self.ends.insert(index, start);
        self.replace_text(index, &encoded(&device));
    }

    /// Removes the device at an index and returns it.
    ///
    /// # Panics
    ///
    /// Panics if there is no device at the index.
    pub fn remove(&mut self, index: usize) -> PublishedDevice {
        let removed = decode(self.text(index));
        self.replace_text(index, &[]);
        self.ends.remove(index);
        removed
    }

    /// Returns an iterator over the devices, each of which it decodes.
    pub fn iter(&self) -> Iter<'_> {
        Iter { devices: self, left: 0..self.len() }
    }

    /// Returns the texts of all devices.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.text(index))
    }

    /// Appends the text of a device.
    pub(super) fn push_text(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len());
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    fn text(&self, index: usize) -> &[u8] {
        &self.text[self.start(index)..self.ends[index]]
    }

    fn replace_text(&mut self, index: usize, text: &[u8]) {
        let start = self.start(index);
        let end = self.ends[index];
        self.text.splice(start..end, text.iter().copied());
        for later in &mut self.ends[index..] {
            *later = *later - end + start + text.len();
        }
    }
}

/// Returns the text of a device.
pub(super) fn encoded(device: &PublishedDevice) -> Vec<u8> {
    let mut text = Vec::new();
    encode(device, &mut text);
    text
}

fn encode(device: &PublishedDevice, out: &mut Vec<u8>) {
    let start = out.len();
    if device_json::write(device, out).is_err() {
        out.truncate(start);
        out.extend_from_slice(UNENCODABLE);
    }
}

/// Decodes a device. One that could not be encoded has no name, which is not valid.
fn decode(text: &[u8]) -> PublishedDevice {
    device_json::read(text).unwrap_or_default()
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Extend<PublishedDevice> for Devices {
    fn extend<I: IntoIterator<Item = PublishedDevice>>(&mut self, devices: I) {
        for device in devices {
            self.push(device);
        }
    }
}

impl FromIterator<PublishedDevice> for Devices {
    fn from_iter<I: IntoIterator<Item = PublishedDevice>>(devices: I) -> Self {
        let mut list = Self::new();
        list.extend(devices);
        list
    }
}

impl From<Vec<PublishedDevice>> for Devices {
    fn from(devices: Vec<PublishedDevice>) -> Self {
        devices.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = PublishedDevice;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl IntoIterator for Devices {
    type Item = PublishedDevice;
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter { left: 0..self.len(), devices: self }
    }
}

/// An iterator over the devices of a list, which it owns.
#[derive(Debug, Clone)]
pub struct IntoIter {
    devices: Devices,
    left: Range<usize>,
}

impl Iterator for IntoIter {
    type Item = PublishedDevice;

    fn next(&mut self) -> Option<PublishedDevice> {
        self.devices.get(self.left.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for IntoIter {}

/// An iterator over the devices of a list.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    devices: &'a Devices,
    left: Range<usize>,
}

impl Iterator for Iter<'_> {
    type Item = PublishedDevice;

    fn next(&mut self) -> Option<PublishedDevice> {
        self.devices.get(self.left.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests;
