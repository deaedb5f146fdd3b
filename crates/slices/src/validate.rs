//! Validation: everything that an API server would refuse, found before anything is sent, each with the path of its field.
//!
//! Pools are looked at one by one: what is wrong with one does not keep the others from being published.

mod capacity;
mod device;
mod node_selector;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use drakkar_metadata::name::{DriverName, NameError, PoolName};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};

use self::node_selector::node_selector;
use super::layout::{MAX_DEVICES, MAX_HEAVY_DEVICES};
use super::resources::{DriverResources, NodeSelection, Pool, PublishedDevice};
use super::{InvalidField, PublishError};

/// How many counter sets a slice may have.
pub(super) const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
/// How many problems of a pool are told in detail.
const MAX_ERRORS: usize = 100;

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";
const ALL_OPERATIONS: &str = "*";

impl DriverResources {
    /// Checks everything that can be checked without a cluster, and tells the first pool with all that is wrong with it.
    ///
    /// [`Helper::publish_resources`](crate::Helper::publish_resources) checks the same, so this is for a driver's own tests.
    pub fn validate(&self) -> Result<(), PublishError> {
        self.pools.iter().try_for_each(|(name, one)| pool(name, one, None))
    }
}

/// Where and as what a driver publishes, as far as it decides what is right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) driver: &'a str,
    /// Whether slices can name the node.
    pub(super) is_on_node: bool,
    /// Whether slices must not name the node, because the pool is for others too.
    pub(super) is_for_others: bool,
}

/// Checks one pool.
pub(super) fn pool(name: &str, pool: &Pool, place: Option<Place<'_>>) -> Result<(), PublishError> {
    let mut errors = Errors::default();
    errors.name("name", PoolName::new(name));
    if let Some(place) = place {
        nodes(&pool.nodes, place, &mut errors);
    }
    if let NodeSelection::Selector(selector) = &pool.nodes {
        node_selector(format_args!("nodeSelector"), selector, true, &mut errors);
    }
    if pool.generation < 0 {
        errors.push("generation", format_args!("{} is not valid: must not be negative", pool.generation));
    }
    if pool.devices_per_slice == Some(0) {
        errors.push("devicesPerSlice", "0 is not valid: must be at least 1");
    }
    skip_node_operations(&pool.skip_node_operations, &mut errors);
    slices(pool, &mut errors);

    let counters = counter_sets(pool, &mut errors);
    let mut seen: HashSet<&str> = HashSet::new();
    let per_device = pool.nodes == NodeSelection::PerDevice;
    let partition_type = partition_type(pool, place, &mut errors);
    for (path, one) in devices(pool) {
        if !seen.insert(&one.name) {
            errors.push(format_args!("{path}.name"), format_args!("{:?} is there already", one.name));
        }
        device::device(path, one, per_device, &mut errors);
        for (index, consumption) in one.consumes_counters.iter().enumerate() {
            let path = format_args!("{path}.consumesCounters[{index}]");
            consumed(path, consumption, &counters, &mut errors);
        }
        if let Some(names) = &partition_type
            && !one.consumes_counters.is_empty()
            && !names.iter().any(|name| one.attributes.get(*name).is_some_and(|value| value.string.is_some()))
        {
            let problem = format_args!("a device that consumes counters needs the string attribute {}", names[0]);
            errors.push(format_args!("{path}.attributes"), problem);
        }
    }
    errors.of(name)
}

/// The devices with the paths of their fields.
fn devices(pool: &Pool) -> impl Iterator<Item = (DevicePath, &PublishedDevice)> {
    let own = pool.devices.iter().enumerate().map(|(device, one)| (DevicePath { slice: None, device }, one));
    let chosen = pool.slices.iter().enumerate().flat_map(|(slice, devices)| {
        let slice = Some(slice);
        devices.devices.iter().enumerate().map(move |(device, one)| (DevicePath { slice, device }, one))
    });
    own.chain(chosen)
}

