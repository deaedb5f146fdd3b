//! The codec against bodies that client-go 0.37.2 wrote, with its JSON of the same objects.

use base64::Engine as _;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::{DecodeError, EncodeError, MAGIC, from_json, from_slice, to_json, watch_event};

fn bodies() -> Vec<(String, Vec<u8>, Value)> {
    let table: Vec<Value> = serde_json::from_str(include_str!("tests/go_1_37_2.json")).unwrap();
    let decode = |text: &Value| base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    table
        .into_iter()
        .map(|row| (row["name"].as_str().unwrap().to_owned(), decode(&row["protobuf"]), row["json"].clone()))
        .collect()
}

fn round_trip(object: &Value) -> Value {
    serde_json::from_slice(&to_json(&from_json(object.to_string().as_bytes()).unwrap()).unwrap()).unwrap()
}

#[test]
fn bodies_decode_to_the_json_of_go() {
    for (name, body, expected) in bodies() {
        let found: Value = serde_json::from_slice(&to_json(&body).unwrap()).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn bodies_deserialize_into_types_of_the_api() {
    fn check<T: DeserializeOwned + PartialEq + std::fmt::Debug>(kind: &str) {
        let of_kind = bodies().into_iter().filter(|(_, _, json)| json["kind"] == kind);
        let mut count = 0;
        for (name, body, json) in of_kind {
            assert_eq!(from_slice::<T>(&body).unwrap(), serde_json::from_value::<T>(json).unwrap(), "{name}");
            count += 1;
        }
        assert!(count > 0, "{kind}");
    }
    check::<ResourceSlice>("ResourceSlice");
    check::<ResourceClaim>("ResourceClaim");
    check::<ResourceClaimTemplate>("ResourceClaimTemplate");
    check::<DeviceClass>("DeviceClass");
}

/// Fields that the type does not have are skipped, lists and maps included.
#[test]
fn a_part_of_an_object_can_be_deserialized() {
    #[derive(Deserialize)]
    struct Part {
        metadata: IgnoredAny,
        status: Status,
    }
    #[derive(Deserialize)]
    struct Status {
        devices: Vec<IgnoredAny>,
    }
    let (_, body, json) = bodies().into_iter().find(|(name, ..)| name == "every field of a claim").unwrap();
    let part: Part = from_slice(&body).unwrap();
    let IgnoredAny = part.metadata;
    assert_eq!(part.status.devices.len(), json["status"]["devices"].as_array().unwrap().len());
}

/// Writers may write fields in any order, and other fields between the items of a list.
#[test]
fn fields_are_decoded_in_any_order() {
    let head = b"k8s\0\x0a\x23\x0a\x12resource.k8s.io/v1\x12\x0dResourceSlice\x12".as_slice();
    let read = |raw: &[u8]| {
        let body = [head, &[u8::try_from(raw.len()).unwrap()], raw].concat();
        to_json(&body).map(|json| serde_json::from_slice::<Value>(&json).unwrap())
    };
    let slice = read(b"\x12\x10\x32\x03\x0a\x01x\x0a\x01d\x32\x03\x0a\x01y\x1a\x01n\x0a\x03\x0a\x01a").unwrap();
    let spec = json!({"driver": "d", "nodeName": "n", "devices": [{"name": "x"}, {"name": "y"}]});
    assert_eq!((&slice["spec"], &slice["metadata"]), (&spec, &json!({"name": "a"})));
    let twice = read(b"\x12\x06\x0a\x01d\x0a\x01e");
    assert_eq!(twice, Err(DecodeError::Malformed("a field is there twice")));
}

#[test]
fn objects_survive_a_round_trip() {
    for (name, _, object) in bodies() {
        assert_eq!(round_trip(&object), object, "{name}");
    }
}

#[test]
fn a_small_object_has_these_bytes() {
    let slice = br#"{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","metadata":{"name":"a"},
        "spec":{"driver":"d","devices":[{"attributes":{"i":{"int":-1}}}]}}"#;
    let device = b"\x12\x10\x0a\x01i\x12\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    let expected = [
        b"k8s\0\x0a\x23\x0a\x12resource.k8s.io/v1\x12\x0dResourceSlice\x12\x1e".as_slice(),
        b"\x0a\x03\x0a\x01a\x12\x17\x0a\x01d\x32\x12",
        device,
    ];
    assert_eq!(from_json(slice).unwrap(), expected.concat());
}

