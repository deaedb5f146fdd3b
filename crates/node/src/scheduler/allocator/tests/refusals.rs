//! Tests of the messages for refused claims.

use serde_json::json;

use super::{World, claim, exactly, selector};

#[test]
fn a_refusal_lists_every_reason_against_devices() {
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
        "claim default/train: request gpu asks for 1 of class gpu, and of 4 devices considered: \
             1 not matching selector `device.driver == 'gpu.example.com'` of class gpu, 2 in use, \
             1 with the untolerated taint broken:NoSchedule"
    );
}

#[test]
fn a_refusal_counts_the_available_devices() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"count": 2})));
    assert_eq!(
        refusal,
        "claim default/train: request gpu asks for 2 of class gpu, and of 1 device considered: 1 available"
    );
}

#[test]
fn a_missing_class_is_named() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"deviceClassName": "missing"})));
    assert_eq!(refusal, "claim default/train: request gpu: device class missing does not exist");
}

#[test]
fn an_invalid_selector_is_shown() {
    let refusal = World::gpus(1).refusal(&exactly(&json!({"selectors": selector("device.name == 'x'")})));
    assert!(
        refusal.contains("CEL compile error in selector `device.name == 'x'`: undefined field 'name'"),
        "{refusal}"
    );
}

#[test]
fn every_subrequest_is_explained() {
    let refusal = World::gpus(1).refusal(&claim(&json!({"requests": [{"name": "gpu", "firstAvailable": [
        {"name": "a", "deviceClassName": "gpu", "count": 3}, {"name": "b", "deviceClassName": "gpu", "count": 2},
    ]}]})));
    assert!(refusal.contains("request gpu/a asks for 3") && refusal.contains("request gpu/b asks for 2"), "{refusal}");
}

#[test]
fn more_devices_than_a_claim_can_have_are_refused() {
    let refusal = World::gpus(40).refusal(&exactly(&json!({"count": 33})));
    assert!(refusal.contains("it asks for 33 devices, and no claim can have more than 32"), "{refusal}");
    assert!(World::gpus(40).allocate(&exactly(&json!({"count": 32}))).is_ok());
    assert!(World::gpus(40).refusal(&exactly(&json!({"allocationMode": "All"}))).contains("asks for 40 devices"));
}

#[test]
fn an_endless_search_is_given_up() {
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
