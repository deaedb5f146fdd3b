//! A pool as it should be published: validated, encoded, and split into slices.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::PublishError;
use super::content::{Digest, EncodedDevice, SliceHeader, TaintTime};
use super::layout::{Placement, arrange};
use super::resources::{NodeSelection, Pool, PoolSlice, PublishedDevice};
use super::validate::{self, MAX_COUNTER_SETS, ValidationContext};

/// A pool that is valid, and not yet split into slices.
#[derive(Debug)]
pub(super) struct ValidatedPool {
    header: SliceHeader,
    partition_type_attribute: Option<String>,
    names_node: bool,
    generation: i64,
    devices_per_slice: Option<usize>,
    /// The headers of the slices with shared counters.
    counters: Vec<SliceHeader>,
    /// Shared with [`PublishedAttributes`](super::PublishedAttributes).
    pub(super) devices: Arc<Devices>,
    /// The content of each slice, if the driver splits the pool itself.
    chosen: Option<Vec<ChosenSlice>>,
}

/// The content of a slice that the driver chose.
#[derive(Debug)]
enum ChosenSlice {
    /// The next devices of the pool, as many as this.
    Devices(usize),
    /// The index among the slices with shared counters.
    Counters(usize),
}

/// The devices of a pool, in the driver's order.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(super) in_order: Vec<Arc<EncodedDevice>>,
    by_name: HashMap<Arc<str>, usize>,
}

impl Devices {
    fn new(in_order: Vec<Arc<EncodedDevice>>) -> Self {
        let by_name = in_order.iter().enumerate().map(|(index, device)| (device.name.clone(), index)).collect();
        Self { in_order, by_name }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<EncodedDevice>> {
        self.by_name.get(name).map(|index| &self.in_order[*index])
    }
}

/// One slice of a pool as it should be.
#[derive(Debug)]
pub(super) struct DesiredSlice {
    pub(super) header: SliceHeader,
    /// The indices of its devices among the pool's.
    devices: Range<usize>,
    pub(super) digest: Digest,
}

/// A pool as it should be.
#[derive(Debug)]
pub(super) struct DesiredPool {
    pub(super) names_node: bool,
    /// The generation that the driver asks for.
    pub(super) generation: i64,
    pub(super) slices: Vec<DesiredSlice>,
    pub(super) devices: Arc<Devices>,
}

impl DesiredPool {
    /// Returns the devices of a slice.
    pub(super) fn devices_of(&self, slice: usize) -> &[Arc<EncodedDevice>] {
        self.slices.get(slice).map_or(&[], |slice| &self.devices.in_order[slice.devices.clone()])
    }

    /// Returns the taints in a slice.
    pub(super) fn taints_of(&self, slice: usize) -> Vec<TaintTime> {
        self.devices_of(slice).iter().flat_map(|device| device.taints.iter().cloned()).collect()
    }
}

impl ValidatedPool {
    /// Validates a pool and encodes its devices. `before` has the devices that were published last.
    pub(super) fn new(
        name: &str,
        pool: Pool,
        context: ValidationContext<'_>,
        before: Option<&Devices>,
    ) -> Result<Self, PublishError> {
        validate::pool(name, &pool, Some(context))?;
        let header = SliceHeader::of_pool(&pool);
        let names_node = pool.nodes == NodeSelection::ThisNode;
        let Pool { devices, shared_counters, slices, devices_per_slice, generation, partition_type_attribute, .. } =
            pool;
        let encode = |device: PublishedDevice| {
            let before = before.and_then(|before| before.get(&device.name));
            EncodedDevice::new(device, before)
                .map_err(|error| PublishError::Encode { pool: name.to_owned(), source: Arc::new(error) })
        };
        let mut encoded = Vec::new();
        let mut counters = Vec::new();
        let chosen = if slices.is_empty() {
            for sets in shared_counters.chunks(MAX_COUNTER_SETS) {
                counters.push(SliceHeader { shared_counters: Some(sets.to_vec()), ..header.clone() });
            }
            encoded.reserve_exact(devices.len());
            for device in devices {
                encoded.push(encode(device)?);
            }
            None
        } else {
            let mut chosen = Vec::with_capacity(slices.len());
            for PoolSlice { devices, shared_counters } in slices {
                if !shared_counters.is_empty() {
                    chosen.push(ChosenSlice::Counters(counters.len()));
                    counters.push(SliceHeader { shared_counters: Some(shared_counters), ..header.clone() });
                    continue;
                }
                chosen.push(ChosenSlice::Devices(devices.len()));
                for device in devices {
                    encoded.push(encode(device)?);
                }
            }
            Some(chosen)
        };
        Ok(Self {
            header,
            partition_type_attribute,
            names_node,
            generation,
            devices_per_slice,
            counters,
            devices: Arc::new(Devices::new(encoded)),
            chosen,
        })
    }

    /// Splits the pool into slices. `assigned` returns the slice that a device is in now, of `slices` slices.
    ///
    /// Slices with shared counters come first: their number hardly ever changes, so they do not move devices to other slices.
    pub(super) fn split(
        self,
        assigned: impl Fn(&str) -> Option<usize>,
        slices: usize,
    ) -> Result<DesiredPool, serde_json::Error> {
        let mut desired = Vec::new();
        let mut next = 0;
        let mut devices = |length: usize| {
            let range = next..next + length;
            next += length;
            let devices = &self.devices.in_order[range.clone()];
            // The API allows the field only in a slice with a device that consumes counters.
            let is_partitioned = devices.iter().any(|device| device.consumes_counters);
            let header = SliceHeader {
                partition_type_attribute: self.partition_type_attribute.clone().filter(|_| is_partitioned),
                ..self.header.clone()
            };
            let digest = header.digest(devices.iter().map(|device| device.digest))?;
            Ok(DesiredSlice { header, devices: range, digest })
        };
        let counters = |header: &SliceHeader| {
            let digest = header.digest(std::iter::empty())?;
            Ok(DesiredSlice { header: header.clone(), devices: 0..0, digest })
        };
        match &self.chosen {
            Some(chosen) => {
                for slice in chosen {
                    desired.push(match slice {
                        ChosenSlice::Devices(length) => devices(*length)?,
                        ChosenSlice::Counters(index) => counters(&self.counters[*index])?,
                    });
                }
            }
            None => {
                let first = self.counters.len();
                for header in &self.counters {
                    desired.push(counters(header)?);
                }
                let placements: Vec<Placement> = self
                    .devices
                    .in_order
                    .iter()
                    .map(|device| Placement {
                        is_heavy: device.is_heavy,
                        slice: assigned(&device.name).and_then(|slice| slice.checked_sub(first)),
                    })
                    .collect();
                for length in arrange(&placements, slices.saturating_sub(first), self.devices_per_slice) {
                    desired.push(devices(length)?);
                }
                // A pool with nothing but counters needs no slice without devices.
                if first > 0 && self.devices.in_order.is_empty() {
                    desired.truncate(first);
                }
            }
        }
        Ok(DesiredPool {
            names_node: self.names_node,
            generation: self.generation,
            slices: desired,
            devices: self.devices,
        })
    }
}
