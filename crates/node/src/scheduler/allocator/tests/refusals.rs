//! What people are told.

use serde_json::json;

use super::{World, claim, exactly, selector};

#[test]
fn everything_that_is_against_devices_is_told() {
    let mut world = World::with_devices(&json!([
        {"name": "used"}, {"name": "also-used"},
        {"name": "tainted", "taints": [{"key": "broken", "effect": "NoSchedule"}]},
    ]));
    world.slice(&json!({
        "driver": "nic.example.com", "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "nic-0"}],
    }));
    world.hold("a", &exactly(&json!({"count": 2})));
    assert_eq!(
        world.refusal(&exactly(&json!({}))),
        "claim default/train: request gpu wants 1 of class gpu, and of 4 devices looked at: \
         1 not matching selector `device.driver == 'gpu.example.com'` of class gpu, 2 in use, \
         1 with the taint broken:NoSchedule that is not tolerated"
    );
}

#[test]
fn what_can_be_had_is_told_too() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"count": 2})));
    assert_eq!(
        refusal,
        "claim default/train: request gpu wants 2 of class gpu, and of 1 device looked at: 1 can be had"
    );
}

#[test]
fn a_missing_class_is_named() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"deviceClassName": "missing"})));
    assert_eq!(refusal, "claim default/train: request gpu: device class missing does not exist");
}

#[test]
fn a_selector_that_cannot_be_read_is_shown() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"selectors": selector("device.name == 'x'")})));
    assert!(
        refusal.contains("CEL compile error in selector `device.name == 'x'`: undefined field 'name'"),
        "{refusal}"
    );
}

#[test]
fn every_subrequest_is_told() {
    let refusal = World::gpus(1).refusal(&claim(&json!({"requests": [{"name": "gpu", "firstAvailable": [
        {"name": "a", "deviceClassName": "gpu", "count": 3}, {"name": "b", "deviceClassName": "gpu", "count": 2},
    ]}]})));
    assert!(refusal.contains("request gpu/a wants 3") && refusal.contains("request gpu/b wants 2"), "{refusal}");
}

#[test]
fn more_devices_than_a_claim_can_have_are_refused() {
    let refusal = World::gpus(40).refusal(&exactly(&json!({"count": 33})));
    assert!(refusal.contains("it asks for 33 devices, and no claim can have more than 32"), "{refusal}");
    assert!(World::gpus(40).allocate(&exactly(&json!({"count": 32}))).is_ok());
    assert!(World::gpus(40).refusal(&exactly(&json!({"allocationMode": "All"}))).contains("asks for 40 devices"));
}

#[test]
fn a_search_without_end_is_given_up() {
    let devices: Vec<_> = (0..40)
        .map(|number| json!({"name": format!("gpu-{number}"), "attributes": {"root": {"int": number / 12}}}))
        .collect();
    let claim = claim(&json!({
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 13}}],
        "constraints": [{"matchAttribute": "gpu.example.com/root"}],
    }));
    let refusal = World::with_devices(&devices.into()).refusal(&claim);
    assert!(refusal.contains("that have the same gpu.example.com/root"), "{refusal}");
}
