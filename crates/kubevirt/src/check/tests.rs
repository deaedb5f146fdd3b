use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const PATH: &str = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/gpu/gpu.example.com-metadata.json";

fn file(version: &str, request: &str, attributes: &[Value]) -> Vec<u8> {
    let devices: Vec<Value> = attributes
        .iter()
        .map(|attributes| json!({"driver": "gpu.example.com", "pool": "n", "name": "gpu-0", "attributes": attributes}))
        .collect();
    let document = json!({
        "kind": "DeviceMetadata",
        "apiVersion": format!("metadata.resource.k8s.io/{version}"),
        "metadata": {"name": "c", "namespace": "default"},
        "requests": [{"name": request, "devices": devices}],
    });
    document.to_string().into_bytes()
}

fn pci() -> Value {
    json!({
        "resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:60"},
    })
}

fn errors(report: &Report) -> Vec<&str> {
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.message.as_str()).collect()
}

#[test]
fn a_complete_file_has_no_findings() {
    let report = check(Some(Path::new(PATH)), &file("v1alpha1", "gpu", &[pci()]));
    assert_eq!(report, Report { device: Some("pci 0000:65:00.0".into()), findings: vec![] });
}

#[test]
fn the_second_document_may_be_the_readable_one() {
    let stream = [file("v1beta1", "gpu", &[pci()]), b"\n".to_vec(), file("v1alpha1", "gpu", &[pci()])].concat();
    assert!(check(None, &stream).is_usable());
}

#[test]
fn a_mediated_device_wins_over_an_address() {
    let mut attributes = pci();
    attributes["mdevUUID"] = json!({"string": "aa618089-8b16-4d01-a136-25a0f3c73123"});
    let report = check(None, &file("v1alpha1", "gpu", &[attributes]));
    assert!(report.is_usable());
    assert_eq!(report.device.as_deref(), Some("mdev aa618089-8b16-4d01-a136-25a0f3c73123"));
}

#[rstest]
#[case::other_version(file("v1beta1", "gpu", &[pci()]), "v1beta1 only")]
#[case::empty(b"".to_vec(), "no document")]
#[case::broken_first([b"{]".to_vec(), file("v1alpha1", "gpu", &[pci()])].concat(), "JSON")]
#[case::byte_order_mark([b"\xef\xbb\xbf".to_vec(), file("v1alpha1", "gpu", &[pci()])].concat(), "byte order mark")]
#[case::two_devices(file("v1alpha1", "gpu", &[pci(), pci()]), "2 devices")]
#[case::no_device(file("v1alpha1", "gpu", &[]), "no device")]
#[case::subrequest(file("v1alpha1", "gpu/large", &[pci()]), "firstAvailable")]
#[case::another_request(file("v1alpha1", "other", &[pci()]), "directory of request gpu")]
#[case::no_attribute(file("v1alpha1", "gpu", &[json!({"model": {"string": "m"}})]), "neither")]
#[case::plural(file("v1alpha1", "gpu", &[json!({"resources.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}})]), "does not read")]
#[case::spelling(file("v1alpha1", "gpu", &[json!({"mDevUUID": {"string": "aa618089-8b16-4d01-a136-25a0f3c73123"}})]), "mDevUUID")]
#[case::number(file("v1alpha1", "gpu", &[json!({"mdevUUID": {"int": 1}})]), "mdevUUID, which KubeVirt does not read")]
#[case::address(file("v1alpha1", "gpu", &[json!({"resource.kubernetes.io/pciBusID": {"string": "65:00.0"}})]), "pciBusID")]
#[case::uuid(file("v1alpha1", "gpu", &[json!({"mdevUUID": {"string": "1-2"}})]), "not a UUID")]
fn what_kubevirt_cannot_use_is_an_error(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let report = check(Some(Path::new(PATH)), &bytes);
    assert!(!report.is_usable(), "{report:?}");
    assert!(errors(&report).iter().any(|error| error.contains(expected)), "{report:?}");
}

#[test]
fn the_layout_of_the_kep_alone_is_a_warning() {
    let path = "/var/run/dra-device-attributes/c/gpu/gpu.example.com-metadata.json";
    let report = check(Some(Path::new(path)), &file("v1alpha1", "gpu", &[pci()]));
    assert_eq!(report.findings[0].severity, Severity::Warning, "{report:?}");
    let renamed = PATH.replace("gpu.example.com", "other.example.com");
    let report = check(Some(Path::new(&renamed)), &file("v1alpha1", "gpu", &[pci()]));
    assert!(report.findings[0].message.contains("driver other.example.com"), "{report:?}");
}

/// The same content, with the text of the members changed.
fn changed(from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(file("v1alpha1", "gpu", &[pci()])).unwrap();
    assert!(text.contains(from), "{text}");
    text.replace(from, to).into_bytes()
}

#[rstest]
#[case::no_kind(changed(r#""kind":"DeviceMetadata","#, ""))]
#[case::other_kind(changed("DeviceMetadata", "Other"))]
#[case::duplicate_key(changed(r#""pool":"n""#, r#""pool":"m","pool":"n""#))]
#[case::broken_newer_version([
    br#"{"apiVersion": "metadata.resource.k8s.io/v1beta1", "kind": "DeviceMetadata", "requests": 5}"#.to_vec(),
    file("v1alpha1", "gpu", &[pci()]),
].concat())]
#[case::broken_unknown_version([
    br#"{"apiVersion": "metadata.resource.k8s.io/v99", "kind": 5, "requests": 5}"#.to_vec(),
    file("v1alpha1", "gpu", &[pci()]),
].concat())]
#[case::other_case(changed(r#""requests""#, r#""Requests""#))]
#[case::garbage_behind([file("v1alpha1", "gpu", &[pci()]), b"{]".to_vec()].concat())]
fn what_kubevirt_reads_and_others_do_not_is_a_warning(#[case] bytes: Vec<u8>) {
    let report = check(Some(Path::new(PATH)), &bytes);
    assert!(report.is_usable(), "{report:?}");
    assert_eq!(report.device.as_deref(), Some("pci 0000:65:00.0"));
    let severities: Vec<_> = report.findings.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Warning], "{report:?}");
}

#[test]
fn libvirt_accepts_a_uuid_without_dashes() {
    let attributes = json!({"mdevUUID": {"string": "aa6180898b164d01a13625a0f3c73123"}});
    assert!(check(None, &file("v1alpha1", "gpu", &[attributes])).is_usable());
}
