//! The bytes that a runtime sends and reads, written down from the contract and not from the `.proto` files.

use prost::Message;

use super::*;

fn text(text: &str) -> String {
    text.to_owned()
}

#[test]
fn a_registration_has_the_runtimes_bytes() {
    let register = v1alpha1::RegisterPluginRequest {
        plugin_name: text("demo"),
        plugin_idx: text("10"),
        ..v1alpha1::RegisterPluginRequest::default()
    };
    let request = ttrpc::Request {
        service: text(RUNTIME_SERVICE),
        method: text("RegisterPlugin"),
        payload: register.encode_to_vec().into(),
        timeout_nano: 5_000_000_000,
        metadata: Vec::new(),
    };
    let mut bytes = vec![0x0a, 0x1c];
    bytes.extend(b"nri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin\x1a\x0a\x0a\x04demo\x12\x0210");
    bytes.extend([0x20, 0x80, 0xe4, 0x97, 0xd0, 0x12]);
    assert_eq!(request.encode_to_vec(), bytes);
}

#[test]
fn the_mask_is_the_second_field() {
    let response = v1alpha1::ConfigureResponse { events: 7 };
    assert_eq!(response.encode_to_vec(), [0x10, 0x07]);
    let answer = ttrpc::Response { status: None, payload: response.encode_to_vec().into() };
    assert_eq!(answer.encode_to_vec(), [0x12, 0x02, 0x10, 0x07]);
}

#[test]
fn an_unimplemented_method_has_status_12() {
    let status = ttrpc::Status { code: 12, message: text("method Foo") };
    let answer = ttrpc::Response { status: Some(status), ..ttrpc::Response::default() };
    assert_eq!(answer.encode_to_vec(), b"\x0a\x0e\x08\x0c\x12\x0amethod Foo");
}

#[test]
fn a_pod_has_the_runtimes_field_numbers() {
    let pod = v1alpha1::PodSandbox {
        id: text("i"),
        name: text("n"),
        uid: text("u"),
        namespace: text("s"),
        labels: [(text("b"), text("2")), (text("a"), text("1"))].into(),
        linux: Some(v1alpha1::LinuxPodSandbox {
            namespaces: vec![v1alpha1::LinuxNamespace { r#type: text("network"), path: text("/p") }],
            ..v1alpha1::LinuxPodSandbox::default()
        }),
        ips: vec![text("x")],
        ..v1alpha1::PodSandbox::default()
    };
    let mut bytes =
        b"\x0a\x01i\x12\x01n\x1a\x01u\x22\x01s\x2a\x06\x0a\x01a\x12\x011\x2a\x06\x0a\x01b\x12\x012".to_vec();
    bytes.extend(b"\x42\x0f\x2a\x0d\x0a\x07network\x12\x02/p\x52\x01x");
    assert_eq!(pod.encode_to_vec(), bytes);
    assert_eq!(v1alpha1::PodSandbox::decode(&*bytes).unwrap(), pod);
}

/// An absent limit and a limit of 0 are different things.
#[test]
fn an_optional_number_of_zero_is_not_absent() {
    let limit = |value: Option<i64>| {
        let limit = value.map(|value| v1alpha1::OptionalInt64 { value });
        v1alpha1::LinuxMemory { limit, ..v1alpha1::LinuxMemory::default() }.encode_to_vec()
    };
    assert_eq!(limit(None), b"");
    assert_eq!(limit(Some(0)), b"\x0a\x00");
}
