//! Tests of merging reports into the entries of a claim.

use rstest::rstest;

use super::super::known::KnownClaims;
use super::super::merge::{Merged, merge};
use super::*;

/// Creates a claim with gpu-0, gpu-1 and a share of gpu-2, with the fields that each manager owns, and with entries.
fn claim(managers: &[(&str, Value)], entries: impl Into<Value>) -> Value {
    let managed = managers.iter().map(|(manager, devices)| {
        json!({"manager": manager, "operation": "Apply", "subresource": "status", "apiVersion": "resource.k8s.io/v1",
               "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:devices": devices}}})
    });
    let result = |device: &str, more: Value| entry(device, &more);
    json!({
        "metadata": {"resourceVersion": "7", "managedFields": managed.collect::<Value>()},
        "status": {
            "allocation": {"devices": {"results": [
                result("gpu-0", json!({"request": "a"})),
                result("gpu-1", json!({"request": "b"})),
                result("gpu-2", json!({"request": "c", "shareID": SHARE})),
                {"request": "d", "driver": "net.example.com", "pool": "node-1", "device": "eth-0"},
            ]}},
            "devices": entries.into(),
        },
    })
}

/// Returns the key of an entry in managed fields.
fn key(device: &str, share: Option<&str>) -> String {
    let mut key = json!({"device": device, "driver": DRIVER, "pool": "node-1"});
    if let Some(share) = share {
        key["shareID"] = share.into();
    }
    format!("k:{key}")
}

