//! The resources that a driver publishes: pools of devices.
//!
//! Small types of the API that are hard to get wrong are used as they are ([`CounterSet`], [`DeviceTaint`],
//! [`CapacityRequestPolicy`] and others). Devices have types of their own: one to make them with, whose attributes are those of
//! device metadata, so that a driver makes them once for both; and a list that is small, because a driver may have thousands.

use std::collections::BTreeMap;

use drakkar_metadata::DeviceAttribute;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Counter, CounterSet, DeviceCounterConsumption, DeviceTaint, NodeAllocatableResource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::devices::Devices;

/// All resources of a driver, by pool.
///
/// ```
/// use drakkar_slices::{DriverResources, Pool, PublishedDevice};
///
/// let gpu = |name: &str| PublishedDevice::new(name).attribute("model", "m1").capacity("memory", "80Gi");
/// let resources = DriverResources::default()
///     .pool("node-1", Pool::default().device(gpu("gpu-0")).device(gpu("gpu-1")));
/// resources.validate()?;
/// # Ok::<(), drakkar_slices::PublishError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DriverResources {
    /// The pools by name. By convention the pool of a node's own devices has the name of the node.
    pub pools: BTreeMap<String, Pool>,
}

impl DriverResources {
    /// Adds a pool, or replaces the one of that name.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>, pool: Pool) -> Self {
        self.pools.insert(name.into(), pool);
        self
    }
}

/// A pool of devices. The scheduler takes the first device that fits, so their order is the order of preference.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// The nodes on which the devices are available.
    pub nodes: NodeSelection,
    /// The devices. The publisher splits them into slices.
    pub devices: Devices,
    /// Sets of counters that devices of the pool share and consume.
    pub shared_counters: Vec<CounterSet>,
    /// The slices, if the driver splits the pool itself. Then [`Self::devices`] and [`Self::shared_counters`] must be empty.
    pub slices: Vec<PoolSlice>,
    /// The largest number of devices in a slice. The default is the API's limit: 128, or 64 if a device in the slice has
    /// taints, consumes counters, or has a list attribute. Set 64 if devices are tainted at times: the first taint then changes
    /// one slice instead of splitting all.
    pub devices_per_slice: Option<usize>,
    /// The lowest generation to publish with, if the driver counts its own. The publisher's is used if that is higher.
    pub generation: i64,
    /// The string attribute, with its domain, that has the type of a partition (`DRAPartitionableDevicesType`).
    pub partition_type_attribute: Option<String>,
    /// The calls that a kubelet skips for these devices: `NodePrepareResources`, `NodeUnprepareResources` or `*`
    /// (`DRAOptionalNodeOperations`).
    pub skip_node_operations: Vec<String>,
}

impl Pool {
    /// Appends a device.
    #[must_use]
    pub fn device(mut self, device: PublishedDevice) -> Self {
        self.devices.push(device);
        self
    }

    /// Appends devices.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = PublishedDevice>) -> Self {
        self.devices.extend(devices);
        self
    }

    /// Adds a set of shared counters: their names and values.
    #[must_use]
    pub fn counter_set<N: Into<String>, Q: Into<String>>(
        mut self,
        name: impl Into<String>,
        counters: impl IntoIterator<Item = (N, Q)>,
    ) -> Self {
        self.shared_counters.push(CounterSet { name: name.into(), counters: counters_of(counters) });
        self
    }

    /// Appends a slice whose content the driver chooses.
    #[must_use]
    pub fn slice(mut self, slice: PoolSlice) -> Self {
        self.slices.push(slice);
        self
    }

    /// Sets the nodes on which the devices are available.
    #[must_use]
    pub fn nodes(mut self, nodes: NodeSelection) -> Self {
        self.nodes = nodes;
        self
    }

    /// Returns the texts of all devices of the pool, split into slices by the driver or not.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.devices.texts().chain(self.slices.iter().flat_map(|slice| slice.devices.texts()))
    }
}

/// A slice whose content the driver chooses: devices or shared counters, not both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolSlice {
    /// The devices.
    pub devices: Devices,
    /// Sets of counters that devices of the pool share.
    pub shared_counters: Vec<CounterSet>,
}

/// The nodes on which the devices of a pool are available.
///
/// A publisher that runs on a node ([`PublisherConfig::node`](crate::PublisherConfig::node)) publishes for
/// [`Self::ThisNode`]; all other selections are for a publisher without a node, or one with
/// [`PublisherConfig::only_pool`](crate::PublisherConfig::only_pool).
#[derive(Debug, Clone, Default, PartialEq)]
pub enum NodeSelection {
    /// The node that the publisher runs on.
    #[default]
    ThisNode,
    /// The nodes that a selector with one term selects.
    Selector(Box<NodeSelector>),
    /// All nodes.
    AllNodes,
    /// The nodes that each device has in [`PublishedDevice::nodes`].
    PerDevice,
}

/// The nodes on which a device is available, in a pool with [`NodeSelection::PerDevice`].
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceNodes {
    /// The node of this name.
    Node(String),
    /// The nodes that a selector selects.
    Selector(Box<NodeSelector>),
    /// All nodes.
    AllNodes,
}

