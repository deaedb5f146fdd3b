//! Tests of taints, counters, shared devices and their capacity.

use rstest::rstest;
use serde_json::json;

use super::{World, devices, exactly, selector};

#[rstest]
#[case(json!([]), false)]
#[case(json!([{"operator": "Exists"}]), true)]
#[case(json!([{"key": "example.com/broken", "operator": "Exists"}]), true)]
#[case(json!([{"key": "example.com/other", "operator": "Exists"}]), false)]
#[case(json!([{"key": "example.com/broken", "value": "fan"}]), true)]
#[case(json!([{"key": "example.com/broken", "value": "fan", "effect": "NoSchedule"}]), false)]
#[case(json!([{"key": "example.com/broken", "operator": "Equal", "value": "heat"}]), false)]
fn taints_must_be_tolerated(#[case] tolerations: serde_json::Value, #[case] allowed: bool) {
    let taint = json!({"key": "example.com/broken", "value": "fan", "effect": "NoExecute"});
    let world = World::with_devices(&json!([{"name": "gpu-0", "taints": [taint]}]));
    let claim = exactly(&json!({"tolerations": tolerations}));
    match world.allocate(&claim) {
        Ok(allocation) => {
            assert!(allowed);
            let result = allocation.devices.unwrap().results.unwrap().remove(0);
            assert_eq!(serde_json::to_value(result.tolerations).unwrap(), tolerations);
        }
        Err(refusal) => {
            assert!(!allowed);
            assert!(
                refusal.to_string().contains("1 with the untolerated taint example.com/broken=fan:NoExecute"),
                "{refusal}"
            );
        }
    }
}

#[test]
fn a_taint_without_effect_does_not_prevent_allocation() {
    let taint = json!({"key": "example.com/note", "effect": "None"});
    World::with_devices(&json!([{"name": "gpu-0", "taints": [taint]}])).allocate(&exactly(&json!({}))).unwrap();
}

