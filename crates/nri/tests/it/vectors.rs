//! Bytes that were written down from the protocol and not from this implementation.

use drakkar_nri::wire::{Kind, PLUGIN_CONNECTION, RUNTIME_CONNECTION, encode};
use drakkar_nri::{Events, api};
use drakkar_nri_api::ttrpc::{Request, Response, Status};
use drakkar_nri_api::{PLUGIN_SERVICE, RUNTIME_SERVICE};
use prost::Message as _;

use crate::plugin::start_with;
use crate::runtime::{Runtime, configure};

/// Bytes in hexadecimal digits, with spaces and line breaks.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|character| character.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

#[test]
fn a_registration_is_a_header_frame_and_a_body_frame() {
    let register = api::RegisterPluginRequest {
        plugin_name: "demo".to_owned(),
        plugin_idx: "10".to_owned(),
        nri_version: String::new(),
    };
    let request = Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: register.encode_to_vec().into(),
        timeout_nano: 5_000_000_000,
        metadata: Vec::new(),
    };
    let expected = hex("
        00000002 0000000a 00000040 00000001 01 00
        00000002 00000040
          0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65
          120e5265676973746572506c7567696e
          1a0a0a0464656d6f12023130
          2080e497d012");
    assert_eq!(encode(RUNTIME_CONNECTION, 1, Kind::Request, &request).unwrap(), expected);
}

#[test]
fn an_empty_success_is_a_header_alone() {
    let bytes = encode(RUNTIME_CONNECTION, 1, Kind::Response, &Response::default()).unwrap();
    assert_eq!(bytes, hex("00000002 0000000a 00000000 00000001 02 00"));
}

#[test]
fn an_unimplemented_method_has_its_status_in_the_first_field() {
    let status = Some(Status { code: 12, message: "method Foo".to_owned() });
    let bytes = encode(PLUGIN_CONNECTION, 3, Kind::Response, &Response { status, ..Response::default() }).unwrap();
    assert_eq!(bytes[26..], hex("0a0e 080c 120a 6d6574686f6420466f6f"));
}

#[tokio::test]
async fn the_client_answers_configure_with_the_bytes_of_the_mask() {
    let runtime = Runtime::new();
    let (_handle, _recorder, _log) = start_with(&runtime, Events::POD_LIFECYCLE);
    let mut peer = runtime.accept().await;
    peer.register().await;
    peer.send(PLUGIN_SERVICE, "Configure", &configure(), 0).await;
    assert_eq!(peer.frame().await, Some((1, hex("00000004 00000001 02 00"))));
    assert_eq!(peer.frame().await, Some((1, hex("12021007"))));
    peer.send(PLUGIN_SERVICE, "Foo", &(), 0).await;
    assert_eq!(peer.frame().await, Some((1, hex("00000010 00000003 02 00"))));
    assert_eq!(peer.frame().await, Some((1, hex("0a0e 080c 120a 6d6574686f6420466f6f"))));
}
