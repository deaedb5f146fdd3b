//! The JSON text of a device: the form of the API's v1, with the fields in the order of Kubernetes' Go type.
//!
//! A driver's devices are kept and compared as text: one of 460 bytes is three kilobytes of maps and strings. An API server
//! answers with the same text, unless it knows a quantity or a string in another form, so that most of an answer needs no
//! decoding either.

use std::collections::BTreeMap;

use drakkar_metadata::DeviceAttribute;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, DeviceCounterConsumption, DeviceTaint, NodeAllocatableResource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize, Serializer};

use super::resources::{Capacity, DeviceNodes, PublishedDevice};

/// The beginning of every text.
const NAME: &[u8] = br#"{"name":""#;

/// A device as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: &'a BTreeMap<String, DeviceAttribute>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "capacities")]
    capacity: &'a BTreeMap<String, Capacity>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    consumes_counters: &'a [DeviceCounterConsumption],
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_selector: Option<&'a NodeSelector>,
    #[serde(skip_serializing_if = "is_false")]
    all_nodes: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    taints: &'a [DeviceTaint],
    #[serde(skip_serializing_if = "is_false")]
    binds_to_node: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    binding_conditions: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    binding_failure_conditions: &'a [String],
    #[serde(skip_serializing_if = "is_false")]
    allow_multiple_allocations: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_allocatable_resources: &'a BTreeMap<String, NodeAllocatableResource>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenCapacity<'a> {
    value: &'a Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_policy: Option<&'a CapacityRequestPolicy>,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn capacities<S: Serializer>(capacity: &BTreeMap<String, Capacity>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(capacity.iter().map(|(name, capacity)| {
        let request_policy = capacity.request_policy.as_deref();
        (name, WrittenCapacity { value: &capacity.value, request_policy })
    }))
}

/// Appends the text of a device.
pub(super) fn write(device: &PublishedDevice, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    let PublishedDevice {
        name,
        attributes,
        capacity,
        taints,
        consumes_counters,
        nodes,
        allow_multiple_allocations,
        binds_to_node,
        binding_conditions,
        binding_failure_conditions,
        node_allocatable_resources,
    } = device;
    let (node_name, node_selector, all_nodes) = match nodes {
        None => (None, None, false),
        Some(DeviceNodes::Node(name)) => (Some(name.as_str()), None, false),
        Some(DeviceNodes::Selector(selector)) => (None, Some(&**selector), false),
        Some(DeviceNodes::AllNodes) => (None, None, true),
    };
    let written = Written {
        name,
        attributes,
        capacity,
        consumes_counters,
        node_name,
        node_selector,
        all_nodes,
        // In whole seconds, as the API has them.
        taints,
        binds_to_node: *binds_to_node,
        binding_conditions,
        binding_failure_conditions,
        allow_multiple_allocations: *allow_multiple_allocations,
        node_allocatable_resources,
    };
    serde_json::to_writer(out, &written)
}

/// A device as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    name: String,
    #[serde(default)]
    attributes: BTreeMap<String, DeviceAttribute>,
    #[serde(default)]
    capacity: BTreeMap<String, ReadCapacity>,
    #[serde(default)]
    consumes_counters: Vec<DeviceCounterConsumption>,
    #[serde(default)]
    node_name: Option<String>,
    #[serde(default)]
    node_selector: Option<Box<NodeSelector>>,
    #[serde(default)]
    all_nodes: bool,
    #[serde(default)]
    taints: Vec<DeviceTaint>,
    #[serde(default)]
    binds_to_node: bool,
    #[serde(default)]
    binding_conditions: Vec<String>,
    #[serde(default)]
    binding_failure_conditions: Vec<String>,
    #[serde(default)]
    allow_multiple_allocations: bool,
    #[serde(default)]
    node_allocatable_resources: BTreeMap<String, NodeAllocatableResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadCapacity {
    value: Quantity,
    #[serde(default)]
    request_policy: Option<Box<CapacityRequestPolicy>>,
}

/// Decodes the text of a device.
pub(super) fn read(text: &[u8]) -> Result<PublishedDevice, serde_json::Error> {
    let read: Read = serde_json::from_slice(text)?;
    let capacity = |(name, capacity): (String, ReadCapacity)| {
        (name, Capacity { value: capacity.value, request_policy: capacity.request_policy })
    };
    let nodes = match (read.node_name, read.node_selector) {
        (Some(name), _) => Some(DeviceNodes::Node(name)),
        (None, Some(selector)) => Some(DeviceNodes::Selector(selector)),
        (None, None) => read.all_nodes.then_some(DeviceNodes::AllNodes),
    };
    Ok(PublishedDevice {
        name: read.name,
        attributes: read.attributes,
        capacity: read.capacity.into_iter().map(capacity).collect(),
        taints: read.taints,
        consumes_counters: read.consumes_counters,
        nodes,
        allow_multiple_allocations: read.allow_multiple_allocations,
        binds_to_node: read.binds_to_node,
        binding_conditions: read.binding_conditions,
        binding_failure_conditions: read.binding_failure_conditions,
        node_allocatable_resources: read.node_allocatable_resources,
    })
}

#[derive(Deserialize)]
struct ReadAttributes {
    #[serde(default)]
    attributes: BTreeMap<String, DeviceAttribute>,
}

/// Decodes the attributes of a device.
pub(super) fn read_attributes(text: &[u8]) -> Result<BTreeMap<String, DeviceAttribute>, serde_json::Error> {
    serde_json::from_slice::<ReadAttributes>(text).map(|read| read.attributes)
}

/// Returns the name in a text as it is written there: the name itself if it is valid, which needs no escapes.
pub(super) fn name(text: &[u8]) -> &[u8] {
    let name = text.strip_prefix(NAME).unwrap_or_default();
    let mut is_escaped = false;
    let end = name.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests;
