//! Every rule, with the path of the field that breaks it.

#![allow(clippy::unwrap_used, clippy::panic)]

use drakkar_metadata::DeviceAttribute;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, NodeAllocatableMapping, NodeAllocatableOverhead,
    NodeAllocatableResource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rstest::rstest;

use super::*;
use crate::resources::{Capacity, DeviceNodes, PoolSlice};

const ON_NODE: ValidationContext<'static> =
    ValidationContext { driver: "gpu.example.com", is_on_node: true, is_single_pool: false };

fn gpu(name: &str) -> PublishedDevice {
    PublishedDevice::new(name)
}

fn one(device: PublishedDevice) -> Pool {
    Pool::default().device(device)
}

/// Returns the invalid fields.
fn fields(pool: &Pool) -> Vec<String> {
    match super::pool("node-1", pool, Some(ON_NODE)) {
        Ok(()) => vec![],
        Err(PublishError::Invalid { errors, .. }) => errors.into_iter().map(|error| error.field).collect(),
        Err(other) => panic!("{other}"),
    }
}

fn text(length: usize) -> String {
    "x".repeat(length)
}

fn policy(default: &str) -> CapacityRequestPolicy {
    CapacityRequestPolicy { default: Some(quantity(default)), ..CapacityRequestPolicy::default() }
}

fn quantity(text: &str) -> Quantity {
    Quantity(text.to_owned())
}

fn range(default: &str, min: &str, max: &str, step: &str) -> PublishedDevice {
    let range = CapacityRequestPolicyRange { min: quantity(min), max: Some(quantity(max)), step: Some(quantity(step)) };
    let policy = CapacityRequestPolicy { valid_range: Some(range), ..policy(default) };
    gpu("gpu-0").allow_multiple_allocations().capacity("memory", Capacity::from("80Gi").request_policy(policy))
}

fn values(default: &str, values: &[&str]) -> PublishedDevice {
    let values = Some(values.iter().map(|value| quantity(value)).collect());
    let policy = CapacityRequestPolicy { valid_values: values, ..policy(default) };
    gpu("gpu-0").allow_multiple_allocations().capacity("memory", Capacity::from("80Gi").request_policy(policy))
}

#[test]
fn a_device_with_every_kind_of_field_is_valid() {
    let device = gpu("gpu-0")
        .attribute("model", text(64).as_str())
        .attribute("example.com/cores", 64)
        .attribute("healthy", true)
        .attribute("driverVersion", DeviceAttribute::version("1.2.3-rc.1+build.5"))
        .attribute("numa", vec![0, 1])
        .attribute("flags", vec![true])
        .attribute("links", vec!["a", "b"])
        .attribute("apis", DeviceAttribute::versions(["1.0.0"]))
        .capacity("memory", "80Gi")
        .taint("example.com/sick", "very", "NoExecute")
        .consumes("gpu-0", [("memory", "40Gi")])
        .binding_conditions(["Ready"], ["Broken"]);
    let pool = Pool::default().counter_set("gpu-0", [("memory", "80Gi")]).device(device);
    assert_eq!(fields(&pool), [""; 0]);
    assert_eq!(fields(&one(range("10Gi", "5Gi", "80Gi", "5Gi"))), [""; 0]);
    assert_eq!(fields(&one(values("10Gi", &["5Gi", "10Gi"]))), [""; 0]);
    assert_eq!(fields(&Pool::default()), [""; 0], "an empty pool");
}

