//! Validation of pools before they are sent: the rules of the API server, with the path of each field that breaks one.
//!
//! Each pool is validated on its own: an invalid one does not hold up the others.

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
use super::content::DeviceFacts;
use super::device_json;
use super::layout::{MAX_DEVICES, MAX_HEAVY_DEVICES};
use super::resources::{DriverResources, NodeSelection, Pool, PublishedDevice};
use super::{InvalidField, PublishError};

/// The largest number of counter sets in a slice.
pub(super) const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
/// The largest number of errors that are reported of one pool.
const MAX_ERRORS: usize = 100;

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";
const ALL_OPERATIONS: &str = "*";

impl DriverResources {
    /// Validates everything that can be validated without a cluster. Returns the errors of the first invalid pool.
    ///
    /// [`ResourcePublisher::publish`](crate::ResourcePublisher::publish) validates too: this is for the tests of a driver or
    /// controller.
    pub fn validate(&self) -> Result<(), PublishError> {
        self.pools.iter().try_for_each(|(name, one)| pool(name, one, None))
    }
}

/// The properties of a publisher on which the validity of a pool depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValidationContext<'a> {
    pub(super) driver: &'a str,
    /// Whether the publisher runs on a node, which slices can name.
    pub(super) is_on_node: bool,
    /// Whether the publisher is limited to one pool, whose slices must not name the node.
    pub(super) is_single_pool: bool,
}

/// Validates one pool. Without a context, the rules that depend on the publisher are skipped.
pub(super) fn pool(name: &str, pool: &Pool, context: Option<ValidationContext<'_>>) -> Result<(), PublishError> {
    let shape = Shape::of(pool);
    let mut validation = Validation::new(name, pool, &shape, context);
    for (path, text) in shape.paths().zip(pool.texts()) {
        match device_json::read(text) {
            Ok(device) => validation.device(path, text, &device),
            Err(error) => validation.unreadable(path, &error),
        }
    }
    validation.finish(name)
}

/// The numbers of devices in a pool and in the slices that the driver chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) devices: usize,
    pub(super) slices: Vec<usize>,
}

impl Shape {
    pub(super) fn of(pool: &Pool) -> Self {
        let slices = pool.slices.iter().map(|slice| slice.devices.len()).collect();
        Self { devices: pool.devices.len(), slices }
    }

    /// Returns the paths of all devices.
    pub(super) fn paths(&self) -> impl Iterator<Item = DevicePath> {
        let own = (0..self.devices).map(|device| DevicePath { slice: None, device });
        let chosen =
            self.slices.iter().enumerate().flat_map(|(slice, devices)| {
                (0..*devices).map(move |device| DevicePath { slice: Some(slice), device })
            });
        own.chain(chosen)
    }
}

/// The place of a device in a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct DevicePath {
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

/// The validation of a pool, device by device. Devices that are known to be valid need not be decoded.
pub(super) struct Validation<'a> {
    pool: &'a Pool,
    shape: &'a Shape,
    /// The errors of the pool itself.
    errors: Errors,
    device_errors: Errors,
    counters: HashMap<&'a str, &'a BTreeMap<String, Counter>>,
    /// The names under which a device can have the partition type.
    partition_type: Option<Vec<&'a str>>,
    /// The names so far; `None` if they are known to be unique.
    names: Option<HashSet<&'a [u8]>>,
    consumes_counters: bool,
    /// Whether each slice that the driver chose has a heavy device.
    is_heavy: Vec<bool>,
}