/// The length of a message of more than 127 bytes has more than one byte.
#[test]
fn long_messages_have_longer_lengths() {
    for length in [0, 1, 100, 127, 128, 16_383, 16_384, 3_000_000] {
        let name = "n".repeat(length);
        let slice = json!({
            "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1",
            "spec": {"driver": name, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": name}]}]}},
        });
        assert_eq!(round_trip(&slice), slice);
    }
}

#[test]
fn objects_that_do_not_match_the_schema_are_errors() {
    let slice = |spec: Value| json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "spec": spec});
    for (object, expected) in [
        (slice(json!({"driver": "d", "colour": "red"})), "v1.ResourceSliceSpec has no field \"colour\""),
        (slice(json!({"driver": 1})), "invalid type: a number, expected a string"),
        (slice(json!({"pool": {"generation": "1"}})), "invalid type: a string, expected an integer"),
        (slice(json!({"pool": {"generation": u64::MAX}})), "more than 63 bits"),
        (slice(json!({"pool": []})), "invalid type: a list, expected an object"),
        (slice(json!({"devices": {}})), "invalid type: an object, expected a list"),
        (slice(json!({"devices": [{"taints": [{"timeAdded": "soon"}]}]})), "time"),
        (json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1beta1"}), "resource.k8s.io/v1beta1"),
        (json!({"kind": "Pod", "apiVersion": "v1"}), "\"Pod\""),
        (json!("slice"), "invalid type"),
    ] {
        let error = from_json(object.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(matches!(from_json(b"{\"kind\":\"Pod\"}"), Err(EncodeError::Unknown(_))));
    assert!(matches!(from_json(b"{\"kind\":"), Err(EncodeError::Json(_))));
}

#[test]
fn null_is_absent_and_quantities_can_be_numbers() {
    let slice = json!({
        "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"creationTimestamp": null},
        "spec": {"driver": "d", "devices": [{"name": "n", "taints": null, "capacity": {"memory": {"value": 5}}}]},
    });
    let expected = json!({
        "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {},
        "spec": {"driver": "d", "devices": [{"name": "n", "capacity": {"memory": {"value": "5"}}}]},
    });
    assert_eq!(round_trip(&slice), expected);
}

#[test]
fn a_watch_event_has_its_length_in_front() {
    let slice = br#"{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","metadata":{"name":"a"}}"#;
    let event = watch_event("ADDED", slice).unwrap();
    let (length, message) = event.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, message.len());
    let object = message.strip_prefix(b"\x0a\x05ADDED\x12").unwrap();
    assert_eq!(&object[4..], &from_json(slice).unwrap()[1..], "after two lengths and a number");
}

#[test]
fn truncated_and_damaged_bodies_are_errors_and_never_panic() {
    let (_, body, _) = bodies().remove(0);
    let refused = (0..body.len()).filter(|length| to_json(&body[..*length]).is_err()).count();
    // What is truncated between two fields of the outermost message is a valid message.
    assert!(refused > body.len() - 10, "{refused} of {}", body.len());
    for position in 0..body.len() {
        let mut changed = body.clone();
        changed[position] ^= 0xff;
        let _ = to_json(&changed);
    }
}

#[test]
fn other_kinds_are_unknown() {
    let empty = |kind: &str| {
        let mut type_meta = b"\x0a\x02v1\x12".to_vec();
        type_meta.push(u8::try_from(kind.len()).unwrap());
        type_meta.extend(kind.as_bytes());
        let mut body = [MAGIC, b"\x0a"].concat();
        body.push(u8::try_from(type_meta.len()).unwrap());
        body.extend(type_meta);
        body
    };
    assert!(matches!(to_json(&empty("Pod")), Err(DecodeError::Unknown(unknown)) if unknown.kind == "Pod"));
    assert!(matches!(to_json(b"{}"), Err(DecodeError::Malformed(_))));
    let options: Value = serde_json::from_slice(&to_json(&empty("DeleteOptions")).unwrap()).unwrap();
    assert_eq!(options, json!({"apiVersion": "v1", "kind": "DeleteOptions"}));
}