#[rstest]
#[case(gpu(""), "devices[0].name")]
#[case(gpu("GPU"), "devices[0].name")]
#[case(gpu("a").attribute("0model", 1), "devices[0].attributes[0model]")]
#[case(gpu("a").attribute("a/b/c", 1), "devices[0].attributes[a/b/c]")]
#[case(gpu("a").attribute("/c", 1), "devices[0].attributes[/c]")]
#[case(gpu("a").attribute("m", text(65).as_str()), "devices[0].attributes[m].string")]
#[case(gpu("a").attribute("m", DeviceAttribute::version("1.2")), "devices[0].attributes[m].version")]
#[case(gpu("a").attribute("m", DeviceAttribute::version("v1.2.3")), "devices[0].attributes[m].version")]
#[case(gpu("a").attribute("m", DeviceAttribute::versions(["1.2.3", "01.2.3"])), "devices[0].attributes[m].versions[1]")]
#[case(gpu("a").attribute("m", vec![text(65)]), "devices[0].attributes[m].strings[0]")]
#[case(gpu("a").attribute("m", DeviceAttribute::default()), "devices[0].attributes[m]")]
#[case(gpu("a").attribute("m", Vec::<i64>::new()), "devices[0].attributes[m]")]
#[case(gpu("a").attribute("m", DeviceAttribute { int: Some(1), ..true.into() }), "devices[0].attributes[m]")]
#[case((0..33).fold(gpu("a"), |device, n| device.attribute(format!("a{n}"), 1)), "devices[0]")]
#[case((0..2).fold(gpu("a"), |device, n| device.attribute(format!("a{n}"), vec![1; 25])), "devices[0]")]
#[case(gpu("a").capacity("memory", "much"), "devices[0].capacity[memory].value")]
#[case(gpu("a").capacity("mem-ory", "1"), "devices[0].capacity[mem-ory]")]
#[case(gpu("a").taint("", "", "NoExecute"), "devices[0].taints[0].key")]
#[case(gpu("a").taint("k", "a b", "NoExecute"), "devices[0].taints[0].value")]
#[case(gpu("a").taint("k", "", "NoWay"), "devices[0].taints[0].effect")]
#[case((0..17).fold(gpu("a"), |device, _| device.taint("k", "", "None")), "devices[0].taints")]
#[case(gpu("a").binding_conditions(["Ready"], [""; 0]), "devices[0].bindingFailureConditions")]
#[case(gpu("a").binding_conditions(["Ready"], ["Ready"]), "devices[0].bindingFailureConditions[0]")]
#[case(gpu("a").binding_conditions(["a", "b", "c", "d", "e"], ["f"]), "devices[0].bindingConditions")]
#[case(gpu("a").binding_conditions(["not ready"], ["f"]), "devices[0].bindingConditions[0]")]
#[case(gpu("a").nodes(DeviceNodes::AllNodes), "devices[0].nodes")]
#[case(gpu("a").capacity("m", Capacity::from("1").request_policy(policy("1"))), "devices[0].capacity[m].requestPolicy")]
#[case(range("10Gi", "5Gi", "90Gi", "5Gi"), "devices[0].capacity[memory].requestPolicy.validRange.max")]
#[case(range("4Gi", "5Gi", "80Gi", "1Gi"), "devices[0].capacity[memory].requestPolicy.validRange")]
#[case(range("10Gi", "5Gi", "80Gi", "3Gi"), "devices[0].capacity[memory].requestPolicy.validRange.step")]
#[case(range("10Gi", "5Gi", "80Gi", "0"), "devices[0].capacity[memory].requestPolicy.validRange.step")]
#[case(values("10Gi", &["5Gi", "20Gi"]), "devices[0].capacity[memory].requestPolicy.validValues")]
#[case(values("5Gi", &["5Gi", "2Gi"]), "devices[0].capacity[memory].requestPolicy.validValues[1]")]
#[case(values("5Gi", &["5Gi", "5120Mi"]), "devices[0].capacity[memory].requestPolicy.validValues[1]")]
#[case(values("5Gi", &["5Gi", "81Gi"]), "devices[0].capacity[memory].requestPolicy.validValues[1]")]
#[case(values("1", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]), "devices[0].capacity[memory].requestPolicy.validValues")]
fn the_invalid_field_of_a_device_is_reported(#[case] device: PublishedDevice, #[case] field: &str) {
    let found = fields(&one(device));
    assert!(found.iter().any(|one| one == field), "{field} is not in {found:?}");
}

/// A.7: duplicate counter set, duplicate device, unknown counter set, unknown counter.
#[rstest]
#[case(Pool::default().device(gpu("a")).device(gpu("a")), "devices[1].name")]
#[case(Pool::default().counter_set("s", [("c", "1")]).counter_set("s", [("c", "1")]), "sharedCounters[1].name")]
#[case(one(gpu("a").consumes("s", [("c", "1")])), "devices[0].consumesCounters[0].counterSet")]
#[case(Pool::default().counter_set("s", [("c", "1")]).device(gpu("a").consumes("s", [("d", "1")])), "devices[0].consumesCounters[0].counters[d]")]
#[case(Pool::default().counter_set("S", [("c", "1")]), "sharedCounters[0].name")]
#[case(Pool::default().counter_set("s", [("c", "x")]), "sharedCounters[0].counters[c].value")]
#[case(Pool::default().counter_set("s", [("", ""); 0]), "sharedCounters[0].counters")]
#[case(Pool::default().counter_set("s", (0..33).map(|n| (format!("c{n}"), "1"))), "sharedCounters[0].counters")]
#[case(Pool { generation: -1, ..Pool::default() }, "generation")]
#[case(Pool { devices_per_slice: Some(0), ..Pool::default() }, "devicesPerSlice")]
#[case(Pool { skip_node_operations: vec!["NodePrepareResources".into()], ..Pool::default() }, "skipNodeOperations")]
#[case(Pool { skip_node_operations: vec!["Sleep".into()], ..Pool::default() }, "skipNodeOperations[0]")]
#[case(Pool { partition_type_attribute: Some("type".into()), ..Pool::default() }, "partitionTypeAttribute")]
#[case(one(gpu("a")).slice(PoolSlice::default()), "slices")]
#[case(Pool::default().slice(PoolSlice { devices: (0..129).map(|n| gpu(&format!("d{n}"))).collect(), ..PoolSlice::default() }), "slices[0].devices")]
#[case(Pool::default().slice(PoolSlice { devices: (0..65).map(|n| gpu(&format!("d{n}")).attribute("l", vec![1])).collect(), ..PoolSlice::default() }), "slices[0].devices")]
#[case(Pool::default().nodes(NodeSelection::AllNodes), "nodes")]
fn the_invalid_field_of_a_pool_is_reported(#[case] pool: Pool, #[case] field: &str) {
    let found = fields(&pool);
    assert!(found.iter().any(|one| one == field), "{field} is not in {found:?}");
}

