//! Any bytes as a metadata file.
//!
//! Decoding, validating and printing errors never panic. Decoded metadata can be encoded, in every order of versions, and
//! decodes to the same value; encoded again it has the same bytes. The decoder without the older formats decodes released
//! formats to the same value.

#![no_main]

use drakkar_metadata::{Decoder, Metadata, FieldsV1, Format, Time, Version, Versions, decode, encode, validate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|stream: &[u8]| any_stream(stream));

fn any_stream(stream: &[u8]) {
    let all = match Decoder::new().decode_claims(stream) {
        Ok(all) => all,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(Decoder::released_only().decode(stream).is_err(), "only the decoder of fewer formats reads it");
            return;
        }
    };
    match decode(stream) {
        Ok(one) => {
            assert_eq!(all, std::slice::from_ref(&one));
            if let Format::Released(_) = one.format {
                assert_eq!(Decoder::released_only().decode(stream), Ok(one));
            }
        }
        Err(error) => assert_ne!(all.len(), 1, "decode_claims reads one claim, decode none: {error}"),
    }
    for decoded in all {
        if let Err(error) = validate(&decoded.metadata) {
            assert!(!error.to_string().is_empty());
        }
        round_trips(decoded.metadata);
    }
}

fn round_trips(read: Metadata) {
    let read = normalized(read);
    for order in [[Version::V1Beta1, Version::V1Alpha1], [Version::V1Alpha1, Version::V1Beta1]] {
        let versions = Versions::new(order).expect("two versions that differ");
        let file = encode(&read, &versions);
        let again = decode(&file).expect("encoded metadata decodes");
        assert_eq!(again.format, Format::Released(order[0]));
        assert_eq!(encode(&again.metadata, &versions), file);
        assert_eq!(normalized(again.metadata), read);
    }
}

/// Normalizes what encoding does not preserve, in Go as here: a zero time is encoded like none, and `fieldsV1` is indented
/// again.
fn normalized(mut metadata: Metadata) -> Metadata {
    let meta = &mut metadata.metadata;
    drop_zero(&mut meta.creation_timestamp);
    drop_zero(&mut meta.deletion_timestamp);
    for entry in &mut meta.managed_fields {
        drop_zero(&mut entry.time);
        if let Some(fields) = &mut entry.fields_v1 {
            *fields = FieldsV1::from_json(&compact(fields.as_json())).expect("JSON without its white space is JSON");
        }
    }
    metadata
}

fn drop_zero(time: &mut Option<Time>) {
    if time.is_some_and(|time| time.to_string() == "0001-01-01T00:00:00Z") {
        *time = None;
    }
}

/// Returns JSON without white space between its tokens, with Go's escapes.
fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        match character {
            ' ' | '\t' | '\r' | '\n' if !in_string => continue,
            '"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = in_string && character == '\\' && !escaped;
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => text.push(character),
        }
    }
    text
}