#[derive(Clone, Copy)]
struct DevicePath {
    slice: Option<usize>,
    device: usize,
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slice) = self.slice {
            write!(f, "slices[{slice}].")?;
        }
        write!(f, "devices[{}]", self.device)
    }
}

/// What has been found wrong so far.
#[derive(Default)]
struct Errors {
    errors: Vec<InvalidField>,
    omitted: usize,
}

impl Errors {
    fn push(&mut self, field: impl fmt::Display, problem: impl fmt::Display) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(InvalidField { field: field.to_string(), problem: problem.to_string() });
        } else {
            self.omitted += 1;
        }
    }

    fn name<T>(&mut self, field: impl fmt::Display, name: Result<T, NameError>) {
        if let Err(error) = name {
            self.push(field, error);
        }
    }

    fn check(&mut self, field: impl fmt::Display, outcome: Result<(), String>) {
        if let Err(problem) = outcome {
            self.push(field, problem);
        }
    }

    /// Whether there are no more than allowed. Otherwise that is all that is told of them.
    fn fits(&mut self, field: impl fmt::Display, count: usize, limit: usize) -> bool {
        if count > limit {
            self.push(field, format_args!("too many: {count}, at most {limit} are allowed"));
        }
        count <= limit
    }

    fn of(self, pool: &str) -> Result<(), PublishError> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(PublishError::Invalid { pool: pool.to_owned(), errors: self.errors, omitted: self.omitted }),
        }
    }
}

fn nodes(nodes: &NodeSelection, place: Place<'_>, errors: &mut Errors) {
    match (nodes, place.is_on_node, place.is_for_others) {
        (NodeSelection::ThisNode, false, false) => {
            errors.push("nodes", "the node's name is not known: set it with --node-name or PluginBuilder::node_name");
        }
        (NodeSelection::ThisNode, _, true) => errors.push(
            "nodes",
            "a pool of reconcile_pool_with_name is for other nodes too: use a selector, all nodes, or say it per device",
        ),
        (NodeSelection::ThisNode, true, false) => {}
        (_, true, false) => errors.push(
            "nodes",
            "a driver that runs on a node publishes for that node; for a pool of other nodes use reconcile_pool_with_name",
        ),
        (_, _, _) => {}
    }
}

fn skip_node_operations(operations: &[String], errors: &mut Errors) {
    let has = |operation: &str| operations.iter().any(|one| one == operation);
    let mut seen = HashSet::new();
    for (index, operation) in operations.iter().enumerate() {
        if ![PREPARE, UNPREPARE, ALL_OPERATIONS].contains(&operation.as_str()) {
            let problem =
                format!("{operation:?} is not valid: must be one of {PREPARE}, {UNPREPARE}, {ALL_OPERATIONS}");
            errors.push(format_args!("skipNodeOperations[{index}]"), problem);
        }
        if !seen.insert(operation) {
            errors.push(format_args!("skipNodeOperations[{index}]"), format_args!("{operation:?} is there already"));
        }
    }
    if has(PREPARE) && !has(UNPREPARE) && !has(ALL_OPERATIONS) {
        errors.push("skipNodeOperations", format_args!("{PREPARE} can be skipped only together with {UNPREPARE}"));
    }
}

/// What the driver has put into slices itself.
fn slices(pool: &Pool, errors: &mut Errors) {
    let is_split = pool.devices.is_empty() && pool.shared_counters.is_empty();
    if !pool.slices.is_empty() && !is_split {
        errors.push("slices", "either the slices are given, or devices and shared counters that are to be split");
    }
    for (index, slice) in pool.slices.iter().enumerate() {
        let path = format_args!("slices[{index}]");
        if !slice.devices.is_empty() && !slice.shared_counters.is_empty() {
            errors.push(path, "a slice has devices or shared counters, not both");
        }
        let is_heavy = slice.devices.iter().any(PublishedDevice::is_heavy);
        let limit = if is_heavy { MAX_HEAVY_DEVICES } else { MAX_DEVICES };
        errors.fits(format_args!("{path}.devices"), slice.devices.len(), limit);
        errors.fits(format_args!("{path}.sharedCounters"), slice.shared_counters.len(), MAX_COUNTER_SETS);
    }
}

