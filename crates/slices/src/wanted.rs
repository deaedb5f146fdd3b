//! What is to be published of a pool: checked, in the form in which it is sent, and split into slices.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use super::PublishError;
use super::content::{Digest, Head, Item, TaintTime};
use super::layout::{Seat, arrange};
use super::resources::{NodeSelection, Pool, PoolSlice, PublishedDevice};
use super::validate::{self, MAX_COUNTER_SETS, Place};

/// A pool that is valid, not yet split.
#[derive(Debug)]
pub(super) struct Checked {
    head: Head,
    partition_type_attribute: Option<String>,
    pub(super) names_node: bool,
    pub(super) generation: i64,
    devices_per_slice: Option<usize>,
    counters: Vec<Head>,
    /// Shared with those who look devices up.
    pub(super) devices: Arc<Devices>,
    /// How many devices each slice has, if the driver says so. Slices of counters have none.
    chosen: Option<Vec<Chosen>>,
}

#[derive(Debug)]
enum Chosen {
    Devices(usize),
    /// The index of the slice among those of counters.
    Counters(usize),
}

/// The devices of a pool, in the driver's order.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(super) items: Vec<Arc<Item>>,
    by_name: HashMap<Arc<str>, usize>,
}

impl Devices {
    fn new(items: Vec<Arc<Item>>) -> Self {
        let by_name = items.iter().enumerate().map(|(index, item)| (item.name.clone(), index)).collect();
        Self { items, by_name }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<Item>> {
        self.by_name.get(name).map(|index| &self.items[*index])
    }
}

/// One slice that is to be.
#[derive(Debug)]
pub(super) struct WantedSlice {
    pub(super) head: Head,
    /// Where its devices begin among the pool's, and where they end.
    pub(super) devices: std::ops::Range<usize>,
    pub(super) digest: Digest,
}

/// A pool that is to be.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) names_node: bool,
    pub(super) generation: i64,
    pub(super) slices: Vec<WantedSlice>,
    pub(super) devices: Arc<Devices>,
}

impl Wanted {
    pub(super) fn items(&self, slice: usize) -> &[Arc<Item>] {
        self.slices.get(slice).map_or(&[], |slice| &self.devices.items[slice.devices.clone()])
    }

    /// The taints in a slice.
    pub(super) fn taints(&self, slice: usize) -> Vec<TaintTime> {
        self.items(slice).iter().flat_map(|item| item.taints.iter().cloned()).collect()
    }
}

impl Checked {
    /// Checks a pool. `before` is what was published of it last.
    pub(super) fn new(
        name: &str,
        pool: Pool,
        place: Place<'_>,
        before: Option<&Devices>,
    ) -> Result<Self, PublishError> {
        validate::pool(name, &pool, Some(place))?;
        let head = Head::of_pool(&pool);
        let names_node = pool.nodes == NodeSelection::ThisNode;
        let Pool { devices, shared_counters, slices, devices_per_slice, generation, partition_type_attribute, .. } =
            pool;
        let (mut items, mut counters) = (Vec::new(), Vec::new());
        let broken =
            |error: serde_json::Error| PublishError::Api { what: format!("pool {name}"), message: error.to_string() };
        let item = |device: PublishedDevice| {
            let before = before.and_then(|before| before.get(&device.name));
            Item::new(device, before).map_err(broken)
        };
        let chosen = match slices.is_empty() {
            true => {
                for sets in shared_counters.chunks(MAX_COUNTER_SETS) {
                    counters.push(Head { shared_counters: Some(sets.to_vec()), ..head.clone() });
                }
                items.reserve_exact(devices.len());
                for device in devices {
                    items.push(item(device)?);
                }
                None
            }
            false => {
                let mut chosen = Vec::with_capacity(slices.len());
                for PoolSlice { devices, shared_counters } in slices {
                    if !shared_counters.is_empty() {
                        chosen.push(Chosen::Counters(counters.len()));
                        counters.push(Head { shared_counters: Some(shared_counters), ..head.clone() });
                        continue;
                    }
                    chosen.push(Chosen::Devices(devices.len()));
                    for device in devices {
                        items.push(item(device)?);
                    }
                }
                Some(chosen)
            }
        };
        Ok(Self {
            head,
            partition_type_attribute,
            names_node,
            generation,
            devices_per_slice,
            counters,
            devices: Arc::new(Devices::new(items)),
            chosen,
        })
    }

    /// Splits the pool into slices. `home` tells in which of so many slices a device is so far.
    ///
    /// Shared counters come first: their number hardly ever changes, so devices do not get other slices because of them.
    pub(super) fn split(
        self,
        home: impl Fn(&str) -> Option<usize>,
        slices: usize,
    ) -> Result<Wanted, serde_json::Error> {
        let mut wanted = Vec::new();
        let mut next = 0;
        let mut devices = |length: usize| {
            let range = next..next + length;
            next += length;
            let items = &self.devices.items[range.clone()];
            // The API has it only where a device consumes counters.
            let is_partitioned = items.iter().any(|item| item.consumes_counters);
            let head = Head {
                partition_type_attribute: self.partition_type_attribute.clone().filter(|_| is_partitioned),
                ..self.head.clone()
            };
            let digest = head.digest(items.iter().map(|item| item.digest))?;
            Ok(WantedSlice { head, devices: range, digest })
        };
        let counters = |head: &Head| {
            let digest = head.digest(std::iter::empty())?;
            Ok(WantedSlice { head: head.clone(), devices: 0..0, digest })
        };
        match &self.chosen {
            Some(chosen) => {
                for slice in chosen {
                    wanted.push(match slice {
                        Chosen::Devices(length) => devices(*length)?,
                        Chosen::Counters(index) => counters(&self.counters[*index])?,
                    });
                }
            }
            None => {
                let before = self.counters.len();
                for head in &self.counters {
                    wanted.push(counters(head)?);
                }
                let seats: Vec<Seat> = self
                    .devices
                    .items
                    .iter()
                    .map(|item| Seat {
                        is_heavy: item.is_heavy,
                        slice: home(&item.name).and_then(|slice| slice.checked_sub(before)),
                    })
                    .collect();
                for length in arrange(&seats, slices.saturating_sub(before), self.devices_per_slice) {
                    wanted.push(devices(length)?);
                }
                // A pool of nothing but counters needs no slice without devices.
                if before > 0 && self.devices.items.is_empty() {
                    wanted.truncate(before);
                }
            }
        }
        let (names_node, generation) = (self.names_node, self.generation);
        Ok(Wanted { names_node, generation, slices: wanted, devices: self.devices })
    }
}
