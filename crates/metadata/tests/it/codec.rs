//! Encoding: whole documents, byte by byte.

use std::path::Path;

use drakkar_metadata::{
    Device, DeviceAttribute, FieldsV1, ManagedFieldsEntry, Metadata, NetworkDeviceData, ObjectMeta, OwnerReference,
    Request, Time, Version, Versions, decode, decode_as, encode, v1alpha1, v1beta1,
};
use rstest::rstest;

use crate::support::{both, fixture};

fn time(text: &str) -> Option<Time> {
    Some(text.parse().unwrap())
}

/// Returns the object of Kubernetes' compatibility test, with every field set.
fn fully_populated() -> Metadata {
    Metadata {
        metadata: ObjectMeta {
            name: "claim".into(),
            generate_name: "generateNameValue".into(),
            namespace: "default".into(),
            self_link: "selfLinkValue".into(),
            uid: "claim-uid".into(),
            resource_version: "resourceVersionValue".into(),
            generation: 7,
            creation_timestamp: time("2008-01-01T01:01:01Z"),
            deletion_timestamp: time("2009-01-01T01:01:01Z"),
            deletion_grace_period_seconds: Some(10),
            labels: [("labelsKey".into(), "labelsValue".into())].into(),
            annotations: [("annotationsKey".into(), "annotationsValue".into())].into(),
            owner_references: vec![OwnerReference {
                api_version: "apiVersionValue".into(),
                kind: "kindValue".into(),
                name: "nameValue".into(),
                uid: "uidValue".into(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }],
            finalizers: vec!["finalizersValue".into()],
            managed_fields: vec![ManagedFieldsEntry {
                manager: "managerValue".into(),
                operation: "operationValue".into(),
                api_version: "apiVersionValue".into(),
                time: time("2004-01-01T01:01:01Z"),
                fields_type: "fieldsTypeValue".into(),
                fields_v1: Some(FieldsV1::from_json("{}").unwrap()),
                subresource: "subresourceValue".into(),
            }],
        },
        pod_claim_name: Some("<no json tag> PodClaimNameValue".into()),
        requests: vec![Request {
            name: "request".into(),
            devices: vec![Device {
                driver: "gpu.example.com".into(),
                pool: "worker-0".into(),
                name: "gpu-0".into(),
                attributes: [(
                    "model".into(),
                    DeviceAttribute {
                        int: Some(2),
                        bool: Some(true),
                        string: Some("LATEST-GPU-MODEL".into()),
                        version: Some("versionValue".into()),
                        ints: vec![6],
                        bools: vec![true],
                        strings: vec!["stringsValue".into()],
                        versions: vec!["versionsValue".into()],
                    },
                )]
                .into(),
                network_data: Some(NetworkDeviceData {
                    interface_name: "interfaceNameValue".into(),
                    ips: vec!["ipsValue".into()],
                    hardware_address: "hardwareAddressValue".into(),
                }),
            }],
        }],
    }
}

#[rstest]
#[case::head("v1beta1-v1alpha1.json", "v1beta1,v1alpha1")]
#[case::kubernetes_1_36("v1alpha1.json", "v1alpha1")]
fn a_fully_populated_object_is_written_as_go_writes_it(#[case] name: &str, #[case] versions: &str) {
    let written = encode(&fully_populated(), &versions.parse().unwrap());
    assert_eq!(String::from_utf8(written).unwrap(), String::from_utf8(fixture(name)).unwrap());
}

#[rstest]
#[case::head("v1beta1-v1alpha1.json", "v1beta1,v1alpha1")]
#[case::kubernetes_1_36("v1alpha1.json", "v1alpha1")]
fn decoding_and_encoding_does_not_change_a_fixture(#[case] name: &str, #[case] versions: &str) {
    let bytes = fixture(name);
    let decoded = decode(&bytes).unwrap().metadata;
    assert_eq!(decoded, fully_populated());
    assert_eq!(encode(&decoded, &versions.parse().unwrap()), bytes);
}

#[test]
fn every_fixture_is_known_to_these_tests() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["v1alpha1.json", "v1beta1-v1alpha1.json"]);
}

