//! A version of a pool that is about to be validated: what the driver published, or the last version with some devices changed.

use super::desired::DesiredPool;
use super::device_json;
use super::devices::Devices;
use super::resources::Pool;
use super::update::PoolUpdate;
use super::validate::Shape;

/// Where a device comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The version before has no device of this name.
    New,
    /// The version before has another device of this name, with this number.
    Changed(usize),
    /// The version before has the same device, with this number.
    Same(usize),
}

impl Origin {
    /// Returns the number of the device of the same name in the version before.
    pub(super) fn number(self) -> Option<usize> {
        match self {
            Self::New => None,
            Self::Changed(number) | Self::Same(number) => Some(number),
        }
    }
}

/// A version of a pool that is about to be validated.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// The pool without devices.
    pub(super) pool: Pool,
    /// The numbers of devices in the pool and in its slices.
    pub(super) shape: Shape,
    /// The texts of the devices.
    pub(super) texts: Vec<&'a [u8]>,
    /// Where the devices come from; `None` if they have yet to be compared with the version before.
    pub(super) origins: Option<Vec<Origin>>,
}

/// The devices of a pool, taken out of it.
#[derive(Debug)]
pub(super) struct DeviceLists {
    own: Devices,
    slices: Vec<Devices>,
}

impl DeviceLists {
    pub(super) fn take(pool: &mut Pool) -> Self {
        let slices = pool.slices.iter_mut().map(|slice| std::mem::take(&mut slice.devices));
        Self { slices: slices.collect(), own: std::mem::take(&mut pool.devices) }
    }
}

impl<'a> Draft<'a> {
    /// A version that the driver published as a whole.
    pub(super) fn of_pool(pool: Pool, lists: &'a DeviceLists) -> Self {
        let texts = std::iter::once(&lists.own).chain(&lists.slices).flat_map(Devices::texts);
        let shape = Shape { devices: lists.own.len(), slices: lists.slices.iter().map(Devices::len).collect() };
        Self { pool, shape, texts: texts.collect(), origins: None }
    }

    /// The version that is published, to be changed.
    pub(super) fn of_desired(desired: &'a DesiredPool) -> Self {
        let texts: Vec<&[u8]> = desired.texts().collect();
        let origins = (0..texts.len()).map(Origin::Same).collect();
        let (pool, shape) = desired.with_counters();
        Self { pool, shape, texts, origins: Some(origins) }
    }

    /// Changes single devices. `before` is the version that this is a copy of, if it is one.
    pub(super) fn edit(&mut self, update: &'a PoolUpdate, before: Option<&DesiredPool>) {
        let positions: Vec<Option<usize>> = match before {
            Some(before) => update.names().map(|name| before.number_of(name)).collect(),
            None => {
                let mut positions = vec![None; update.len()];
                for (number, text) in self.texts.iter().enumerate() {
                    if let Some(position) = update.position(device_json::name(text)) {
                        positions[position] = Some(number);
                    }
                }
                positions
            }
        };
        let mut removed = Vec::new();
        for (text, position) in update.texts().zip(positions) {
            match (text, position) {
                (Some(text), Some(number)) => {
                    if let Some(origins) = &mut self.origins
                        && self.texts[number] != text
                    {
                        origins[number] = Origin::Changed(number);
                    }
                    self.texts[number] = text;
                }
                (Some(text), None) => self.append(text),
                (None, Some(number)) => removed.push(number),
                (None, None) => {}
            }
        }
        self.remove(removed);
    }

    /// Appends a device to the pool, or to the last of the slices that the driver chose.
    fn append(&mut self, text: &'a [u8]) {
        match self.shape.slices.last_mut() {
            Some(devices) => *devices += 1,
            None => self.shape.devices += 1,
        }
        self.texts.push(text);
        if let Some(origins) = &mut self.origins {
            origins.push(Origin::New);
        }
    }

    /// Removes the devices with these numbers.
    fn remove(&mut self, numbers: Vec<usize>) {
        if numbers.is_empty() {
            return;
        }
        let mut is_kept = vec![true; self.texts.len()];
        for number in numbers {
            is_kept[number] = false;
        }
        let mut start = 0;
        for devices in std::iter::once(&mut self.shape.devices).chain(&mut self.shape.slices) {
            let end = start + *devices;
            *devices = is_kept[start..end].iter().filter(|is_kept| **is_kept).count();
            start = end;
        }
        let mut kept = is_kept.iter();
        self.texts.retain(|_| kept.next().is_some_and(|is_kept| *is_kept));
        if let Some(origins) = &mut self.origins {
            let mut kept = is_kept.iter();
            origins.retain(|_| kept.next().is_some_and(|is_kept| *is_kept));
        }
    }

    /// Returns the whole pool.
    pub(super) fn into_pool(self) -> Pool {
        let Self { mut pool, shape, texts, .. } = self;
        let mut texts = texts.into_iter();
        texts.by_ref().take(shape.devices).for_each(|text| pool.devices.push_text(text));
        for (slice, devices) in pool.slices.iter_mut().zip(shape.slices) {
            texts.by_ref().take(devices).for_each(|text| slice.devices.push_text(text));
        }
        pool
    }
}
