//! The devices that can be used on a node: the newest generation of every pool.
//!
//! Rebuilt when slices change. The results of selectors are cached per device.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use drakkar_cel::{DeviceValue, Selector, SelectorError};
use drakkar_client::Quantity;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{Device, DeviceCounterConsumption, ResourceSlice};

use crate::scheduler::node::NodeInfo;

/// A device's driver, pool and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId(Arc<(String, String, String)>);

impl DeviceId {
    pub(crate) fn new(driver: &str, pool: &str, device: &str) -> Self {
        Self(Arc::new((driver.to_owned(), pool.to_owned(), device.to_owned())))
    }

    pub(crate) fn driver(&self) -> &str {
        &self.0.0
    }

    pub(crate) fn pool(&self) -> &str {
        &self.0.1
    }

    pub(crate) fn device(&self) -> &str {
        &self.0.2
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver(), self.pool(), self.device())
    }
}

/// The amount of each counter, by counter set and name.
pub(crate) type Counters = BTreeMap<(String, String), Quantity>;

/// A device that can be used on the node.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) id: DeviceId,
    pub(crate) device: Device,
    /// The index of its pool in [`Inventory::pools`].
    pub(crate) pool: usize,
    pub(crate) counters: Counters,
    /// The node that the device is on, or a selector of the nodes that can use it; neither if all nodes can.
    pub(crate) node_name: Option<String>,
    pub(crate) node_selector: Option<NodeSelector>,
    value: Result<DeviceValue, String>,
}

impl Candidate {
    /// Reports whether several claims can hold it at once.
    pub(crate) fn is_shared(&self) -> bool {
        self.device.allow_multiple_allocations == Some(true)
    }
}

/// A pool of a driver.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) driver: String,
    pub(crate) name: String,
    /// Why the pool cannot be used.
    pub(crate) unusable: Option<String>,
    /// The range of its candidates in [`Inventory::candidates`].
    pub(crate) candidates: Range<usize>,
    /// The counters that its devices share.
    pub(crate) counters: Counters,
    /// The counters that its devices on other nodes consume.
    pub(crate) elsewhere: Vec<(DeviceId, Counters)>,
}

/// The devices of a node.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) pools: Vec<Pool>,
    pub(crate) candidates: Vec<Candidate>,
    selectors: RefCell<HashMap<String, CachedSelector>>,
}

/// A compiled selector, and its result for each candidate.
#[derive(Debug)]
struct CachedSelector {
    selector: Result<Selector, SelectorError>,
    results: Vec<Option<Result<bool, SelectorError>>>,
}

