//! The recorded answers of a kube-apiserver to slices, replayed on the validation of resources.
//!
//! Each recorded slice is converted to the pool that a driver would publish for it. Slices that no driver can publish (with an
//! owner, a node name that the framework sets, or a value of another type) are skipped.

use std::collections::BTreeMap;

use drakkar_metadata::name::DriverName;
use drakkar_plugin::{
    Capacity, DeviceAttribute, DeviceNodes, DriverResources, NodeSelection, Pool, PoolSlice, PublishedDevice,
};
use k8s_openapi::api::resource::v1 as api;
use serde_json::Value;

/// The table that the rules of the embedded API server are compared with.
#[path = "../../../apiserver/src/rules/tests/recorded.rs"]
mod table;

use table::{Case, Table, with};

/// The least number of recorded slices that are compared, so that the test cannot shrink unnoticed.
const COMPARED: usize = 275;

/// The slices for which the validation differs from the server, and why.
const DIFFERENT: [(&str, &str); 5] = [
    ("attribute name 'a/b/c'", "no request can name such an attribute"),
    ("list attribute with the gate off", "accepted where the gate is on"),
    ("per device with the gate off", "accepted where the gate is on"),
    ("partition type changes with the gate off", "accepted where the gate is on"),
    ("partition type with the gate off", "refused where the gate is on; dropped where it is off"),
];

/// Returns the resources that a driver would publish for this slice, if it can.
fn resources(case: &Case, table: &Table) -> Option<DriverResources> {
    let base = &table.bases[&case.base];
    let is_update = case.on == "update";
    // The framework sets the names of objects, drivers and nodes; a pool of another name is another pool.
    let is_set_by_driver = |(path, value): &(String, Value)| {
        let never = ["/metadata", "/apiVersion", "/kind", "/spec/driver", "/spec/pool/resourceSliceCount"];
        let is_immutable = is_update && ["/spec/nodeName", "/spec/pool/name"].contains(&path.as_str());
        let names_node = path == "/spec/nodeName" && !value.is_null();
        !never.iter().any(|prefix| path.starts_with(prefix)) && !is_immutable && !names_node
    };
    let is_slice = base["kind"] == "ResourceSlice" && (is_update || case.on == "create");
    if !is_slice || !case.set.iter().all(is_set_by_driver) {
        return None;
    }
    let object = with(with(base.clone(), &case.old), &case.set);
    let spec: api::ResourceSliceSpec = serde_json::from_value(object["spec"].clone()).ok()?;
    let nodes = match (spec.node_name, spec.node_selector, spec.all_nodes, spec.per_device_node_selection) {
        (Some(_), None, None, None) => NodeSelection::ThisNode,
        (None, Some(selector), None, None) => NodeSelection::Selector(Box::new(selector)),
        (None, None, Some(true), None) => NodeSelection::AllNodes,
        (None, None, None, Some(true)) => NodeSelection::PerDevice,
        _ => return None,
    };
    let devices = list(spec.devices)?.into_iter().map(device).collect::<Option<Vec<_>>>()?;
    let counters = PoolSlice { shared_counters: counter_sets(&devices), ..PoolSlice::default() };
    let slice = PoolSlice { devices: devices.into(), shared_counters: spec.shared_counters.unwrap_or_default() };
    let has_counters = !counters.shared_counters.is_empty();
    let pool = Pool {
        nodes,
        slices: std::iter::once(slice).chain(has_counters.then_some(counters)).collect(),
        generation: spec.pool.generation,
        partition_type_attribute: spec.partition_type_attribute,
        skip_node_operations: spec.skip_node_operations.unwrap_or_default(),
        ..Pool::default()
    };
    Some(DriverResources::default().pool(spec.pool.name, pool))
}

/// Returns an optional list. `None` for one that is empty: the framework does not send empty lists.
fn list<T>(list: Option<Vec<T>>) -> Option<Vec<T>> {
    match list {
        Some(list) if list.is_empty() => None,
        list => Some(list.unwrap_or_default()),
    }
}

