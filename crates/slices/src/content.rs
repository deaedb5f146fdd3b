//! The meaning of devices and slices, as digests.
//!
//! A device is its JSON text and a digest of its meaning. Two devices with equal digests are the same to an API server:
//! there is no difference between empty and missing, nor between `1Gi` and `1024Mi`. Times of taints are not part of the digest
//! and compared on their own. Slices have digests too, so the comparison of ten thousand devices is one of a few dozen digests.

use drakkar_metadata::DeviceAttribute;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::resources::{DeviceNodes, NodeSelection, Pool, PublishedDevice};

/// A digest of the meaning of a device or a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 16]);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    fn finish(hash: Sha256) -> Self {
        let hash: [u8; 32] = hash.finalize().into();
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash[..16]);
        Self(digest)
    }
}

/// The identity of a taint and the time at which it was added, in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaintTime {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) effect: String,
    pub(super) added: Option<i64>,
}

impl TaintTime {
    fn of(taint: &api::DeviceTaint) -> Self {
        Self {
            key: taint.key.clone(),
            value: taint.value.clone().filter(|value| !value.is_empty()),
            effect: taint.effect.clone(),
            added: taint.time_added.as_ref().map(|time| time.0.as_second()),
        }
    }

    pub(super) fn is_same_taint(&self, other: &Self) -> bool {
        (&self.key, &self.value, &self.effect) == (&other.key, &other.value, &other.effect)
    }

    /// Returns whether the times of the same taints differ enough for a write: the API has whole seconds, and rounding may
    /// change them by one.
    pub(super) fn differ<'a>(
        ours: impl IntoIterator<Item = &'a Self>,
        theirs: impl IntoIterator<Item = &'a Self>,
    ) -> bool {
        ours.into_iter().zip(theirs).any(|(ours, theirs)| match (ours.added, theirs.added) {
            (Some(ours), Some(theirs)) => ours.abs_diff(theirs) > 1,
            _ => false,
        })
    }
}

/// What is known of a device beside its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceFacts {
    pub(super) digest: Digest,
    /// Whether a slice with this device may have only half as many devices.
    pub(super) is_heavy: bool,
    pub(super) consumes_counters: bool,
}

impl DeviceFacts {
    /// Digests a device. Returns its taints too.
    pub(super) fn of(device: PublishedDevice) -> Result<(Self, Box<[TaintTime]>), serde_json::Error> {
        let is_heavy = device.is_heavy();
        let consumes_counters = !device.consumes_counters.is_empty();
        let mut device = api_device(device);
        let taints = taint_times(&device);
        let digest = device_digest(&mut device)?;
        Ok((Self { digest, is_heavy, consumes_counters }, taints))
    }
}

pub(super) fn taint_times(device: &api::Device) -> Box<[TaintTime]> {
    device.taints.iter().flatten().map(TaintTime::of).collect()
}

/// The fields of a slice's spec other than its devices, driver, pool and node name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SliceHeader {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_selector: Option<NodeSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) all_nodes: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_device_node_selection: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partition_type_attribute: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skip_node_operations: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shared_counters: Option<Vec<api::CounterSet>>,
}

impl SliceHeader {
    /// Returns the fields that all slices of a pool have in common.
    pub(super) fn of_pool(pool: &Pool) -> Self {
        Self {
            node_selector: match &pool.nodes {
                NodeSelection::Selector(selector) => Some((**selector).clone()),
                _ => None,
            },
            all_nodes: (pool.nodes == NodeSelection::AllNodes).then_some(true),
            per_device_node_selection: (pool.nodes == NodeSelection::PerDevice).then_some(true),
            partition_type_attribute: None,
            skip_node_operations: non_empty(pool.skip_node_operations.clone()),
            shared_counters: None,
        }
    }

    /// Takes the header out of a slice's spec.
    pub(super) fn take(spec: &mut api::ResourceSliceSpec) -> Self {
        Self {
            node_selector: spec.node_selector.take(),
            all_nodes: spec.all_nodes.take().filter(|on| *on),
            per_device_node_selection: spec.per_device_node_selection.take().filter(|on| *on),
            partition_type_attribute: spec.partition_type_attribute.take(),
            skip_node_operations: spec.skip_node_operations.take().and_then(non_empty),
            shared_counters: spec.shared_counters.take().and_then(non_empty),
        }
    }

    /// Returns the digest of a slice with this header and these devices.
    pub(super) fn digest(&self, devices: impl Iterator<Item = Digest>) -> Result<Digest, serde_json::Error> {
        let mut header = self.clone();
        for counter in header.shared_counters.iter_mut().flatten().flat_map(|set| set.counters.values_mut()) {
            normalize(&mut counter.value);
        }
        let mut hash = Sha256::new_with_prefix(serde_json::to_vec(&header)?);
        for device in devices {
            hash.update(device.0);
        }
        Ok(Digest::finish(hash))
    }
}

