//! What a driver publishes: pools of devices, in types that are pleasant to fill in.
//!
//! Where the API's own types are small and hard to get wrong they are used as they are ([`CounterSet`], [`DeviceTaint`],
//! [`CapacityRequestPolicy`] and so on). Devices and capacities have types of their own: a driver has thousands of the
//! former, and the API's take several kilobytes each; attributes are those that metadata has, so that a driver makes them
//! once for both.

use std::collections::BTreeMap;

use drakkar_metadata::DeviceAttribute;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Counter, CounterSet, DeviceCounterConsumption, DeviceTaint, NodeAllocatableResource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Everything that a driver has to offer, by pool.
///
/// ```
/// use drakkar_plugin::{DriverResources, Pool, PublishedDevice};
///
/// let gpu = |name: &str| PublishedDevice::new(name).attribute("model", "m1").capacity("memory", "80Gi");
/// let resources = DriverResources::default()
///     .pool("node-1", Pool::default().device(gpu("gpu-0")).device(gpu("gpu-1")));
/// resources.validate()?;
/// # Ok::<(), drakkar_plugin::BoxError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DriverResources {
    /// The pools by name. By convention a pool of the devices in a node is called like the node.
    pub pools: BTreeMap<String, Pool>,
}

impl DriverResources {
    /// With a pool more, or in place of the one of that name.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>, pool: Pool) -> Self {
        self.pools.insert(name.into(), pool);
        self
    }
}

/// Devices that are published together. The scheduler takes the first that fits, so their order is the order of preference.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// Which nodes have the devices.
    pub nodes: NodeSelection,
    /// The devices. The framework splits them into slices.
    pub devices: Vec<PublishedDevice>,
    /// What devices of the pool share, and consume parts of.
    pub shared_counters: Vec<CounterSet>,
    /// The slices, if the driver wants to say what is in each; then [`Self::devices`] and [`Self::shared_counters`] must be
    /// empty.
    pub slices: Vec<PoolSlice>,
    /// How many devices to put into a slice at most. The API's limits are the default: 128, and 64 where a device has taints,
    /// consumes counters or has a list among its attributes. A driver that taints devices now and then does well to say 64:
    /// the first taint then changes one slice instead of splitting all.
    pub devices_per_slice: Option<usize>,
    /// A generation to start from, if the driver counts its own. The framework's is used if that is higher.
    pub generation: i64,
    /// The string attribute, with its domain, that tells of which type a partition is (`DRAPartitionableDevicesType`).
    pub partition_type_attribute: Option<String>,
    /// Calls that a kubelet need not make for these devices: `NodePrepareResources`, `NodeUnprepareResources` or `*`
    /// (`DRAOptionalNodeOperations`).
    pub skip_node_operations: Vec<String>,
}

impl Pool {
    /// With a device more, behind the others.
    #[must_use]
    pub fn device(mut self, device: PublishedDevice) -> Self {
        self.devices.push(device);
        self
    }

    /// With more devices, behind the others.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = PublishedDevice>) -> Self {
        self.devices.extend(devices);
        self
    }

    /// With something more that devices share: counters by name, and how much there is of each.
    #[must_use]
    pub fn counter_set<N: Into<String>, Q: Into<String>>(
        mut self,
        name: impl Into<String>,
        counters: impl IntoIterator<Item = (N, Q)>,
    ) -> Self {
        self.shared_counters.push(CounterSet { name: name.into(), counters: counted(counters) });
        self
    }

    /// With a slice more whose content the driver chooses.
    #[must_use]
    pub fn slice(mut self, slice: PoolSlice) -> Self {
        self.slices.push(slice);
        self
    }

    /// On other nodes than this one.
    #[must_use]
    pub fn nodes(mut self, nodes: NodeSelection) -> Self {
        self.nodes = nodes;
        self
    }

    /// The pool's devices, in whatever way they are given.
    pub(super) fn all_devices(&self) -> impl Iterator<Item = &PublishedDevice> {
        self.devices.iter().chain(self.slices.iter().flat_map(|slice| &slice.devices))
    }
}

/// A slice whose content the driver chooses: devices or shared counters, not both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolSlice {
    /// The devices.
    pub devices: Vec<PublishedDevice>,
    /// What devices of the pool share.
    pub shared_counters: Vec<CounterSet>,
}

