#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use serde_json::{Value, json};

use super::set::Fields;
use super::tree;
use crate::resource::Resource;

fn set(value: &Value) -> Fields {
    Fields::parse(value)
}

#[test]
fn a_set_reads_and_writes_fields_v1() {
    let value = json!({
        "f:metadata": { "f:labels": { ".": {}, "f:a": {} }, "f:finalizers": { "v:\"x\"": {} } },
        "f:status": { "f:devices": { "k:{\"device\":\"d\",\"driver\":\"e\"}": { ".": {}, "f:data": {} } } },
    });
    assert_eq!(set(&value).to_value(), value);
    assert_eq!(
        set(&value).paths(),
        [
            ".metadata.labels",
            ".metadata.finalizers[=\"x\"]",
            ".metadata.labels.a",
            ".status.devices[device=\"d\",driver=\"e\"]",
            ".status.devices[device=\"d\",driver=\"e\"].data",
        ],
    );
}

#[test]
fn sets_are_compared_member_by_member() {
    let a = set(&json!({ "f:a": { ".": {}, "f:b": {} }, "f:c": {} }));
    let b = set(&json!({ "f:a": { "f:b": {} }, "f:d": {} }));
    assert_eq!(a.difference(&b).to_value(), json!({ "f:a": {}, "f:c": {} }));
    assert_eq!(a.intersection(&b).to_value(), json!({ "f:a": { "f:b": {} } }));
    let mut both = a.clone();
    both.union(&b);
    assert_eq!(both.to_value(), json!({ "f:a": { ".": {}, "f:b": {} }, "f:c": {}, "f:d": {} }));
    assert!(a.difference(&a).is_empty());
}

#[rstest]
#[case::devices_by_four_keys(
    json!({ "status": { "devices": [{ "driver": "d", "pool": "p", "device": "x", "shareID": "s", "data": { "a": { "b": [1] } } }] } }),
    json!({ "f:status": { "f:devices": { "k:{\"device\":\"x\",\"driver\":\"d\",\"pool\":\"p\",\"shareID\":\"s\"}": {
        ".": {}, "f:driver": {}, "f:pool": {}, "f:device": {}, "f:shareID": {}, "f:data": {} } } } }),
)]
#[case::devices_without_a_share_id(
    json!({ "status": { "devices": [{ "driver": "d", "pool": "p", "device": "x", "conditions": [{ "type": "Ready", "status": "True" }] }] } }),
    json!({ "f:status": { "f:devices": { "k:{\"device\":\"x\",\"driver\":\"d\",\"pool\":\"p\"}": {
        ".": {}, "f:driver": {}, "f:pool": {}, "f:device": {},
        "f:conditions": { "k:{\"type\":\"Ready\"}": { ".": {}, "f:type": {}, "f:status": {} } } } } } }),
)]
#[case::owners_and_finalizers(
    json!({ "metadata": { "name": "n", "ownerReferences": [{ "uid": "u", "name": "o" }], "finalizers": ["x"], "labels": { "a": "b" } } }),
    json!({ "f:metadata": { "f:ownerReferences": { "k:{\"uid\":\"u\"}": {} }, "f:finalizers": { "v:\"x\"": {} }, "f:labels": { "f:a": {} } } }),
)]
#[case::results_and_ips_are_atomic(
    json!({ "status": { "allocation": { "devices": { "results": [{ "device": "x" }] } }, "devices": [{ "driver": "d", "networkData": { "ips": ["a"] } }] } }),
    json!({ "f:status": { "f:allocation": { "f:devices": { "f:results": {} } },
        "f:devices": { "k:{\"driver\":\"d\"}": { ".": {}, "f:driver": {}, "f:networkData": { "f:ips": {} } } } } }),
)]
fn an_apply_owns_what_it_names(#[case] config: Value, #[case] expected: Value) {
    assert_eq!(tree::fields(Resource::ResourceClaim, &config).to_value(), expected);
}

#[test]
fn the_devices_of_a_slice_are_atomic() {
    let config =
        json!({ "spec": { "driver": "d", "devices": [{ "name": "x", "attributes": { "a": { "int": 1 } } }] } });
    assert_eq!(
        tree::fields(Resource::ResourceSlice, &config).to_value(),
        json!({ "f:spec": { "f:driver": {}, "f:devices": {} } }),
    );
}

/// Go writes them even for an empty object, so that no write adds them.
#[rstest]
#[case::template(
    Resource::ResourceClaimTemplate,
    json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "metadata": { "name": "c" }, "spec": { "devices": { "requests": [] } } } }),
    json!({ "f:metadata": { "f:labels": { ".": {}, "f:a": {} } },
        "f:spec": { "f:metadata": { "f:name": {} }, "f:spec": { "f:devices": { "f:requests": {} } } } }),
)]
#[case::slice(
    Resource::ResourceSlice,
    json!({ "spec": { "pool": { "name": "p" }, "nodeSelector": { "nodeSelectorTerms": [] } } }),
    json!({ "f:spec": { "f:pool": { "f:name": {} }, "f:nodeSelector": {} } }),
)]
#[case::pod(
    Resource::Pod,
    json!({ "metadata": { "name": "n" }, "spec": { "containers": [{ "name": "c" }] }, "status": { "phase": "Running" } }),
    json!({ "f:spec": { "f:containers": { "k:{\"name\":\"c\"}": { ".": {}, "f:name": {} } } }, "f:status": { "f:phase": {} } }),
)]
fn structs_that_are_always_present_have_no_owner(
    #[case] resource: Resource,
    #[case] object: Value,
    #[case] expected: Value,
) {
    assert_eq!(tree::compare(resource, &json!({}), &object).changed.to_value(), expected);
}
