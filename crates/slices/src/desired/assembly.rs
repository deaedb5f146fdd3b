//! Putting slices together, and sharing those that did not change.

use std::sync::Arc;

use super::super::content::{DeviceFacts, SliceHeader, TaintTime};
use super::super::device_json;
use super::super::draft::Origin;
use super::super::resources::Pool;
use super::super::slice_devices::{Row, SliceDevices};
use super::{DesiredPool, DesiredSlice, Work};

/// A slice that is to be put together.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) header: Arc<SliceHeader>,
    /// The number of its devices.
    pub(super) devices: usize,
}

/// The devices of a pool by their numbers.
#[derive(Debug)]
pub(super) struct Flat<'a> {
    pub(super) texts: Vec<&'a [u8]>,
    pub(super) facts: Vec<&'a DeviceFacts>,
    /// The slice of each device.
    pub(super) slices: Vec<usize>,
}

impl<'a> Flat<'a> {
    pub(super) fn of(pool: &'a DesiredPool) -> Self {
        let slices = pool.slices.iter().enumerate();
        Self {
            texts: pool.texts().collect(),
            facts: pool.slices.iter().flat_map(|slice| slice.devices.all_facts()).collect(),
            slices: slices.flat_map(|(number, slice)| std::iter::repeat_n(number, slice.devices.len())).collect(),
        }
    }
}

/// The devices of a version, and where they come from.
#[derive(Clone, Copy)]
pub(super) struct Assembly<'a> {
    pub(super) texts: &'a [&'a [u8]],
    pub(super) facts: &'a [DeviceFacts],
    /// The taints in the order of the devices, each with the number of its device.
    pub(super) taints: &'a [(usize, TaintTime)],
    pub(super) origins: &'a [Origin],
    pub(super) before: Option<(&'a DesiredPool, &'a Flat<'a>)>,
}

impl Assembly<'_> {
    /// Puts the slices together.
    pub(super) fn assemble(
        self,
        properties: Pool,
        is_chosen: bool,
        plans: Vec<Plan>,
        mut work: Work,
    ) -> Result<DesiredPool, serde_json::Error> {
        let mut slices = Vec::with_capacity(plans.len());
        let mut first = 0;
        for Plan { header, devices: length } in plans {
            let known = if length > 0 { self.known(first, length) } else { self.known_without_devices(slices.len()) };
            let devices = match known {
                Some(known) => known.devices.clone(),
                None => {
                    work.assembled += 1;
                    let range = first..first + length;
                    let texts = &self.texts[range.clone()];
                    Arc::new(SliceDevices::new(Row { texts, facts: &self.facts[range], taints: self.taints, first }))
                }
            };
            let digest = match known {
                Some(known) if known.header == header => known.digest,
                _ => header.digest(devices.all_facts().map(|facts| facts.digest))?,
            };
            slices.push(DesiredSlice { header, devices, digest, first });
            first += length;
        }
        Ok(DesiredPool { properties, slices, is_chosen, by_name: self.by_name(), work })
    }

    /// Returns the slice of the version before that has exactly these devices.
    fn known(&self, first: usize, length: usize) -> Option<&DesiredSlice> {
        let (before, flat) = self.before?;
        let Origin::Same(start) = self.origins[first] else { return None };
        let slice = &before.slices[flat.slices[start]];
        let is_same = slice.first == start
            && slice.devices.len() == length
            && self.origins[first..first + length]
                .iter()
                .zip(start..)
                .all(|(origin, number)| *origin == Origin::Same(number));
        is_same.then_some(slice)
    }

    /// Returns the slice of the version before at this index, if it has no devices.
    fn known_without_devices(&self, index: usize) -> Option<&DesiredSlice> {
        self.before?.0.slices.get(index).filter(|slice| slice.devices.len() == 0)
    }

    /// Returns the numbers of the devices in the order of their names.
    fn by_name(&self) -> Arc<[u32]> {
        if let Some((before, _)) = self.before
            && before.len() == self.origins.len()
            && self.origins.iter().enumerate().all(|(number, origin)| origin.number() == Some(number))
        {
            return before.by_name.clone();
        }
        let mut names: Vec<(&[u8], u32)> = self.texts.iter().map(|text| device_json::name(text)).zip(0..).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, number)| number).collect()
    }
}