/// A device as it is published.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedDevice {
    /// The name of the device, unique in its pool: a DNS label.
    pub name: String,
    /// Attributes by name: without a domain (`model`) in that of the driver, or with one (`example.com/model`).
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Capacities by name, in the same form as those of attributes.
    pub capacity: BTreeMap<String, Capacity>,
    /// Taints, which keep pods off the device. A taint without a time gets that of its first write, and keeps it.
    pub taints: Vec<DeviceTaint>,
    /// The shared counters of the pool that the device consumes.
    pub consumes_counters: Vec<DeviceCounterConsumption>,
    /// The nodes on which the device is available, in a pool with [`NodeSelection::PerDevice`].
    pub nodes: Option<DeviceNodes>,
    /// Whether several claims may share the device, each with a part of its capacity.
    pub allow_multiple_allocations: bool,
    /// Whether an allocated claim is limited to the node that was chosen for it.
    pub binds_to_node: bool,
    /// Conditions of the device's status that must all be true before a pod is bound to its node.
    pub binding_conditions: Vec<String>,
    /// Conditions of the device's status of which each means that binding has failed.
    pub binding_failure_conditions: Vec<String>,
    /// Resources of the node that are allocated with the device (`DRANodeAllocatableResources`).
    pub node_allocatable_resources: BTreeMap<String, NodeAllocatableResource>,
}

impl PublishedDevice {
    /// A device of this name, without attributes.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<DeviceAttribute>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Adds a capacity: `"80Gi"`, or a [`Capacity`] with a request policy.
    #[must_use]
    pub fn capacity(mut self, name: impl Into<String>, capacity: impl Into<Capacity>) -> Self {
        self.capacity.insert(name.into(), capacity.into());
        self
    }

    /// Adds a taint. The effect is `NoSchedule`, `NoExecute` or `None`.
    #[must_use]
    pub fn taint(mut self, key: impl Into<String>, value: impl Into<String>, effect: impl Into<String>) -> Self {
        let value = Some(value.into()).filter(|value: &String| !value.is_empty());
        self.taints.push(DeviceTaint { key: key.into(), value, effect: effect.into(), time_added: None });
        self
    }

    /// Consumes counters of a set that the pool shares.
    #[must_use]
    pub fn consumes<N: Into<String>, Q: Into<String>>(
        mut self,
        counter_set: impl Into<String>,
        counters: impl IntoIterator<Item = (N, Q)>,
    ) -> Self {
        self.consumes_counters.push(DeviceCounterConsumption {
            counter_set: counter_set.into(),
            counters: counters_of(counters),
            compatibility_groups: None,
        });
        self
    }

    /// Allows several claims to share the device.
    #[must_use]
    pub fn allow_multiple_allocations(mut self) -> Self {
        self.allow_multiple_allocations = true;
        self
    }

    /// Sets the binding conditions, and the conditions that mean that binding has failed.
    #[must_use]
    pub fn binding_conditions<C: Into<String>, F: Into<String>>(
        mut self,
        conditions: impl IntoIterator<Item = C>,
        failures: impl IntoIterator<Item = F>,
    ) -> Self {
        self.binding_conditions = conditions.into_iter().map(Into::into).collect();
        self.binding_failure_conditions = failures.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the nodes on which the device is available, in a pool with [`NodeSelection::PerDevice`].
    #[must_use]
    pub fn nodes(mut self, nodes: DeviceNodes) -> Self {
        self.nodes = Some(nodes);
        self
    }

    pub(super) fn has_lists(&self) -> bool {
        let is_list = |attribute: &DeviceAttribute| {
            !(attribute.ints.is_empty()
                && attribute.bools.is_empty()
                && attribute.strings.is_empty()
                && attribute.versions.is_empty())
        };
        self.attributes.values().any(is_list)
    }

    /// Returns whether a slice with this device may have only half as many devices.
    pub(super) fn is_heavy(&self) -> bool {
        !self.taints.is_empty() || !self.consumes_counters.is_empty() || self.has_lists()
    }
}

/// A capacity of a device, and the parts of it that claims can request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capacity {
    /// The whole capacity.
    pub value: Quantity,
    /// The parts that a claim can request, in a device that allows multiple allocations.
    pub request_policy: Option<Box<CapacityRequestPolicy>>,
}

impl Capacity {
    /// Sets the policy for requests of parts of the capacity.
    #[must_use]
    pub fn request_policy(mut self, policy: CapacityRequestPolicy) -> Self {
        self.request_policy = Some(Box::new(policy));
        self
    }
}

impl From<&str> for Capacity {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl From<String> for Capacity {
    fn from(value: String) -> Self {
        Quantity(value).into()
    }
}

impl From<Quantity> for Capacity {
    fn from(value: Quantity) -> Self {
        Self { value, request_policy: None }
    }
}

fn counters_of<N: Into<String>, Q: Into<String>>(
    counters: impl IntoIterator<Item = (N, Q)>,
) -> BTreeMap<String, Counter> {
    counters.into_iter().map(|(name, value)| (name.into(), Counter { value: Quantity(value.into()) })).collect()
}
