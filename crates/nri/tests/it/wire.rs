//! The decoders, on messages in pieces of any size.

use drakkar_nri::wire::{Decoder, Demux, FrameTooLong, Kind, MAX_BODY, MAX_FRAME, Message, Received, TooLong, encode};
use drakkar_nri_api::ttrpc::Response;
use proptest::prelude::*;

use crate::runtime::{GoReader, frame};

/// Decodes a stream that arrives in pieces.
fn decode(bytes: &[u8], sizes: &[usize]) -> Result<Vec<(u32, Received)>, FrameTooLong> {
    let mut demux = Demux::default();
    let mut decoders = [Decoder::default(), Decoder::default()];
    let mut found = Vec::new();
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (mut piece, tail) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        rest = tail;
        while let Some((connection, mut payload)) = demux.next(&mut piece)? {
            let Some(decoder) = decoders.get_mut(connection.wrapping_sub(1) as usize) else { continue };
            while let Some(received) = decoder.next(&mut payload) {
                found.push((connection, received));
            }
        }
    }
    Ok(found)
}

fn response(length: usize) -> Response {
    Response { payload: vec![b'x'; length].into(), ..Response::default() }
}

proptest! {
    #[test]
    fn messages_arrive_whole_in_whatever_pieces_they_come(
        messages in prop::collection::vec((1u32..=2, any::<u32>(), 0usize..9000), 1..20),
        sizes in prop::collection::vec(1usize..5000, 1..10),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (connection, stream, length) in messages {
            bytes.extend(encode(connection, stream, Kind::Request, &response(length)).unwrap());
            let body = prost::Message::encode_to_vec(&response(length)).into();
            expected.push((connection, Received::Message(Message { stream, kind: Kind::Request, flags: 0, body })));
        }
        prop_assert_eq!(decode(&bytes, &sizes).unwrap(), expected);
    }

    /// A frame is no message: one can be in many, and many in one.
    #[test]
    fn frames_are_cut_anywhere(
        lengths in prop::collection::vec(0usize..3000, 1..6),
        cuts in prop::collection::vec(1usize..3000, 1..10),
    ) {
        let mut stream = Vec::new();
        for length in &lengths {
            stream.extend(u32::try_from(*length).unwrap().to_be_bytes());
            stream.extend([0, 0, 0, 9, 2, 0]);
            stream.extend(vec![7; *length]);
        }
        let mut bytes = Vec::new();
        let mut cuts = cuts.iter().cycle();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            bytes.extend(frame(2, piece));
            rest = tail;
        }
        let found = decode(&bytes, &[4096]).unwrap();
        let found: Vec<usize> = found.iter().map(|(_, received)| match received {
            Received::Message(message) => message.body.len(),
            Received::Oversized { .. } => usize::MAX,
        }).collect();
        prop_assert_eq!(found, lengths);
    }

    #[test]
    fn random_bytes_are_decoded_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..5000),
        sizes in prop::collection::vec(1usize..64, 1..5),
    ) {
        let whole = decode(&bytes, &[usize::MAX]);
        prop_assert_eq!(whole.is_ok(), decode(&bytes, &sizes).is_ok());
    }

    /// Go's side fails on a first frame of more than 4096 bytes, and on a frame that is longer than the rest of a body.
    #[test]
    fn a_go_peer_reads_every_size(lengths in prop::collection::vec(prop_oneof![0usize..20, 4000usize..4200, 0usize..100_000], 1..10)) {
        let mut reader = GoReader::default();
        let mut read = Vec::new();
        for (length, stream) in lengths.iter().zip(1..) {
            let bytes = encode(1, stream, Kind::Response, &response(*length)).unwrap();
            let mut demux = Demux::default();
            let mut rest = &bytes[..];
            while let Some((_, piece)) = demux.next(&mut rest).unwrap() {
                read.extend(reader.read(piece.to_vec()));
            }
        }
        let read: Vec<usize> = read.into_iter().map(|(_, _, body)| {
            let body: Response = prost::Message::decode(&*body).unwrap();
            body.payload.len()
        }).collect();
        prop_assert_eq!(read, lengths);
    }
}

#[test]
fn an_oversized_message_is_skipped_and_the_next_one_read() {
    let length = u32::try_from(MAX_BODY + 1).unwrap();
    let mut bytes = frame(1, &[&length.to_be_bytes()[..], &[0, 0, 0, 3, 1, 0]].concat());
    bytes.extend(frame(1, &vec![0; MAX_BODY]));
    bytes.extend(frame(1, &[0]));
    bytes.extend(encode(1, 5, Kind::Request, &response(3)).unwrap());
    let found = decode(&bytes, &[10_000]).unwrap();
    assert_eq!(found[0], (1, Received::Oversized { stream: 3, kind: Kind::Request, length }));
    assert!(matches!(&found[1].1, Received::Message(message) if message.stream == 5), "{:?}", found[1]);
}

#[test]
fn a_body_of_exactly_the_limit_is_a_message() {
    let mut bytes = frame(1, &[&u32::try_from(MAX_BODY).unwrap().to_be_bytes()[..], &[0, 0, 0, 3, 1, 0]].concat());
    bytes.extend(frame(1, &vec![0; MAX_BODY]));
    let found = decode(&bytes, &[65536]).unwrap();
    assert!(matches!(&found[0].1, Received::Message(message) if message.body.len() == MAX_BODY));
}

#[test]
fn what_is_too_long_is_neither_sent_nor_read() {
    assert_eq!(encode(1, 1, Kind::Response, &response(MAX_BODY)), Err(TooLong(MAX_BODY + 5)));
    let length = u32::try_from(MAX_FRAME + 1).unwrap();
    let header = [1u32.to_be_bytes(), length.to_be_bytes()].concat();
    assert_eq!(decode(&header, &[3]), Err(FrameTooLong(length)));
}