#[test]
fn partitions_need_their_type_attribute_with_or_without_the_domain() {
    let pool = |name: &str| Pool {
        partition_type_attribute: Some("gpu.example.com/profile".into()),
        ..Pool::default()
            .counter_set("s", [("c", "1")])
            .device(gpu("a").consumes("s", [("c", "1")]).attribute(name, "half"))
    };
    assert_eq!(fields(&pool("gpu.example.com/profile")), [""; 0]);
    assert_eq!(fields(&pool("profile")), [""; 0]);
    assert_eq!(fields(&pool("other")), ["devices[0].attributes"]);
}

#[test]
fn the_node_selection_must_fit_the_publisher() {
    let terms = |count| NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default(); count] };
    let selector = |count| NodeSelection::Selector(Box::new(terms(count)));
    let check = |nodes: NodeSelection, is_on_node, is_single_pool| {
        let context = ValidationContext { driver: "d", is_on_node, is_single_pool };
        pool("p", &Pool::default().nodes(nodes), Some(context)).is_ok()
    };
    assert!(check(NodeSelection::ThisNode, true, false));
    assert!(!check(NodeSelection::ThisNode, false, false), "no node is known");
    assert!(!check(NodeSelection::ThisNode, true, true), "a single pool");
    assert!(check(selector(1), true, true) && check(NodeSelection::AllNodes, false, false));
    assert!(!check(selector(2), true, true) && !check(selector(1), true, false));
    let per_device = |device: PublishedDevice| {
        let context = ValidationContext { driver: "d", is_on_node: true, is_single_pool: true };
        pool("p", &one(device).nodes(NodeSelection::PerDevice), Some(context)).is_ok()
    };
    assert!(per_device(gpu("a").nodes(DeviceNodes::Node("node-1".into()))));
    assert!(!per_device(gpu("a")) && !per_device(gpu("a").nodes(DeviceNodes::Node("Node 1".into()))));
    assert!(!per_device(gpu("a").nodes(DeviceNodes::Selector(Box::new(terms(0))))));
}

#[test]
fn node_allocatable_resources_refer_to_capacities_of_the_device() {
    let device = |name: &str, mapping: Option<NodeAllocatableMapping>, overhead: Option<NodeAllocatableOverhead>| {
        let mut device = gpu("a").capacity("cores", "4");
        device.node_allocatable_resources.insert(name.into(), NodeAllocatableResource { mapping, overhead });
        fields(&one(device)).is_empty()
    };
    let mapping = |key: &str, multiplier: &str| {
        Some(NodeAllocatableMapping {
            capacity_key: Some(key.into()),
            capacity_multiplier: Some(quantity(multiplier)),
            device_multiplier: None,
        })
    };
    assert!(device("cpu", mapping("cores", "1"), None));
    assert!(!device("cpu", mapping("threads", "1"), None) && !device("cpu", mapping("cores", "0"), None));
    assert!(!device("example.com/gpu", mapping("cores", "1"), None) && !device("cpu", None, None));
    let overhead = |per_pod| Some(NodeAllocatableOverhead { per_pod, per_container: None });
    assert!(device("memory", None, overhead(Some(quantity("1Gi")))));
    assert!(!device("memory", None, overhead(None)) && !device("memory", None, overhead(Some(quantity("-1")))));
}

/// G63: the API server accepts a name with two slashes.
#[test]
fn names_with_two_slashes_are_refused() {
    assert!(text::qualified_name("example.com/a/b").is_err());
    assert!(text::qualified_name("example.com/a").is_ok() && text::qualified_name("_a9").is_ok());
    assert!(text::qualified_name(&text(33)).is_err());
}

#[test]
fn the_number_of_reported_errors_is_limited() {
    let pool = Pool::default().devices((0..300).map(|_| gpu("")));
    let Err(PublishError::Invalid { errors, omitted, .. }) = super::pool("p", &pool, None) else { panic!() };
    assert_eq!(errors.len(), 100);
    assert!(omitted > 100);
}

#[test]
fn a_driver_can_validate_its_resources() {
    let error = DriverResources::default().pool("Node 1", Pool::default()).validate().unwrap_err();
    assert!(error.to_string().starts_with("pool Node 1: name: pool name"), "{error}");
}
