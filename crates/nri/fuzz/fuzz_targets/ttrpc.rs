//! Any bytes as the messages of a logical connection.
//!
//! No panic. What is found does not depend on the pieces in which the bytes arrive. A body that is a request or a response can
//! be encoded, and decodes to the same value.

#![no_main]

use drakkar_nri::api::{CreateContainerRequest, StateChangeEvent, SynchronizeRequest};
use drakkar_nri::wire::{Decoder, Demux, Kind, MAX_BODY, Received, encode};
use drakkar_nri_api::ttrpc::{Request, Response};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| any_bytes(bytes));

fn any_bytes(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else { return };
    let messages = decode(stream, stream.len().max(1));
    assert_eq!(messages, decode(stream, usize::from(*size).max(1)));
    for received in messages {
        let Received::Message(message) = received else { continue };
        assert!(message.body.len() <= MAX_BODY);
        if let Ok(request) = Request::decode(message.body.clone()) {
            round_trips(message.stream, &request);
            let _ = StateChangeEvent::decode(request.payload.clone());
            let _ = CreateContainerRequest::decode(request.payload.clone());
            let _ = SynchronizeRequest::decode(request.payload);
        }
        if let Ok(response) = Response::decode(message.body) {
            round_trips(message.stream, &response);
        }
    }
}

fn decode(stream: &[u8], size: usize) -> Vec<Received> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    for mut piece in stream.chunks(size) {
        while let Some(received) = decoder.next(&mut piece) {
            found.push(received);
        }
        assert!(piece.is_empty());
    }
    found
}

fn round_trips<M: Message + Default + PartialEq>(stream: u32, message: &M) {
    let bytes = encode(1, stream, Kind::Request, message).expect("what was decoded is not too long");
    let (mut demux, mut decoder) = (Demux::default(), Decoder::default());
    let mut rest = &bytes[..];
    let mut found = None;
    while let Some((_, mut piece)) = demux.next(&mut rest).expect("its frames are short") {
        if let Some(received) = decoder.next(&mut piece) {
            found = Some(received);
        }
    }
    let Some(Received::Message(again)) = found else { panic!("it does not decode") };
    assert_eq!(again.stream, stream);
    assert!(M::decode(again.body).expect("it decodes") == *message);
}
