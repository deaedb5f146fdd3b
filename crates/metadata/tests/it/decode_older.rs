//! Decoding the formats that were never released, and the field names of KEP-5304's prose.

use drakkar_metadata::{
    AttributeValue, DecodeError, Decoder, Device, DeviceAttribute, Format, NetworkDeviceData, Version, decode,
};
use rstest::rstest;

const VEP10: &str = r#"{
  "apiVersion": "resource.k8s.io/v1alpha1",
  "kind": "DeviceMetadata",
  "metadata": {"name": "my-gpu-claim", "namespace": "gpu-test1", "uid": "abc-123-def"},
  "podClaimName": "gpu-resource-claim",
  "requests": [{
    "name": "gpu",
    "devices": [{
      "driver": "gpu.example.com",
      "pool": "kind-1.31-dra-control-plane",
      "device": "pgpu-0",
      "attributes": {
        "driverVersion": {"version": "1.0.0"},
        "index": {"int": 0},
        "shared": {"bool": false},
        "model": {"stringValue": "LATEST-GPU-MODEL"},
        "cores": {"intValue": 64},
        "ecc": {"boolValue": true},
        "firmware": {"versionValue": "2.0.0"},
        "resources.kubernetes.io/pciBusID": {"string": "0000:01:00.0"}
      }
    }]
  }]
}"#;

const RELEASED: &str =
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{"name":"released"}}"#;

const DRAFT: &str = r#"{"claims": [{"claimName": "my-claim", "requests": [{"requestName": "my-request", "attributes": {
  "foo": "bar", "resource.kubernetes.io/pciBusID": "0000:00:1e.0", "cores": 64, "below": -1, "ecc": true, "none": null
}}]}]}"#;

#[test]
fn a_document_of_vep_10_is_read() {
    let decoded = decode(VEP10.as_bytes()).unwrap();
    assert_eq!(decoded.format, Format::Vep10);
    assert_eq!(decoded.format.to_string(), "resource.k8s.io/v1alpha1");
    let metadata = decoded.metadata;
    assert_eq!(metadata.metadata.name, "my-gpu-claim");
    assert_eq!(metadata.metadata.uid, "abc-123-def");
    assert_eq!(metadata.pod_claim_name.as_deref(), Some("gpu-resource-claim"));
    let device = &metadata.requests[0].devices[0];
    assert_eq!((device.driver.as_str(), device.name.as_str()), ("gpu.example.com", "pgpu-0"));
    assert_eq!(device.pool, "kind-1.31-dra-control-plane");
    assert_eq!(device.pci_bus_id(), Some("0000:01:00.0"));
    let value = |name: &str| device.attributes[name].value();
    assert_eq!(value("driverVersion"), Some(AttributeValue::Version("1.0.0")));
    assert_eq!(value("index"), Some(AttributeValue::Int(0)));
    assert_eq!(value("shared"), Some(AttributeValue::Bool(false)));
    assert_eq!(value("model"), Some(AttributeValue::String("LATEST-GPU-MODEL")));
    assert_eq!(value("cores"), Some(AttributeValue::Int(64)));
    assert_eq!(value("ecc"), Some(AttributeValue::Bool(true)));
    assert_eq!(value("firmware"), Some(AttributeValue::Version("2.0.0")));
}

#[test]
fn a_device_of_vep_10_may_also_have_a_name() {
    let text = VEP10.replace("\"device\":", "\"name\":");
    assert_eq!(decode(text.as_bytes()).unwrap().metadata.requests[0].devices[0].name, "pgpu-0");
}

#[test]
fn a_released_document_after_one_of_vep_10_is_used() {
    let decoded = decode(format!("{VEP10}\n{RELEASED}").as_bytes()).unwrap();
    assert_eq!(decoded.format, Format::Released(Version::V1Alpha1));
    assert_eq!(decoded.metadata.metadata.name, "released");
}

#[test]
fn the_first_document_of_vep_10_is_used_if_there_are_two() {
    let second = VEP10.replace("my-gpu-claim", "another");
    let unknown = r#"{"kind":"X","apiVersion":"v9"}"#;
    let decoded = decode(format!("{unknown}{VEP10}{second}{unknown}").as_bytes()).unwrap();
    assert_eq!(decoded.metadata.metadata.name, "my-gpu-claim");
}

#[test]
fn a_broken_document_after_one_of_vep_10_is_an_error() {
    assert!(matches!(decode(format!("{VEP10}{{").as_bytes()), Err(DecodeError::Syntax { .. })));
}