#[rstest]
#[case("v1beta1-v1alpha1.json", &["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"])]
#[case("v1alpha1.json", &["metadata.resource.k8s.io/v1alpha1"])]
fn every_document_of_a_fixture_has_its_version(#[case] name: &str, #[case] versions: &[&str]) {
    let bytes = fixture(name);
    let documents: Vec<serde_json::Value> =
        serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<_, _>>().unwrap();
    assert!(documents.iter().all(|document| document["kind"] == "DeviceMetadata"));
    let found: Vec<_> = documents.iter().map(|document| document["apiVersion"].as_str().unwrap()).collect();
    assert_eq!(found, versions);
}

#[rstest]
#[case("v1alpha1")]
#[case("v1beta1")]
#[case("v1beta1,v1alpha1")]
#[case("v1alpha1,v1beta1")]
fn every_document_is_followed_by_exactly_one_newline(#[case] versions: &str) {
    let versions: Versions = versions.parse().unwrap();
    let text = String::from_utf8(encode(&fully_populated(), &versions)).unwrap();
    assert!(text.ends_with("}\n") && !text.ends_with("\n\n"));
    assert!(!text.contains("\n\n"));
    assert_eq!(text.matches("\n}\n").count(), versions.as_slice().len());
    assert_eq!(text.matches("\n}\n{\n").count(), versions.as_slice().len() - 1);
}

#[test]
fn versions_are_written_in_the_order_given() {
    let stream = encode(&fully_populated(), &Versions::new([Version::V1Alpha1, Version::V1Beta1]).unwrap());
    let text = String::from_utf8(stream).unwrap();
    assert!(text.find("v1alpha1").unwrap() < text.find("v1beta1").unwrap());
}

#[test]
fn the_typed_documents_serialize_with_their_own_version() {
    let bytes = fixture("v1beta1-v1alpha1.json");
    let (beta, _) = decode_as::<v1beta1::V1Beta1>(&bytes).unwrap();
    let (alpha, _) = decode_as::<v1alpha1::V1Alpha1>(&bytes).unwrap();
    assert_eq!(serde_json::to_value(&beta).unwrap()["apiVersion"], "metadata.resource.k8s.io/v1beta1");
    let alpha = serde_json::to_value(&alpha).unwrap();
    assert_eq!(alpha, serde_json::from_slice::<serde_json::Value>(&fixture("v1alpha1.json")).unwrap());
}

#[test]
fn an_empty_object_is_written_with_its_type_and_an_empty_metadata() {
    let text = String::from_utf8(encode(&Metadata::default(), &both())).unwrap();
    let one = |version: &str| {
        format!(
            "{{\n  \"kind\": \"DeviceMetadata\",\n  \"apiVersion\": \"metadata.resource.k8s.io/{version}\",\n  \
             \"metadata\": {{}}\n}}\n"
        )
    };
    assert_eq!(text, one("v1beta1") + &one("v1alpha1"));
}

#[test]
fn required_names_are_written_even_if_empty_and_lists_are_not() {
    let metadata = Metadata {
        requests: vec![Request { name: String::new(), devices: vec![Device::default()] }, Request::default()],
        ..Metadata::default()
    };
    let text = String::from_utf8(encode(&metadata, &Versions::default())).unwrap();
    let expected = r#"  "requests": [
    {
      "name": "",
      "devices": [
        {
          "driver": "",
          "pool": "",
          "name": ""
        }
      ]
    },
    {
      "name": ""
    }
  ]
}
"#;
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn an_empty_pod_claim_name_is_written_and_an_absent_one_is_not() {
    let some = Metadata { pod_claim_name: Some(String::new()), ..Metadata::default() };
    assert!(String::from_utf8(encode(&some, &both())).unwrap().contains("\"podClaimName\": \"\""));
    assert!(!String::from_utf8(encode(&Metadata::default(), &both())).unwrap().contains("podClaimName"));
}