/// Returns the field set of an entry of which a manager owns these fields.
fn owns(fields: impl Into<Value>) -> Value {
    let mut all = json!({".": {}, "f:device": {}, "f:driver": {}, "f:pool": {}});
    for (name, value) in fields.into().as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

fn merged(claim: &Value, devices: impl IntoIterator<Item = DeviceStatus>) -> Merged {
    let queue = Queue::new(metrics());
    queue.add(&claim_ref(1), devices.into_iter().collect()).unwrap();
    let mut reports = pending(&queue);
    for report in &mut reports {
        report.time = "2026-02-03T04:05:06Z".to_owned();
    }
    let merged = merge(claim, DRIVER, MANAGER, &reports);
    let known = KnownClaims::new(|_| true);
    known.insert_applied(&claim_ref(1).uid, claim, DRIVER, MANAGER, false);
    let known = known.get(&claim_ref(1).uid).unwrap().claim;
    assert_eq!(merge(&known, DRIVER, MANAGER, &reports), merged, "what is known of the claim is enough");
    merged
}

fn gpu(number: u8) -> DeviceStatus {
    DeviceStatus::new("node-1", format!("gpu-{number}"))
}

#[test]
fn a_first_report_becomes_the_only_entry() {
    let merged = merged(&claim(&[], Value::Null), [gpu(0).ready("Ok", "fine").data(json!({"a": 1}))]);
    let conditions = json!([{"type": "Ready", "status": "True", "reason": "Ok", "message": "fine",
                             "lastTransitionTime": "2026-02-03T04:05:06Z"}]);
    assert_eq!(merged.devices, [entry("gpu-0", &json!({"conditions": conditions, "data": {"a": 1}}))]);
    assert!(merged.refused.is_empty() && merged.applied.len() == 1);
}

#[test]
fn network_data_has_only_the_fields_that_are_set() {
    let network = crate::NetworkDeviceData { ips: vec!["10.0.0.5/24".into()], ..Default::default() };
    let merged = merged(&claim(&[], Value::Null), [gpu(0).network_data(network)]);
    assert_eq!(merged.devices, [entry("gpu-0", &json!({"networkData": {"ips": ["10.0.0.5/24"]}}))]);
}

/// Fields that this driver has applied are kept; fields of others are not applied.
#[test]
fn only_fields_of_this_driver_are_applied_again() {
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
    let of_condition =
        json!({".": {}, "f:type": {}, "f:status": {}, "f:reason": {}, "f:message": {}, "f:lastTransitionTime": {}});
    let entries = json!([
        entry("gpu-0", &json!({"conditions": [condition("Ready"), condition("Bound")], "data": {"deep": {"er": [1]}},
                               "networkData": {"interfaceName": "eth0", "hardwareAddress": "00:11"}})),
        entry("gpu-2", &json!({"shareID": SHARE, "conditions": null, "data": {}})),
        {"driver": "net.example.com", "pool": "node-1", "device": "eth-0", "data": {"not": "ours"}},
    ]);
    let ours = json!({
        key("gpu-0", None): owns(json!({
            "f:conditions": {"k:{\"type\":\"Ready\"}": of_condition}, "f:data": {},
            "f:networkData": {"f:interfaceName": {}},
        })),
        key("gpu-2", Some(SHARE)): owns(json!({"f:shareID": {}, "f:data": {}})),
    });
    let theirs = json!({
        key("gpu-0", None): {"f:conditions": {"k:{\"type\":\"Bound\"}": {".": {}}}},
        "k:{\"device\":\"eth-0\",\"driver\":\"net.example.com\",\"pool\":\"node-1\"}": {".": {}},
    });
    let claim = claim(&[("scheduler", theirs), (MANAGER, ours)], entries);
    let merged = merged(&claim, [gpu(1).data(json!({"new": true}))]);
    assert_eq!(
        merged.devices,
        [
            entry(
                "gpu-0",
                &json!({"conditions": [condition("Ready")], "data": {"deep": {"er": [1]}},
                               "networkData": {"interfaceName": "eth0"}})
            ),
            entry("gpu-2", &json!({"shareID": SHARE, "data": {}})),
            entry("gpu-1", &json!({"data": {"new": true}})),
        ]
    );
}

#[test]
fn a_report_replaces_the_entry_of_its_device() {
    let ours = json!({key("gpu-0", None): owns(json!({"f:data": {}}))});
    let claim = claim(&[(MANAGER, ours)], json!([entry("gpu-0", &json!({"data": {"old": 1}}))]));
    assert_eq!(merged(&claim, [gpu(0)]).devices, [entry("gpu-0", &json!({}))]);
}

/// A device and a share of it are two entries.
#[test]
fn an_entry_without_a_share_is_not_that_of_a_share() {
    let ours = json!({key("gpu-2", None): owns(json!({"f:data": {}}))});
    let entries = json!([entry("gpu-2", &json!({"shareID": SHARE, "data": {"theirs": 1}}))]);
    assert_eq!(merged(&claim(&[(MANAGER, ours)], entries), [gpu(0)]).devices, [entry("gpu-0", &json!({}))]);
}

/// The claim was deallocated and allocated again: stale entries cannot be applied.
#[test]
fn entries_of_devices_that_are_not_allocated_are_omitted() {
    let ours = json!({key("gpu-7", None): owns(json!({"f:data": {}}))});
    let claim = claim(&[(MANAGER, ours)], json!([entry("gpu-7", &json!({"data": {}}))]));
    assert_eq!(merged(&claim, [gpu(0)]).devices, [entry("gpu-0", &json!({}))]);
}

#[rstest]
#[case::the_same("True", "2020-01-01T00:00:00Z")]
#[case::another("False", "2026-02-03T04:05:06Z")]
#[case::unknown("Unknown", "2026-02-03T04:05:06Z")]
fn a_transition_time_changes_only_with_the_status(#[case] before: &str, #[case] expected: &str) {
    let condition = json!({"type": "Ready", "status": before, "reason": "Other", "message": "other",
                           "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let claim = claim(&[], json!([entry("gpu-0", &json!({"conditions": [condition]}))]));
    let merged = merged(&claim, [gpu(0).ready("Ok", "")]);
    assert_eq!(merged.devices[0]["conditions"][0]["lastTransitionTime"], expected);
}

#[test]
fn the_only_share_of_a_device_is_the_default() {
    for report in [gpu(2), gpu(2).share_id(SHARE)] {
        let merged = merged(&claim(&[], Value::Null), [report]);
        assert_eq!(merged.devices, [entry("gpu-2", &json!({"shareID": SHARE}))]);
    }
}

#[rstest]
#[case::device(DeviceStatus::new("node-1", "gpu-9"), "not allocated")]
#[case::pool(DeviceStatus::new("node-2", "gpu-0"), "not allocated")]
#[case::of_another_driver(DeviceStatus::new("node-1", "eth-0"), "not allocated")]
#[case::share(gpu(2).share_id(SHARE.replace('a', "b")), "not allocated")]
#[case::share_of_what_has_none(gpu(0).share_id(SHARE), "not allocated")]
#[case::which_share(gpu(3), "2 shares")]
fn a_device_that_is_not_allocated_is_refused_and_others_are_applied(
    #[case] report: DeviceStatus,
    #[case] problem: &str,
) {
    let mut claim = claim(&[], Value::Null);
    let results = claim.pointer_mut("/status/allocation/devices/results").unwrap().as_array_mut().unwrap();
    for share in [SHARE.replace('a', "c"), SHARE.replace('a', "d")] {
        results.push(entry("gpu-3", &json!({"request": "e", "shareID": share})));
    }
    let merged = merged(&claim, [report, gpu(0)]);
    assert_eq!(merged.devices, [entry("gpu-0", &json!({}))]);
    assert!(merged.refused.len() == 1 && merged.refused[0].1.to_string().contains(problem), "{:?}", merged.refused);
}

#[test]
fn a_device_of_two_requests_has_one_entry() {
    let mut claim = claim(&[], Value::Null);
    let results = claim.pointer_mut("/status/allocation/devices/results").unwrap().as_array_mut().unwrap();
    results.push(entry("gpu-2", &json!({"request": "again", "shareID": SHARE})));
    results.insert(0, entry("gpu-0", &json!({"request": "again"})));
    assert_eq!(merged(&claim, [gpu(0), gpu(2)]).devices.len(), 2);
}

#[test]
fn malformed_managed_fields_are_ignored() {
    for fields in
        [json!(null), json!([]), json!({"k:{": {}}), json!({"k:[]": {}, "v:1": {}, "f:a": {}}), json!({"k:{}": 1})]
    {
        let claim = claim(&[(MANAGER, fields)], json!([entry("gpu-1", &json!({}))]));
        assert_eq!(merged(&claim, [gpu(0)]).devices, [entry("gpu-0", &json!({}))]);
    }
}