#[test]
fn a_document_of_vep_10_that_does_not_fit_its_schema_is_an_error() {
    let error = decode(VEP10.replace("\"pgpu-0\"", "7").as_bytes()).unwrap_err();
    match &error {
        DecodeError::Shape { format: Format::Vep10, location, position, .. } => {
            assert_eq!(location, ".requests[0].devices[0].device");
            assert_eq!(position.line, 11);
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().starts_with("resource.k8s.io/v1alpha1 document"), "{error}");
}

#[test]
fn the_group_of_vep_10_with_another_kind_is_only_an_unknown_version() {
    let text = VEP10.replace("DeviceMetadata", "ResourceClaim");
    assert_eq!(decode(text.as_bytes()), Err(DecodeError::UnknownVersions(vec!["resource.k8s.io/v1alpha1".into()])));
}

#[test]
fn the_early_draft_with_one_claim_is_read() {
    let decoded = decode(DRAFT.as_bytes()).unwrap();
    assert_eq!(decoded.format, Format::EarlyDraft);
    assert_eq!(decoded.metadata.metadata.name, "my-claim");
    let request = &decoded.metadata.requests[0];
    assert_eq!(request.name, "my-request");
    let expected: Vec<(&str, DeviceAttribute)> = vec![
        ("below", (-1).into()),
        ("cores", 64.into()),
        ("ecc", true.into()),
        ("foo", "bar".into()),
        ("none", DeviceAttribute::default()),
        ("resource.kubernetes.io/pciBusID", "0000:00:1e.0".into()),
    ];
    let attributes = expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(request.devices, [Device { attributes, ..Device::default() }]);
}

#[test]
fn the_early_draft_with_several_claims_is_read_claim_by_claim() {
    let text = r#"{"claims": [{"claimName": "a", "requests": [{"requestName": "r"}]},
                              {"claimName": "b", "requests": [{"requestName": "r", "attributes": null}]}]}"#;
    let error = decode(text.as_bytes()).unwrap_err();
    assert_eq!(error, DecodeError::SeveralClaims(2));
    assert!(error.to_string().contains("2 claims"), "{error}");
    let all = Decoder::new().decode_claims(text.as_bytes()).unwrap();
    assert_eq!(all.iter().map(|one| one.metadata.metadata.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(all.iter().all(|one| one.metadata.requests[0].name == "r"));
}

#[rstest]
#[case::claims_is_no_list(r#"{"claims": 7}"#, ".claims")]
#[case::a_claim_without_a_name(r#"{"claims": [{"requests": []}]}"#, ".claims[0]")]
#[case::an_attribute_that_is_a_list(
    r#"{"claims": [{"claimName": "a", "requests": [{"requestName": "r", "attributes": {"x": [1]}}]}]}"#,
    ".claims[0].requests[0].attributes.x"
)]
#[case::a_number_beyond_64_bits(
    r#"{"claims": [{"claimName": "a", "requests": [{"requestName": "r", "attributes": {"x": 9223372036854775808}}]}]}"#,
    ".claims[0].requests[0].attributes.x"
)]
fn an_early_draft_that_does_not_fit_its_schema_has_the_location(#[case] text: &str, #[case] expected: &str) {
    match decode(text.as_bytes()).unwrap_err() {
        DecodeError::Shape { format: Format::EarlyDraft, location, .. } => assert_eq!(location, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_early_draft_without_claims_is_an_error() {
    assert_eq!(decode(br#"{"claims": []}"#), Err(DecodeError::NothingFound));
}

#[test]
fn claims_in_a_document_with_a_type_are_an_unknown_field() {
    let text = RELEASED.replace("\"metadata\":", "\"claims\":[1],\"metadata\":");
    assert_eq!(decode(text.as_bytes()).unwrap().metadata.metadata.name, "released");
}

#[test]
fn a_decoder_of_released_versions_refuses_the_older_formats() {
    let strict = Decoder::released_only();
    assert_eq!(
        strict.decode(VEP10.as_bytes()),
        Err(DecodeError::UnknownVersions(vec!["resource.k8s.io/v1alpha1".into()]))
    );
    assert_eq!(strict.decode(DRAFT.as_bytes()), Err(DecodeError::NoApiVersion { document: 1, found: None }));
    assert_eq!(strict.decode(format!("{VEP10}{RELEASED}").as_bytes()).unwrap().metadata.metadata.name, "released");
}

/// Decodes network data from a released document.
fn network_data(members: &str) -> NetworkDeviceData {
    let text = format!(
        r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1",
             "requests":[{{"devices":[{{"networkData":{members}}}]}}]}}"#
    );
    decode(text.as_bytes()).unwrap().metadata.requests[0].devices[0].network_data.clone().unwrap()
}

fn expected(interface: &str, ips: &[&str], hardware_address: &str) -> NetworkDeviceData {
    NetworkDeviceData {
        interface_name: interface.into(),
        ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
        hardware_address: hardware_address.into(),
    }
}

#[test]
fn the_names_of_the_prose_are_used_if_the_apis_are_missing() {
    let read = network_data(
        r#"{"interfaceName":"eth1","addresses":["10.0.0.1/8","fd00::1/64"],"hwAddress":"02:00:00:00:00:01"}"#,
    );
    assert_eq!(read, expected("eth1", &["10.0.0.1/8", "fd00::1/64"], "02:00:00:00:00:01"));
    assert_eq!(
        network_data(r#"{"addresses":"10.0.0.1/8","ips":[],"hardwareAddress":"","hwAddress":"x"}"#),
        expected("", &["10.0.0.1/8"], "x")
    );
    assert_eq!(network_data(r#"{"addresses":["10.0.0.1/8"],"ips":null}"#), expected("", &["10.0.0.1/8"], ""));
}

#[test]
fn the_names_of_the_api_take_precedence() {
    let read = network_data(r#"{"addresses":["1"],"ips":["2"],"hwAddress":"3","hardwareAddress":"4"}"#);
    assert_eq!(read, expected("", &["2"], "4"));
}

#[rstest]
#[case(r#"{"addresses":7,"hwAddress":7}"#)]
#[case(r#"{"addresses":-7,"hwAddress":0.5}"#)]
#[case(r#"{"addresses":true,"hwAddress":null}"#)]
#[case(r#"{"addresses":{"a":["b"]},"hwAddress":{}}"#)]
#[case(r#"{"addresses":[7,{"a":1},[]],"hwAddress":[]}"#)]
#[case(r#"{"addresses":18446744073709551615,"hwAddress":-9223372036854775808}"#)]
#[case::a_number_beyond_floating_point(r#"{"hwAddress":1e400}"#)]
fn a_name_of_the_prose_with_another_type_is_ignored(#[case] members: &str) {
    assert_eq!(network_data(members), NetworkDeviceData::default());
}