/// A card with 40Gi that can be allocated whole or as two halves.
fn partitions() -> World {
    let part = |name: &str, memory: &str| json!({"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]});
    let mut world =
        World::with_devices(&json!([part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]));
    world.slices[0].spec.pool.resource_slice_count = 2;
    world.slice(&json!({
        "pool": {"name": "worker", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}],
    }));
    world
}

#[test]
fn partitions_share_their_counters() {
    let half = exactly(&json!({"selectors": selector("true"), "count": 2}));
    let world = partitions();
    assert_eq!(devices(&world.allocate(&half).unwrap()), ["gpu=half-0", "gpu=half-1"]);
    let mut world = partitions();
    assert_eq!(devices(&world.hold("a", &exactly(&json!({})))), ["gpu=whole"]);
    let refusal = world.refusal(&exactly(&json!({})));
    assert!(refusal.contains("2 exceeding counter memory of counter set card"), "{refusal}");
    world.in_use.set("a", None);
    world.hold("b", &half);
    assert!(world.allocate(&exactly(&json!({}))).is_err());
}

#[test]
fn a_partition_in_use_on_another_node_counts() {
    let mut world = partitions();
    let devices = world.slices[0].spec.devices.as_mut().unwrap();
    for device in devices.iter_mut() {
        device.node_name = Some(if device.name == "whole" { "other" } else { "worker" }.to_owned());
    }
    world.slices[0].spec.node_name = None;
    world.slices[0].spec.per_device_node_selection = Some(true);
    let claim = exactly(&json!({}));
    assert_eq!(super::devices(&world.allocate(&claim).unwrap()), ["gpu=half-0"]);
    let whole = json!({"devices": {"results": [
        {"request": "gpu", "driver": "gpu.example.com", "pool": "worker", "device": "whole"},
    ]}});
    world.in_use.set("elsewhere", Some(&serde_json::from_value(whole).unwrap()));
    assert!(world.refusal(&claim).contains("exceeding counter"));
}

fn shared(policy: &serde_json::Value) -> World {
    World::with_devices(&json!([{
        "name": "nic", "allowMultipleAllocations": true,
        "capacity": {"bandwidth": {"value": "10Gi", "requestPolicy": policy}},
    }]))
}

fn of_bandwidth(amount: &str) -> k8s_openapi::api::resource::v1::ResourceClaim {
    exactly(&json!({"capacity": {"requests": {"bandwidth": amount}}}))
}

#[rstest]
#[case(json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}), "1500Mi", Ok("2Gi"))]
#[case(json!({"default": "1Gi", "validRange": {"min": "1Gi"}}), "1500Mi", Ok("1500Mi"))]
#[case(json!({"default": "2Gi", "validRange": {"min": "2Gi", "max": "4Gi"}}), "1", Ok("2Gi"))]
#[case(json!({"default": "2Gi", "validRange": {"min": "2Gi", "max": "4Gi"}}), "5Gi", Err("5Gi is more than the maximum of 4Gi"))]
#[case(json!({"default": "1Gi", "validValues": ["1Gi", "4Gi"]}), "2Gi", Ok("4Gi"))]
#[case(json!({"default": "1Gi", "validValues": ["1Gi", "4Gi"]}), "5Gi", Err("more than any amount"))]
#[case(json!({"default": "1Gi"}), "11Gi", Err("not enough of capacity gpu.example.com/bandwidth"))]
fn requests_are_rounded_up_by_the_policy(
    #[case] policy: serde_json::Value,
    #[case] asked: &str,
    #[case] expected: Result<&str, &str>,
) {
    match (shared(&policy).allocate(&of_bandwidth(asked)), expected) {
        (Ok(allocation), Ok(consumed)) => {
            let result = allocation.devices.unwrap().results.unwrap().remove(0);
            assert_eq!(result.share_id.as_deref(), Some("share-1"));
            assert_eq!(result.consumed_capacity.unwrap()["bandwidth"].0, consumed);
        }
        (Err(refusal), Err(message)) => assert!(refusal.to_string().contains(message), "{refusal}"),
        (outcome, _) => panic!("{outcome:?}"),
    }
}

#[test]
fn shares_are_allocated_until_the_capacity_is_used_up() {
    let mut world = shared(&json!({"default": "1Gi", "validRange": {"min": "1Gi"}}));
    world.hold("a", &of_bandwidth("6Gi"));
    assert!(world.refusal(&of_bandwidth("5Gi")).contains("not enough of capacity"));
    world.hold("b", &of_bandwidth("3Gi"));
    // A request without an amount consumes the default.
    world.hold("c", &exactly(&json!({})));
    assert!(world.allocate(&exactly(&json!({}))).is_err());
    world.in_use.set("b", None);
    world.hold("d", &of_bandwidth("3Gi"));
}

#[test]
fn without_a_policy_a_request_without_an_amount_consumes_everything() {
    let mut world = shared(&serde_json::Value::Null);
    let result = world.hold("a", &exactly(&json!({}))).devices.unwrap().results.unwrap().remove(0);
    assert_eq!(result.consumed_capacity.unwrap()["bandwidth"].0, "10Gi");
    assert!(world.allocate(&of_bandwidth("1")).is_err());
}

#[test]
fn a_device_that_is_not_shared_must_have_the_requested_capacity() {
    let world = World::with_devices(&json!([
        {"name": "small", "capacity": {"memory": {"value": "10Gi"}}},
        {"name": "large", "capacity": {"gpu.example.com/memory": {"value": "80Gi"}}},
    ]));
    let allocation = world.allocate(&exactly(&json!({"capacity": {"requests": {"memory": "40Gi"}}}))).unwrap();
    let result = &allocation.devices.as_ref().unwrap().results.as_ref().unwrap()[0];
    assert_eq!((result.device.as_str(), &result.share_id, &result.consumed_capacity), ("large", &None, &None));
    assert!(world.refusal(&exactly(&json!({"capacity": {"requests": {"cores": "1"}}}))).contains("no capacity cores"));
}

#[test]
fn devices_with_binding_conditions_are_the_last_choice() {
    let mut world = World::with_devices(&json!([{
        "name": "attachable", "bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/failed"],
    }]));
    world.slice(&json!({
        "pool": {"name": "zzz", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "here"}],
    }));
    assert_eq!(devices(&world.hold("a", &exactly(&json!({})))), ["gpu=here"]);
    let result = world.hold("b", &exactly(&json!({}))).devices.unwrap().results.unwrap().remove(0);
    assert_eq!(result.binding_conditions.unwrap(), ["example.com/ready"]);
    assert_eq!(result.binding_failure_conditions.unwrap(), ["example.com/failed"]);
}