/// Returns the digest of a device, which is normalized.
pub(super) fn device_digest(device: &mut api::Device) -> Result<Digest, serde_json::Error> {
    normalize_device(device);
    Ok(Digest::of(&serde_json::to_vec(device)?))
}

/// Normalizes a device: all devices of the same meaning have the same form. Times of taints are removed.
pub(super) fn normalize_device(device: &mut api::Device) {
    for attribute in device.attributes.iter_mut().flat_map(|attributes| attributes.values_mut()) {
        drop_empty(&mut attribute.ints);
        drop_empty(&mut attribute.bools);
        drop_empty(&mut attribute.strings);
        drop_empty(&mut attribute.versions);
    }
    device.attributes.take_if(|map| map.is_empty());
    device.capacity.take_if(|map| map.is_empty());
    for capacity in device.capacity.iter_mut().flat_map(|capacity| capacity.values_mut()) {
        normalize(&mut capacity.value);
        let Some(policy) = &mut capacity.request_policy else { continue };
        drop_empty(&mut policy.valid_values);
        policy.default.iter_mut().for_each(normalize);
        policy.valid_values.iter_mut().flatten().for_each(normalize);
        if let Some(range) = &mut policy.valid_range {
            normalize(&mut range.min);
            range.max.iter_mut().for_each(normalize);
            range.step.iter_mut().for_each(normalize);
        }
    }
    drop_empty(&mut device.consumes_counters);
    for consumption in device.consumes_counters.iter_mut().flatten() {
        consumption.counters.values_mut().for_each(|counter| normalize(&mut counter.value));
        drop_empty(&mut consumption.compatibility_groups);
    }
    drop_empty(&mut device.taints);
    for taint in device.taints.iter_mut().flatten() {
        taint.time_added = None;
        taint.value.take_if(|value| value.is_empty());
    }
    drop_empty(&mut device.binding_conditions);
    drop_empty(&mut device.binding_failure_conditions);
    for flag in [&mut device.all_nodes, &mut device.allow_multiple_allocations, &mut device.binds_to_node] {
        flag.take_if(|on| !*on);
    }
    device.node_allocatable_resources.take_if(|map| map.is_empty());
    for resource in device.node_allocatable_resources.iter_mut().flat_map(|resources| resources.values_mut()) {
        if let Some(mapping) = &mut resource.mapping {
            mapping.capacity_multiplier.iter_mut().for_each(normalize);
            mapping.device_multiplier.iter_mut().for_each(normalize);
        }
        if let Some(overhead) = &mut resource.overhead {
            overhead.per_pod.iter_mut().for_each(normalize);
            overhead.per_container.iter_mut().for_each(normalize);
        }
    }
}

fn drop_empty<T>(list: &mut Option<Vec<T>>) {
    list.take_if(|list| list.is_empty());
}

/// Normalizes a quantity: all texts of the same number become one.
fn normalize(quantity: &mut Quantity) {
    if let Ok(number) = quantity.0.parse::<drakkar_client::Quantity>() {
        quantity.0 = number.exact().to_string();
    }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Converts a device to the API's type.
fn api_device(device: PublishedDevice) -> api::Device {
    let (node_name, node_selector, all_nodes) = match device.nodes {
        None => (None, None, None),
        Some(DeviceNodes::Node(name)) => (Some(name), None, None),
        Some(DeviceNodes::Selector(selector)) => (None, Some(*selector), None),
        Some(DeviceNodes::AllNodes) => (None, None, Some(true)),
    };
    let attributes = device.attributes.into_iter().map(|(name, value)| (name, api_attribute(value)));
    let capacity = device.capacity.into_iter().map(|(name, capacity)| {
        let request_policy = capacity.request_policy.map(|policy| *policy);
        (name, api::DeviceCapacity { value: capacity.value, request_policy })
    });
    api::Device {
        name: device.name,
        attributes: Some(attributes.collect()).filter(|map: &std::collections::BTreeMap<_, _>| !map.is_empty()),
        capacity: Some(capacity.collect()).filter(|map: &std::collections::BTreeMap<_, _>| !map.is_empty()),
        consumes_counters: non_empty(device.consumes_counters),
        taints: non_empty(device.taints),
        node_name,
        node_selector,
        all_nodes,
        allow_multiple_allocations: device.allow_multiple_allocations.then_some(true),
        binds_to_node: device.binds_to_node.then_some(true),
        binding_conditions: non_empty(device.binding_conditions),
        binding_failure_conditions: non_empty(device.binding_failure_conditions),
        node_allocatable_resources: Some(device.node_allocatable_resources).filter(|map| !map.is_empty()),
    }
}

fn api_attribute(attribute: DeviceAttribute) -> api::DeviceAttribute {
    let DeviceAttribute { int, bool, string, version, ints, bools, strings, versions } = attribute;
    api::DeviceAttribute {
        int,
        bool,
        string,
        version,
        ints: non_empty(ints),
        bools: non_empty(bools),
        strings: non_empty(strings),
        versions: non_empty(versions),
    }
}