impl Inventory {
    /// Collects the devices that the slices have for the node.
    pub(crate) fn new<'a>(slices: impl IntoIterator<Item = &'a ResourceSlice>, node: &NodeInfo) -> Self {
        let mut pools = BTreeMap::<(&str, &str), Vec<&ResourceSlice>>::new();
        for slice in slices {
            pools.entry((&slice.spec.pool.name, &slice.spec.driver)).or_default().push(slice);
        }
        let mut pools: Vec<_> = pools.into_values().map(newest).collect();
        // Devices with binding conditions are the last choice. The sort is stable, so the order by name remains.
        pools.sort_by_key(|slices| slices.iter().any(|slice| has_binding_conditions(slice)));

        let mut inventory = Self::default();
        for slices in &pools {
            inventory.add_pool(slices, node);
        }
        inventory
    }

    fn add_pool(&mut self, slices: &[&ResourceSlice], node: &NodeInfo) {
        let Some(first) = slices.first() else { return };
        let start = self.candidates.len();
        let mut relevant = false;
        let mut names = HashSet::new();
        let mut duplicate = None;
        let mut pool = Pool {
            driver: first.spec.driver.clone(),
            name: first.spec.pool.name.clone(),
            unusable: None,
            candidates: start..start,
            counters: Counters::new(),
            elsewhere: Vec::new(),
        };
        for slice in slices {
            let spec = &slice.spec;
            let per_device = spec.per_device_node_selection == Some(true);
            let here = node.is_matched_by(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref());
            relevant |= here;
            for set in spec.shared_counters.iter().flatten() {
                pool.counters.extend(counters(&set.name, &set.counters));
            }
            for device in spec.devices.iter().flatten() {
                if !names.insert(device.name.as_str()) {
                    duplicate.get_or_insert(&device.name);
                }
                let id = DeviceId::new(&spec.driver, &spec.pool.name, &device.name);
                let consumed = consumed(device.consumes_counters.as_deref().unwrap_or_default());
                let (node_name, all, selector) = if per_device {
                    (&device.node_name, device.all_nodes, &device.node_selector)
                } else {
                    (&spec.node_name, spec.all_nodes, &spec.node_selector)
                };
                if !node.is_matched_by(node_name.as_deref(), all, selector.as_ref()) {
                    pool.elsewhere.push((id, consumed));
                    continue;
                }
                relevant = true;
                self.candidates.push(Candidate {
                    value: DeviceValue::new(&spec.driver, device).map_err(|error| error.to_string()),
                    id,
                    device: device.clone(),
                    pool: self.pools.len(),
                    counters: consumed,
                    node_name: node_name.clone(),
                    node_selector: selector.clone(),
                });
            }
        }
        if !relevant {
            return;
        }
        pool.candidates = start..self.candidates.len();
        let published = slices.len();
        let expected = first.spec.pool.resource_slice_count;
        if i64::try_from(published).ok() != Some(expected) {
            pool.unusable = Some(format!("is being updated: {published} of {expected} slices are published"));
        } else if let Some(name) = duplicate {
            pool.unusable = Some(format!("is invalid: it has two devices with the name {name}"));
        }
        self.pools.push(pool);
    }

    /// Reports whether a selector matches a candidate.
    pub(crate) fn matches(&self, expression: &str, candidate: usize) -> Result<bool, SelectorError> {
        let mut selectors = self.selectors.borrow_mut();
        if !selectors.contains_key(expression) {
            let results = vec![None; self.candidates.len()];
            selectors
                .insert(expression.to_owned(), CachedSelector { selector: Selector::compile(expression), results });
        }
        let Some(CachedSelector { selector, results }) = selectors.get_mut(expression) else { return Ok(false) };
        let selector = selector.as_ref().map_err(Clone::clone)?;
        let result = results[candidate].get_or_insert_with(|| match &self.candidates[candidate].value {
            Ok(value) => selector.matches(value),
            Err(message) => Err(SelectorError::Runtime { expression: expression.to_owned(), message: message.clone() }),
        });
        result.clone()
    }
}

/// Returns the slices of the newest generation, ordered by name.
fn newest(mut slices: Vec<&ResourceSlice>) -> Vec<&ResourceSlice> {
    let generation = slices.iter().map(|slice| slice.spec.pool.generation).max();
    slices.retain(|slice| Some(slice.spec.pool.generation) == generation);
    slices.sort_by_key(|slice| slice.metadata.name.clone());
    slices
}

fn has_binding_conditions(slice: &ResourceSlice) -> bool {
    let conditions = |device: &Device| device.binding_conditions.as_ref().is_some_and(|all| !all.is_empty());
    slice.spec.devices.iter().flatten().any(conditions)
}

fn consumed(consumption: &[DeviceCounterConsumption]) -> Counters {
    consumption.iter().flat_map(|set| counters(&set.counter_set, &set.counters)).collect()
}

/// Parses counters. An invalid quantity counts as zero; the API server rejects it anyway.
fn counters(
    set: &str,
    counters: &BTreeMap<String, k8s_openapi::api::resource::v1::Counter>,
) -> impl Iterator<Item = ((String, String), Quantity)> {
    counters.iter().map(move |(name, counter)| {
        let value = counter.value.0.parse().unwrap_or_default();
        ((set.to_owned(), name.clone()), value)
    })
}
