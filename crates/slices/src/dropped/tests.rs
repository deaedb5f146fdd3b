//! Which gate each dropped field needs.

#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::json;

use super::*;

fn spec(mut value: Value) -> ResourceSliceSpec {
    value["driver"] = json!("d");
    value["pool"] = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    serde_json::from_value(value).unwrap()
}

/// G51: the gate of every field that can be dropped is known.
#[rstest]
#[case(json!({"taints": [{"key": "k", "effect": "NoExecute"}]}), json!({}), "devices[0].taints", &["DRADeviceTaints"])]
#[case(json!({"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}), json!({}), "devices[0].consumesCounters", &["DRAPartitionableDevices"])]
#[case(json!({"nodeName": "n"}), json!({}), "devices[0].nodeName", &["DRAPartitionableDevices"])]
#[case(json!({"allNodes": true}), json!({}), "devices[0].allNodes", &["DRAPartitionableDevices"])]
#[case(json!({"nodeSelector": {"nodeSelectorTerms": [{}]}}), json!({}), "devices[0].nodeSelector", &["DRAPartitionableDevices"])]
#[case(json!({"bindsToNode": true}), json!({}), "devices[0].bindsToNode", &["DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"])]
#[case(json!({"bindingConditions": ["a"]}), json!({}), "devices[0].bindingConditions", &["DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"])]
#[case(json!({"allowMultipleAllocations": true}), json!({}), "devices[0].allowMultipleAllocations", &["DRAConsumableCapacity"])]
#[case(
    json!({"capacity": {"m": {"value": "1Gi", "requestPolicy": {"default": "1Mi"}}}}),
    json!({"capacity": {"m": {"value": "1024Mi"}}}),
    "devices[0].capacity.m.requestPolicy", &["DRAConsumableCapacity"]
)]
#[case(json!({"nodeAllocatableResources": {"cpu": {}}}), json!({}), "devices[0].nodeAllocatableResources", &["DRANodeAllocatableResources"])]
#[case(
    json!({"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["g"]}]}),
    json!({"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}),
    "devices[0].consumesCounters[0].compatibilityGroups", &["DRADeviceCompatibilityGroups"]
)]
#[case(
    json!({"attributes": {"a": {"ints": [1]}}}), json!({"attributes": {"a": {}}}),
    "devices[0].attributes.a.ints", &["DRAListTypeAttributes"]
)]
fn fields_of_devices(#[case] sent: Value, #[case] kept: Value, #[case] field: &str, #[case] gates: &[&str]) {
    let of = |mut device: Value| {
        device["name"] = json!("d");
        spec(json!({"devices": [device]}))
    };
    let dropped = DroppedFields::between(of(sent), of(kept));
    assert_eq!((dropped.fields, dropped.gates.as_slice()), (vec![field.to_owned()], gates));
}

#[rstest]
#[case(json!({"sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}]}), "sharedCounters", "DRAPartitionableDevices")]
#[case(json!({"perDeviceNodeSelection": true}), "perDeviceNodeSelection", "DRAPartitionableDevices")]
#[case(json!({"partitionTypeAttribute": "a.b/c"}), "partitionTypeAttribute", "DRAPartitionableDevicesType")]
#[case(json!({"skipNodeOperations": ["*"]}), "skipNodeOperations", "DRAOptionalNodeOperations")]
fn fields_of_slices(#[case] sent: Value, #[case] field: &str, #[case] gate: &str) {
    let dropped = DroppedFields::between(spec(sent), spec(json!({})));
    assert_eq!((dropped.fields, dropped.gates.as_slice()), (vec![field.to_owned()], &[gate][..]));
}

#[test]
fn a_field_without_a_known_gate_is_named_too() {
    let of = |value: i64| spec(json!({"devices": [{"name": "d", "attributes": {"a": {"int": value}}}]}));
    let dropped = DroppedFields::between(of(1), of(2));
    assert_eq!(dropped.fields, ["devices[0].attributes.a.int"]);
    assert_eq!(dropped.gates, ["a feature gate that is not known here"]);
}

#[test]
fn the_number_of_named_fields_is_limited() {
    let of = |taints: Value| {
        let devices: Vec<Value> = (0..50).map(|n| json!({"name": format!("d{n}"), "taints": taints})).collect();
        spec(json!({ "devices": devices }))
    };
    let dropped = DroppedFields::between(of(json!([{"key": "k", "effect": "None"}])), of(json!([])));
    assert_eq!(dropped.fields.len(), 11);
}
