//! Any bytes as the frames of a connection.
//!
//! No panic. What is found does not depend on the pieces in which the bytes arrive: the payloads of each logical connection are
//! the same bytes, and an error is the same error.

#![no_main]

use std::collections::BTreeMap;

use drakkar_nri::wire::{Demux, FrameTooLong, MAX_FRAME};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| any_bytes(bytes));

fn any_bytes(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else { return };
    let whole = payloads(stream, stream.len().max(1));
    assert_eq!(whole, payloads(stream, usize::from(*size).max(1)));
    assert_eq!(whole, payloads(stream, 1));
    match whole {
        Ok(payloads) => assert!(payloads.values().map(Vec::len).sum::<usize>() <= stream.len()),
        Err(FrameTooLong(length)) => assert!(length as usize > MAX_FRAME),
    }
}

fn payloads(stream: &[u8], size: usize) -> Result<BTreeMap<u32, Vec<u8>>, FrameTooLong> {
    let mut demux = Demux::default();
    let mut payloads = BTreeMap::<u32, Vec<u8>>::new();
    for mut piece in stream.chunks(size) {
        while let Some((connection, payload)) = demux.next(&mut piece)? {
            assert!(!payload.is_empty());
            payloads.entry(connection).or_default().extend(payload);
        }
        assert!(piece.is_empty());
    }
    Ok(payloads)
}