impl<'a> Validation<'a> {
    /// Validates everything but the devices.
    pub(super) fn new(name: &str, pool: &'a Pool, shape: &'a Shape, context: Option<ValidationContext<'a>>) -> Self {
        let mut errors = Errors::default();
        errors.name("name", PoolName::new(name));
        if let Some(context) = context {
            nodes(&pool.nodes, context, &mut errors);
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
        let counters = counter_sets(pool, &mut errors);
        let partition_type = partition_type(pool, context, &mut errors);
        Self {
            pool,
            shape,
            errors,
            device_errors: Errors::default(),
            counters,
            partition_type,
            names: Some(HashSet::new()),
            consumes_counters: false,
            is_heavy: vec![false; shape.slices.len()],
        }
    }

    /// Skips the check for duplicate names, because they are known to be unique.
    pub(super) fn trust_names(&mut self) {
        self.names = None;
    }

    /// Validates the next device.
    pub(super) fn device(&mut self, path: DevicePath, text: &'a [u8], one: &PublishedDevice) {
        self.count(path, text, one.is_heavy(), !one.consumes_counters.is_empty());
        let errors = &mut self.device_errors;
        device::device(path, one, self.pool.nodes == NodeSelection::PerDevice, errors);
        for (index, consumption) in one.consumes_counters.iter().enumerate() {
            let path = format_args!("{path}.consumesCounters[{index}]");
            consumed(path, consumption, &self.counters, errors);
        }
        if let Some(names) = &self.partition_type
            && !one.consumes_counters.is_empty()
            && !names.iter().any(|name| one.attributes.get(*name).is_some_and(|value| value.string.is_some()))
        {
            let problem = format_args!("a device that consumes counters needs the string attribute {}", names[0]);
            errors.push(format_args!("{path}.attributes"), problem);
        }
    }

    /// Records the next device, which is known to be valid in this pool.
    pub(super) fn valid_device(&mut self, path: DevicePath, text: &'a [u8], facts: &DeviceFacts) {
        self.count(path, text, facts.is_heavy, facts.consumes_counters);
    }

    /// Records that the next device could not be encoded.
    pub(super) fn unreadable(&mut self, path: DevicePath, error: &serde_json::Error) {
        self.device_errors.push(path, format_args!("cannot be encoded: {error}"));
    }

    /// Returns whether there are no errors so far.
    pub(super) fn is_valid(&self) -> bool {
        self.errors.errors.is_empty() && self.device_errors.errors.is_empty()
    }

    fn count(&mut self, path: DevicePath, text: &'a [u8], is_heavy: bool, consumes_counters: bool) {
        let name = device_json::name(text);
        if self.names.as_mut().is_some_and(|names| !names.insert(name)) {
            let name = String::from_utf8_lossy(name);
            self.device_errors.push(format_args!("{path}.name"), format_args!("duplicate: \"{name}\""));
        }
        self.consumes_counters |= consumes_counters;
        if let Some(slice) = path.slice {
            self.is_heavy[slice] |= is_heavy;
        }
    }

    /// Returns all errors, once all devices were there.
    pub(super) fn finish(mut self, name: &str) -> Result<(), PublishError> {
        self.slices();
        if self.partition_type.is_some() && !self.consumes_counters {
            self.errors.push("partitionTypeAttribute", "no device of the pool consumes counters");
        }
        self.errors.append(self.device_errors);
        self.errors.into_result(name)
    }

    /// Validates the slices that the driver has split itself.
    fn slices(&mut self) {
        let errors = &mut self.errors;
        let is_split = self.shape.devices == 0 && self.pool.shared_counters.is_empty();
        if !self.pool.slices.is_empty() && !is_split {
            errors.push("slices", "exclude devices and sharedCounters: set either the slices, or what is to be split");
        }
        for (index, slice) in self.pool.slices.iter().enumerate() {
            let path = format_args!("slices[{index}]");
            let devices = self.shape.slices[index];
            if devices > 0 && !slice.shared_counters.is_empty() {
                errors.push(path, "a slice has devices or shared counters, not both");
            }
            let limit = if self.is_heavy[index] { MAX_HEAVY_DEVICES } else { MAX_DEVICES };
            errors.fits(format_args!("{path}.devices"), devices, limit);
            errors.fits(format_args!("{path}.sharedCounters"), slice.shared_counters.len(), MAX_COUNTER_SETS);
        }
    }
}

/// The errors of a pool so far.
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

    /// Returns whether a count is within its limit, and adds an error if not.
    fn fits(&mut self, field: impl fmt::Display, count: usize, limit: usize) -> bool {
        if count > limit {
            self.push(field, format_args!("too many: {count}, at most {limit} are allowed"));
        }
        count <= limit
    }

    fn append(&mut self, other: Self) {
        let fits = MAX_ERRORS.saturating_sub(self.errors.len()).min(other.errors.len());
        self.omitted += other.omitted + other.errors.len() - fits;
        self.errors.extend(other.errors.into_iter().take(fits));
    }

    fn into_result(self, pool: &str) -> Result<(), PublishError> {
        if self.errors.is_empty() {
            return Ok(());
        }
        Err(PublishError::Invalid { pool: pool.to_owned(), errors: self.errors, omitted: self.omitted })
    }
}

fn nodes(nodes: &NodeSelection, context: ValidationContext<'_>, errors: &mut Errors) {
    match (nodes, context.is_on_node, context.is_single_pool) {
        (NodeSelection::ThisNode, false, false) => {
            errors.push(
                "nodes",
                "the node's name is not known: a driver sets it with --node-name or PluginBuilder::node_name, a controller \
                 without a node uses another NodeSelection",
            );
        }
        (NodeSelection::ThisNode, _, true) => errors.push(
            "nodes",
            "the pool of reconcile_pool_with_name or PublisherConfig::only_pool is for other nodes too: use a selector, all \
             nodes, or nodes per device",
        ),
        (NodeSelection::ThisNode, true, false) => {}
        (_, true, false) => errors.push(
            "nodes",
            "a driver that runs on a node publishes for that node; for a pool of other nodes use reconcile_pool_with_name \
             or PublisherConfig::only_pool",
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
            errors.push(format_args!("skipNodeOperations[{index}]"), format_args!("duplicate: {operation:?}"));
        }
    }
    if has(PREPARE) && !has(UNPREPARE) && !has(ALL_OPERATIONS) {
        errors.push("skipNodeOperations", format_args!("{PREPARE} can be skipped only together with {UNPREPARE}"));
    }
}

/// Validates counter sets, and returns the counters of each.
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
        errors.push(format_args!("{path}.name"), format_args!("duplicate: {:?}", set.name));
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

/// Validates the partition type attribute, and returns the names under which a device can have it.
fn partition_type<'a>(
    pool: &'a Pool,
    context: Option<ValidationContext<'a>>,
    errors: &mut Errors,
) -> Option<Vec<&'a str>> {
    let name = pool.partition_type_attribute.as_deref()?;
    errors.check("partitionTypeAttribute", text::qualified_name(name));
    if !name.contains('/') {
        errors.push(
            "partitionTypeAttribute",
            format_args!("{name:?} is not valid: must have a domain, as in example.com/type"),
        );
    }
    let bare = context.and_then(|context| name.strip_prefix(context.driver)?.strip_prefix('/'));
    // Without the driver's name, any domain may be its own.
    let bare = if context.is_none() { name.split_once('/').map(|(_, bare)| bare) } else { bare };
    Some([Some(name), bare].into_iter().flatten().collect())
}

/// Validates the domain of a qualified name: the API has the rule of driver names for it.
fn domain(name: &str) -> Result<(), String> {
    DriverName::new(name).map(drop).map_err(|error| format!("domain: {error}"))
}