/// The counters of each set.
fn counter_sets<'a>(pool: &'a Pool, errors: &mut Errors) -> HashMap<&'a str, &'a BTreeMap<String, Counter>> {
    let mut known = HashMap::new();
    for (index, set) in pool.shared_counters.iter().enumerate() {
        counter_set(format_args!("sharedCounters[{index}]"), set, &mut known, errors);
    }
    for (slice, one) in pool.slices.iter().enumerate() {
        for (index, set) in one.shared_counters.iter().enumerate() {
            counter_set(format_args!("slices[{slice}].sharedCounters[{index}]"), set, &mut known, errors);
        }
    }
    known
}

fn counter_set<'a>(
    path: fmt::Arguments<'_>,
    set: &'a CounterSet,
    known: &mut HashMap<&'a str, &'a BTreeMap<String, Counter>>,
    errors: &mut Errors,
) {
    errors.check(format_args!("{path}.name"), text::label("counter set", &set.name));
    if known.insert(&set.name, &set.counters).is_some() {
        errors.push(format_args!("{path}.name"), format_args!("{:?} is there already", set.name));
    }
    counters(path, &set.counters, errors);
}

fn counters(path: fmt::Arguments<'_>, counters: &BTreeMap<String, Counter>, errors: &mut Errors) {
    if counters.is_empty() {
        errors.push(format_args!("{path}.counters"), "required value is missing");
    }
    if !errors.fits(format_args!("{path}.counters"), counters.len(), MAX_COUNTERS) {
        return;
    }
    for (name, counter) in counters {
        let path = format_args!("{path}.counters[{name}]");
        errors.check(path, text::label("counter", name));
        errors.check(format_args!("{path}.value"), capacity::quantity(&counter.value).map(drop));
    }
}

fn consumed(
    path: fmt::Arguments<'_>,
    consumption: &DeviceCounterConsumption,
    known: &HashMap<&str, &BTreeMap<String, Counter>>,
    errors: &mut Errors,
) {
    match known.get(consumption.counter_set.as_str()) {
        None => {
            let problem = format_args!("the pool has no counter set {:?}", consumption.counter_set);
            errors.push(format_args!("{path}.counterSet"), problem);
        }
        Some(set) => {
            for name in consumption.counters.keys().filter(|name| !set.contains_key(*name)) {
                let problem = format_args!("counter set {:?} has no such counter", consumption.counter_set);
                errors.push(format_args!("{path}.counters[{name}]"), problem);
            }
        }
    }
}

/// The names under which a device can have the attribute that tells its type.
fn partition_type<'a>(pool: &'a Pool, place: Option<Place<'a>>, errors: &mut Errors) -> Option<Vec<&'a str>> {
    let name = pool.partition_type_attribute.as_deref()?;
    errors.check("partitionTypeAttribute", text::qualified_name(name));
    if !name.contains('/') {
        errors.push(
            "partitionTypeAttribute",
            format_args!("{name:?} is not valid: must have a domain, as in example.com/type"),
        );
    }
    if pool.all_devices().all(|device| device.consumes_counters.is_empty()) {
        errors.push("partitionTypeAttribute", "no device of the pool consumes counters");
    }
    let bare = place.and_then(|place| name.strip_prefix(place.driver)?.strip_prefix('/'));
    // Without a driver's name any bare name may be in its domain.
    let bare = if place.is_none() { name.split_once('/').map(|(_, bare)| bare) } else { bare };
    Some([Some(name), bare].into_iter().flatten().collect())
}

/// A name that the API takes for a driver's.
fn domain(name: &str) -> Result<(), String> {
    DriverName::new(name).map(drop).map_err(|error| format!("domain: {error}"))
}
