//! Strict parsing, and serialization as in Go.

use drakkar_cdi::{ContainerEdits, Device, IntelRdt, Spec, validate_strict};
use rstest::rstest;

use crate::support::{golden, small};

#[test]
fn every_field_is_serialized_in_the_order_of_go() {
    let text = golden!("everything");
    let spec = Spec::parse(text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(spec.to_json()).unwrap(), text);
    validate_strict(&spec).unwrap();
}

#[test]
fn an_empty_spec_is_serialized_as_in_go_but_for_the_list_of_devices() {
    let text = "{\n  \"cdiVersion\": \"\",\n  \"kind\": \"\",\n  \"devices\": [],\n  \"containerEdits\": {}\n}";
    assert_eq!(String::from_utf8(Spec::default().to_json()).unwrap(), text);
}

#[test]
fn an_empty_list_of_schemata_counts_for_the_version_and_is_not_serialized() {
    let rdt = |schemata| ContainerEdits {
        intel_rdt: Some(IntelRdt { schemata, ..IntelRdt::default() }),
        ..ContainerEdits::default()
    };
    let text = br#"{"containerEdits": {"intelRdt": {"schemata": []}}}"#;
    let spec = Spec::parse(text).unwrap();
    assert_eq!(spec.container_edits, rdt(Some(Vec::new())));
    assert_eq!(Spec::parse(&spec.to_json()).unwrap().container_edits, rdt(None));
}

#[test]
fn fields_of_older_versions_are_parsed_and_serialized() {
    let text = br#"{"containerEdits": {"intelRdt": {"enableCMT": true, "enableMBM": false}}}"#;
    let spec = Spec::parse(text).unwrap();
    let rdt = spec.container_edits.intel_rdt.as_ref().unwrap();
    assert_eq!((rdt.enable_cmt, rdt.enable_mbm), (Some(true), Some(false)));
    assert_eq!(Spec::parse(&spec.to_json()).unwrap(), spec);
}

#[test]
fn null_is_absent() {
    let text = br#"{
        "cdiVersion": "0.3.0", "kind": "example.com/gpu", "annotations": null,
        "devices": [{"name": "gpu0", "annotations": null, "containerEdits": {
            "env": ["GPU=0"], "deviceNodes": null, "netDevices": null, "hooks": null, "mounts": null,
            "intelRdt": null, "additionalGids": null
        }}],
        "containerEdits": null
    }"#;
    assert_eq!(Spec::parse(text).unwrap(), small());
    let node = br#"{"devices": [{"containerEdits": {"deviceNodes": [{"path": null, "type": null, "major": null,
        "fileMode": null, "uid": null}], "hooks": [{"timeout": null}], "mounts": [{"options": null}]}}]}"#;
    let expected = ContainerEdits {
        device_nodes: vec![Default::default()],
        hooks: vec![Default::default()],
        mounts: vec![Default::default()],
        ..ContainerEdits::default()
    };
    let device = Device { container_edits: expected, ..Device::default() };
    assert_eq!(Spec::parse(node).unwrap().devices, [device]);
}

#[rstest]
#[case::spec(r#"{"x": 1}"#)]
#[case::case_of_letters(r#"{"Kind": "a/b"}"#)]
#[case::device(r#"{"devices": [{"x": 1}]}"#)]
#[case::edits(r#"{"containerEdits": {"x": 1}}"#)]
#[case::prose_gids(r#"{"containerEdits": {"additionalGIDs": [1]}}"#)]
#[case::node(r#"{"containerEdits": {"deviceNodes": [{"x": 1}]}}"#)]
#[case::net_device(r#"{"containerEdits": {"netDevices": [{"x": 1}]}}"#)]
#[case::hook(r#"{"containerEdits": {"hooks": [{"x": 1}]}}"#)]
#[case::mount(r#"{"containerEdits": {"mounts": [{"x": 1}]}}"#)]
#[case::prose_schema(r#"{"containerEdits": {"intelRdt": {"schema": []}}}"#)]
fn an_unknown_key_is_an_error_at_every_level(#[case] text: &str) {
    let error = Spec::parse(text.as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("not a CDI spec in JSON: unknown field `"), "{error}");
    assert_eq!(error.position().0, 1);
}

#[rstest]
#[case::spec(r#"{"kind": "a/b", "kind": "a/b"}"#)]
#[case::spec_null(r#"{"kind": null, "kind": "a/b"}"#)]
#[case::device(r#"{"devices": [{"name": "a", "name": "a"}]}"#)]
#[case::edits(r#"{"containerEdits": {"env": [], "env": []}}"#)]
#[case::node(r#"{"containerEdits": {"deviceNodes": [{"path": "", "path": ""}]}}"#)]
#[case::net_device(r#"{"containerEdits": {"netDevices": [{"name": "", "name": ""}]}}"#)]
#[case::hook(r#"{"containerEdits": {"hooks": [{"path": "", "path": ""}]}}"#)]
#[case::mount(r#"{"containerEdits": {"mounts": [{"type": "", "type": ""}]}}"#)]
#[case::rdt(r#"{"containerEdits": {"intelRdt": {"closID": "", "closID": ""}}}"#)]
#[case::spec_annotation(r#"{"annotations": {"a": "1", "a": "1"}}"#)]
#[case::device_annotation(r#"{"devices": [{"annotations": {"a": "1", "\u0061": "2"}}]}"#)]
fn a_duplicate_key_is_an_error_at_every_level(#[case] text: &str) {
    let error = Spec::parse(text.as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("not a CDI spec in JSON: duplicate "), "{error}");
}

#[rstest]
#[case::spec(r#"["0.3.0", "a/b"]"#)]
#[case::device(r#"{"devices": [["gpu0"]]}"#)]
#[case::edits(r#"{"containerEdits": []}"#)]
#[case::node(r#"{"containerEdits": {"deviceNodes": [["/dev/x"]]}}"#)]
#[case::net_device(r#"{"containerEdits": {"netDevices": [["a", "b"]]}}"#)]
#[case::hook(r#"{"containerEdits": {"hooks": [[]]}}"#)]
#[case::mount(r#"{"containerEdits": {"mounts": [["/a", "/b"]]}}"#)]
#[case::rdt(r#"{"containerEdits": {"intelRdt": []}}"#)]
#[case::annotations(r#"{"annotations": []}"#)]
fn a_list_is_not_an_object(#[case] text: &str) {
    let error = Spec::parse(text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("invalid type: sequence, expected an object"), "{error}");
}

#[rstest]
#[case::nothing("")]
#[case::null("null")]
#[case::text("\"spec\"")]
#[case::cut("{\"kind\": \"a")]
#[case::two("{} {}")]
#[case::yaml("kind: a/b")]
#[case::number_for_text(r#"{"kind": 1}"#)]
#[case::number_for_annotation(r#"{"annotations": {"a": 1}}"#)]
#[case::null_in_a_list(r#"{"devices": [null]}"#)]
#[case::text_for_number(r#"{"containerEdits": {"additionalGids": ["1"]}}"#)]
#[case::negative_gid(r#"{"containerEdits": {"additionalGids": [-1]}}"#)]
#[case::large_gid(r#"{"containerEdits": {"additionalGids": [4294967296]}}"#)]
#[case::fraction(r#"{"containerEdits": {"hooks": [{"timeout": 1.5}]}}"#)]
#[case::deep(&"[".repeat(100_000))]
fn text_that_is_not_a_spec_is_refused(#[case] text: &str) {
    Spec::parse(text.as_bytes()).unwrap_err();
}