/// Returns the counters that devices consume, which are in another slice of their pool.
fn counter_sets(devices: &[PublishedDevice]) -> Vec<api::CounterSet> {
    let mut sets: BTreeMap<String, BTreeMap<String, api::Counter>> = BTreeMap::new();
    for consumed in devices.iter().flat_map(|device| &device.consumes_counters) {
        sets.entry(consumed.counter_set.clone()).or_default().extend(consumed.counters.clone());
    }
    sets.into_iter().map(|(name, counters)| api::CounterSet { name, counters }).collect()
}

fn device(device: api::Device) -> Option<PublishedDevice> {
    let nodes = match (device.node_name, device.node_selector, device.all_nodes) {
        (None, None, None) => None,
        (Some(name), None, None) => Some(DeviceNodes::Node(name)),
        (None, Some(selector), None) => Some(DeviceNodes::Selector(Box::new(selector))),
        (None, None, Some(true)) => Some(DeviceNodes::AllNodes),
        _ => return None,
    };
    let capacity = device.capacity.unwrap_or_default().into_iter().map(|(name, capacity)| {
        let request_policy = capacity.request_policy.map(Box::new);
        // A missing value is decoded as an empty text, and would be sent as one.
        (!capacity.value.0.is_empty()).then_some((name, Capacity { value: capacity.value, request_policy }))
    });
    let attributes = device.attributes.unwrap_or_default().into_iter();
    let attributes = attributes.map(|(name, value)| Some((name, attribute(value)?)));
    Some(PublishedDevice {
        name: device.name,
        attributes: attributes.collect::<Option<_>>()?,
        capacity: capacity.collect::<Option<_>>()?,
        taints: device.taints.unwrap_or_default(),
        consumes_counters: device.consumes_counters.unwrap_or_default(),
        nodes,
        allow_multiple_allocations: device.allow_multiple_allocations.unwrap_or_default(),
        binds_to_node: device.binds_to_node.unwrap_or_default(),
        binding_conditions: device.binding_conditions.unwrap_or_default(),
        binding_failure_conditions: device.binding_failure_conditions.unwrap_or_default(),
        node_allocatable_resources: device.node_allocatable_resources.unwrap_or_default(),
    })
}

fn attribute(attribute: api::DeviceAttribute) -> Option<DeviceAttribute> {
    let api::DeviceAttribute { int, bool, string, version, ints, bools, strings, versions } = attribute;
    Some(DeviceAttribute {
        int,
        bool,
        string,
        version,
        ints: list(ints)?,
        bools: list(bools)?,
        strings: list(strings)?,
        versions: list(versions)?,
    })
}

#[test]
fn resources_are_valid_if_the_api_server_accepts_them() {
    let table = Table::read();
    let mut compared = 0;
    let mut different = Vec::new();
    for case in &table.cases {
        let Some(resources) = resources(case, &table) else { continue };
        compared += 1;
        let is_expected = DIFFERENT.iter().any(|(name, _)| *name == case.name);
        let problem = match (resources.validate(), &case.refused) {
            (Ok(()), Some(refused)) => Some(format!("accepted, the server refuses: {:?}", refused.causes)),
            (Err(error), None) => Some(format!("refused, the server accepts it: {error}")),
            _ => None,
        };
        match problem {
            Some(problem) if !is_expected => different.push(format!("{}: {problem}", case.name)),
            None if is_expected => different.push(format!("{}: no difference, but listed as one", case.name)),
            _ => {}
        }
    }
    assert!(different.is_empty(), "{} of {compared}:\n{}", different.len(), different.join("\n"));
    assert!(compared >= COMPARED, "{compared}");
}

#[test]
fn driver_names_are_valid_if_the_api_server_accepts_them() {
    let table = Table::read();
    let names =
        table.cases.iter().filter(|case| case.on == "create" && table.bases[&case.base]["kind"] == "ResourceSlice");
    let names = names.filter_map(|case| {
        let is_name = matches!(case.set.as_slice(), [(path, _)] if path == "/spec/driver");
        let object = with(table.bases[&case.base].clone(), &case.set);
        let name = object["spec"]["driver"].as_str().filter(|_| is_name)?.to_owned();
        Some((name, case.refused.is_none()))
    });
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 5);
    for (name, is_accepted) in names {
        assert_eq!(DriverName::new(name.as_str()).is_ok(), is_accepted, "{name}");
    }
}