/// Which nodes have the devices of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum NodeSelection {
    /// The node that the driver runs on.
    #[default]
    ThisNode,
    /// Those that a selector (of one term) selects. Only for the pool of
    /// [`reconcile_pool_with_name`](crate::PluginBuilder::reconcile_pool_with_name), or for a driver that has no node.
    Selector(Box<NodeSelector>),
    /// All. Only as above.
    AllNodes,
    /// Each device says it for itself. Only as above.
    PerDevice,
}

/// Which nodes have a device, in a pool with [`NodeSelection::PerDevice`].
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceNodes {
    /// The one of this name.
    Node(String),
    /// Those that a selector (of one term) selects.
    Selector(Box<NodeSelector>),
    /// All.
    AllNodes,
}

/// A device as the cluster sees it. ([`crate::Device`] is one that was prepared for a claim.)
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedDevice {
    /// Its name in the pool: a DNS label.
    pub name: String,
    /// Attributes by name: bare (`model`) in the driver's own domain, or with a domain (`example.com/model`).
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Capacities by name, which is like that of an attribute.
    pub capacity: BTreeMap<String, Capacity>,
    /// What keeps pods off the device. The time is set by the API server if it is not given, and then kept.
    pub taints: Vec<DeviceTaint>,
    /// What the device consumes of the pool's shared counters.
    pub consumes_counters: Vec<DeviceCounterConsumption>,
    /// Which nodes have it, in a pool with [`NodeSelection::PerDevice`].
    pub nodes: Option<DeviceNodes>,
    /// Whether several claims may have the device, each a part of its capacity.
    pub allow_multiple_allocations: bool,
    /// Whether a claim with the device is limited to the node that was chosen for it.
    pub binds_to_node: bool,
    /// Conditions in the device's status that all must be true before a pod is bound to the node.
    pub binding_conditions: Vec<String>,
    /// Conditions any of which means that binding has failed.
    pub binding_failure_conditions: Vec<String>,
    /// What of the node's own resources comes with the device (`DRANodeAllocatableResources`).
    pub node_allocatable_resources: BTreeMap<String, NodeAllocatableResource>,
}

impl PublishedDevice {
    /// A device of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// With an attribute more.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<DeviceAttribute>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// With a capacity more: `"80Gi"`, or a [`Capacity`] that also says what can be asked for.
    #[must_use]
    pub fn capacity(mut self, name: impl Into<String>, capacity: impl Into<Capacity>) -> Self {
        self.capacity.insert(name.into(), capacity.into());
        self
    }

    /// With a taint more. The effect is `NoSchedule`, `NoExecute` or `None`.
    #[must_use]
    pub fn taint(mut self, key: impl Into<String>, value: impl Into<String>, effect: impl Into<String>) -> Self {
        let value = Some(value.into()).filter(|value: &String| !value.is_empty());
        self.taints.push(DeviceTaint { key: key.into(), value, effect: effect.into(), time_added: None });
        self
    }

    /// Consuming parts of a set of the pool's shared counters.
    #[must_use]
    pub fn consumes<N: Into<String>, Q: Into<String>>(
        mut self,
        counter_set: impl Into<String>,
        counters: impl IntoIterator<Item = (N, Q)>,
    ) -> Self {
        self.consumes_counters.push(DeviceCounterConsumption {
            counter_set: counter_set.into(),
            counters: counted(counters),
            compatibility_groups: None,
        });
        self
    }

    /// For several claims at once.
    #[must_use]
    pub fn allow_multiple_allocations(mut self) -> Self {
        self.allow_multiple_allocations = true;
        self
    }

    /// To be bound only when all these conditions are true, and not when one of the others is.
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

    /// On these nodes, in a pool with [`NodeSelection::PerDevice`].
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

    /// Whether a slice with this device may have only half of the devices.
    pub(super) fn is_heavy(&self) -> bool {
        !self.taints.is_empty() || !self.consumes_counters.is_empty() || self.has_lists()
    }
}

/// How much there is of something in a device, and what can be asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capacity {
    /// How much there is.
    pub value: Quantity,
    /// What a claim can ask for, in a device that allows multiple allocations.
    pub request_policy: Option<Box<CapacityRequestPolicy>>,
}

impl Capacity {
    /// Where a claim can ask for parts, by this rule.
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

fn counted<N: Into<String>, Q: Into<String>>(counters: impl IntoIterator<Item = (N, Q)>) -> BTreeMap<String, Counter> {
    counters.into_iter().map(|(name, value)| (name.into(), Counter { value: Quantity(value.into()) })).collect()
}
