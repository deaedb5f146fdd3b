//! Every field survives, and the order is that of the API server.

#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicyRange, Device, NodeAllocatableMapping, NodeAllocatableOverhead,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn text(device: &PublishedDevice) -> String {
    let mut text = Vec::new();
    write(device, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn quantity(text: &str) -> Quantity {
    Quantity(text.to_owned())
}

fn selector() -> Box<NodeSelector> {
    let requirement = NodeSelectorRequirement {
        key: "rack".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec!["7".to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
    Box::new(NodeSelector { node_selector_terms: vec![term] })
}

/// A device with all fields.
fn full() -> PublishedDevice {
    let policy = CapacityRequestPolicy {
        default: Some(quantity("1Gi")),
        valid_values: Some(vec![quantity("1Gi"), quantity("2Gi")]),
        valid_range: Some(CapacityRequestPolicyRange {
            min: quantity("1Gi"),
            max: Some(quantity("8Gi")),
            step: Some(quantity("1Gi")),
        }),
    };
    let mapping = NodeAllocatableMapping {
        capacity_key: Some("memory".to_owned()),
        capacity_multiplier: Some(quantity("1")),
        device_multiplier: Some(quantity("2")),
    };
    let overhead = NodeAllocatableOverhead { per_pod: Some(quantity("3")), per_container: Some(quantity("4")) };
    let resource = NodeAllocatableResource { mapping: Some(mapping), overhead: Some(overhead) };
    let mut device = PublishedDevice::new("gpu-0")
        .attribute("cores", 64)
        .attribute("healthy", true)
        .attribute("model", "a \"quoted\" & <escaped> \u{1f980} model")
        .attribute("example.com/firmware", DeviceAttribute::version("1.2.3"))
        .attribute("numa", vec![0, 1])
        .attribute("flags", vec![true, false])
        .attribute("links", vec!["a", "b"])
        .attribute("apis", DeviceAttribute::versions(["1.0.0", "2.0.0"]))
        .attribute("none", DeviceAttribute::default())
        .attribute("two", DeviceAttribute { int: Some(1), string: Some(String::new()), ..DeviceAttribute::default() })
        .capacity("memory", Capacity::from("80Gi").request_policy(policy))
        .capacity("unreadable", "much")
        .taint("a", "1", "NoExecute")
        .taint("b", "", "None")
        .consumes("memory", [("memory", "40Gi")])
        .binding_conditions(["Ready"], ["Broken"])
        .allow_multiple_allocations()
        .nodes(DeviceNodes::Selector(selector()));
    device.taints[0].time_added = Some(Time(Timestamp::from_second(1_700_000_000).unwrap()));
    device.consumes_counters[0].compatibility_groups = Some(vec!["g".to_owned()]);
    device.binds_to_node = true;
    device.node_allocatable_resources.insert("cpu".to_owned(), resource);
    device
}

#[rstest]
#[case::all_fields(full())]
#[case::nothing(PublishedDevice::default())]
#[case::only_a_name(PublishedDevice::new("gpu-0"))]
#[case::a_name_that_is_not_valid(PublishedDevice::new("a\"\\\n\u{0}"))]
#[case::a_node(PublishedDevice::new("a").nodes(DeviceNodes::Node("n".to_owned())))]
#[case::a_node_without_a_name(PublishedDevice::new("a").nodes(DeviceNodes::Node(String::new())))]
#[case::all_nodes(PublishedDevice::new("a").nodes(DeviceNodes::AllNodes))]
fn a_device_is_read_as_it_was_written(#[case] device: PublishedDevice) {
    assert_eq!(read(text(&device).as_bytes()).unwrap(), device);
    assert_eq!(read_attributes(text(&device).as_bytes()).unwrap(), device.attributes);
}

/// A field that is missing here would be lost without a word.
#[test]
fn the_text_has_the_fields_of_the_apis_type() {
    let device: Device = serde_json::from_str(&text(&full())).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text(&full())).unwrap();
    let mut api = serde_json::to_value(&device).unwrap();
    // Its type has no `selector` and `allNodes` at the same time, and no node name.
    for field in ["nodeName", "allNodes"] {
        assert!(api.as_object_mut().unwrap().remove(field).is_none());
    }
    assert_eq!(written, api);
}

/// The order of Go's type, in which API servers answer.
#[test]
fn fields_are_in_the_order_of_the_schema() {
    let text = text(&full());
    let positions: Vec<(usize, &str)> = drakkar_client::schema::DEVICE
        .fields
        .iter()
        .filter_map(|field| {
            let key = format!("\"{}\":", field.name);
            // Those of the device itself: the first ones, but for the names of the fields of others.
            text.find(&key).map(|position| (position, field.name))
        })
        .collect();
    assert!(positions.len() >= 11, "{positions:?}");
    assert!(positions.is_sorted(), "{positions:?}");
}

proptest! {
    #[test]
    fn the_name_is_found_whatever_it_is(name in ".*", attribute in ".*") {
        let text = text(&PublishedDevice::new(&name).attribute("a", attribute));
        let quoted = serde_json::to_string(&name).unwrap();
        prop_assert_eq!(super::name(text.as_bytes()), &quoted.as_bytes()[1..quoted.len() - 1]);
        prop_assert_eq!(read(text.as_bytes()).unwrap().name, name);
    }
}
