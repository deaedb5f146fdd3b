//! What is decoded of a slice, and that it is the same if less is.

#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::super::content::DeviceFacts;
use super::super::devices::encoded;
use super::super::resources::PublishedDevice;
use super::super::slice_devices::Row;
use super::*;

/// A slice with devices, whose fields are in the order of the alphabet.
fn slice(devices: &[Value]) -> Vec<u8> {
    let object = json!({
        "metadata": {"name": "00000-a", "uid": "u", "resourceVersion": "7"},
        "spec": {"driver": "d", "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}, "devices": devices},
    });
    object.to_string().into_bytes()
}

fn device(number: usize, revision: i64) -> Value {
    json!({"name": format!("gpu-{number}"), "attributes": {"revision": {"int": revision}},
        "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}]})
}

fn assert_same(one: &StoredSlice, other: &StoredSlice) {
    assert_eq!((one.digest, &one.taints), (other.digest, &other.taints));
    assert!(one.devices.names().eq(other.devices.names()));
}

#[test]
fn devices_that_the_server_returns_as_before_are_not_decoded_again() {
    let mut devices: Vec<Value> = (0..64).map(|number| device(number, 0)).collect();
    let before = StoredSlice::read(&slice(&devices), DraVersion::V1).unwrap();
    assert_eq!((before.decoded, before.devices.len(), before.taints.len()), (64, 64, 64));
    devices[30] = device(30, 1);
    devices.remove(50);
    devices.insert(10, device(99, 0));
    devices.swap(0, 1);
    let json = slice(&devices);
    let expected = Expected { before: Some(&before), sent: None };
    let after = StoredSlice::read_expected(&json, DraVersion::V1, expected).unwrap();
    assert_eq!(after.decoded, 2);
    assert_same(&after, &StoredSlice::read(&json, DraVersion::V1).unwrap());
    assert_ne!(after.digest, before.digest);
}

/// API servers write fields in the order in which they are sent.
#[test]
fn devices_that_the_server_returns_as_sent_are_not_decoded() {
    let devices: Vec<PublishedDevice> = (0..3)
        .map(|number| PublishedDevice::new(format!("gpu-{number}")).attribute("number", number).taint("k", "", "None"))
        .collect();
    let texts: Vec<Vec<u8>> = devices.iter().map(encoded).collect();
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    let mut facts = Vec::new();
    let mut taints = Vec::new();
    for (number, device) in devices.into_iter().enumerate() {
        let (its_facts, its_taints) = DeviceFacts::of(device).unwrap();
        facts.push(its_facts);
        taints.extend(its_taints.into_iter().map(|taint| (number, taint)));
    }
    let sent = SliceDevices::new(Row { texts: &texts, facts: &facts, taints: &taints, first: 0 });
    let json = |last: &str| {
        let texts: Vec<&str> = texts.iter().map(|text| str::from_utf8(text).unwrap()).collect();
        format!(
            r#"{{"metadata":{{"name":"00000-a"}},"spec":{{"driver":"d","pool":{{"name":"pool","generation":1,"resourceSliceCount":1}},
                "devices":[{}, {},{last}]}}}}"#,
            texts[0], texts[1]
        )
    };
    let expected = Expected { sent: Some(&sent), before: None };
    let read = |json: &str| StoredSlice::read_expected(json.as_bytes(), DraVersion::V1, expected).unwrap();
    let same = json(str::from_utf8(texts[2]).unwrap());
    assert_eq!(read(&same).decoded, 0);
    assert_same(&read(&same), &StoredSlice::read(same.as_bytes(), DraVersion::V1).unwrap());
    let other = json(r#"{"name":"gpu-2","attributes":{"number":{"int":3}}}"#);
    assert_eq!(read(&other).decoded, 1);
    assert_same(&read(&other), &StoredSlice::read(other.as_bytes(), DraVersion::V1).unwrap());
    assert_ne!(read(&other).digest, read(&same).digest);
}

#[test]
fn a_slice_without_devices_and_with_null_for_every_field_is_read() {
    let json =
        br#"{"metadata":{"name":"a"},"spec":{"driver":"d","pool":{"name":"p","generation":1,"resourceSliceCount":1},
        "devices":null,"nodeSelector":null,"allNodes":null,"perDeviceNodeSelection":null,"partitionTypeAttribute":null,
        "skipNodeOperations":null,"sharedCounters":null}}"#;
    let read = StoredSlice::read(json, DraVersion::V1).unwrap();
    assert_eq!((read.devices.len(), read.devices.names().count()), (0, 0));
    assert_eq!(read.digest, SliceHeader::default().digest(std::iter::empty()).unwrap());
}
