//! Encoding: single values, character by character.

use drakkar_metadata::{
    Device, DeviceAttribute, FieldsV1, ManagedFieldsEntry, Metadata, NetworkDeviceData, ObjectMeta, Request, Time,
    Versions, decode, encode,
};
use rstest::rstest;

fn text_of(metadata: &Metadata) -> String {
    String::from_utf8(encode(metadata, &Versions::default())).unwrap()
}

fn with_device(device: Device) -> Metadata {
    Metadata { requests: vec![Request { name: "gpu".into(), devices: vec![device] }], ..Metadata::default() }
}

/// Returns the encoded attribute of a device.
fn written_attribute(attribute: DeviceAttribute) -> String {
    let text = text_of(&with_device(Device { attributes: [("a".into(), attribute)].into(), ..Device::default() }));
    let start = text.find("\"a\": ").unwrap() + "\"a\": ".len();
    let end = text.find("\n          }\n        }\n      ]").unwrap();
    text[start..end].split('\n').map(str::trim).collect()
}

fn written_meta(metadata: ObjectMeta) -> String {
    text_of(&Metadata { metadata, ..Metadata::default() })
}

#[rstest]
#[case::html("<a href='x'>&</a>", r"\u003ca href='x'\u003e\u0026\u003c/a\u003e")]
#[case::line_separators("a\u{2028}b\u{2029}c", r"a\u2028b\u2029c")]
#[case::neighbours_of_the_line_separators("\u{2027}\u{202a}\u{2030}", "\u{2027}\u{202a}\u{2030}")]
#[case::quotes(r#"say "hi" \ there"#, r#"say \"hi\" \\ there"#)]
#[case::short_escapes("\u{8}\u{c}\n\r\t", r"\b\f\n\r\t")]
#[case::control_characters("\0\u{1}\u{b}\u{1f}", r"\u0000\u0001\u000b\u001f")]
#[case::slash_and_del("a/b\u{7f}c", "a/b\u{7f}c")]
#[case::beyond_ascii("Ünï – 漢字 🛶", "Ünï – 漢字 🛶")]
#[case::c1_controls_and_replacement("\u{80}\u{85}\u{fffd}", "\u{80}\u{85}\u{fffd}")]
#[case::escapes_side_by_side("<>\u{2028}<\"", r#"\u003c\u003e\u2028\u003c\""#)]
fn text_is_escaped_as_go_escapes_it(#[case] text: &str, #[case] expected: &str) {
    let written = text_of(&Metadata { pod_claim_name: Some(text.into()), ..Metadata::default() });
    assert!(written.contains(&format!("\"podClaimName\": \"{expected}\"")), "{written}");
    assert_eq!(decode(written.as_bytes()).unwrap().metadata.pod_claim_name.as_deref(), Some(text));
}

#[test]
fn names_of_attributes_are_escaped_like_any_text() {
    let device = Device { attributes: [("a<\u{2028}\"".into(), 1.into())].into(), ..Device::default() };
    assert!(text_of(&with_device(device)).contains(r#""a\u003c\u2028\"": {"#));
}

#[rstest]
#[case(DeviceAttribute::from(false), "{\"bool\": false")]
#[case(DeviceAttribute::from(0), "{\"int\": 0")]
#[case(DeviceAttribute::from(""), "{\"string\": \"\"")]
#[case(DeviceAttribute::version(""), "{\"version\": \"\"")]
#[case(DeviceAttribute::from(i64::MIN), "{\"int\": -9223372036854775808")]
#[case(DeviceAttribute::from(i64::MAX), "{\"int\": 9223372036854775807")]
#[case(DeviceAttribute::from(vec![1, -2]), "{\"ints\": [1,-2]")]
#[case(DeviceAttribute::from(vec![true, false]), "{\"bools\": [true,false]")]
#[case(DeviceAttribute::from(vec!["", "b"]), "{\"strings\": [\"\",\"b\"]")]
#[case(DeviceAttribute::versions(["1.0.0"]), "{\"versions\": [\"1.0.0\"]")]
fn zero_values_are_written_and_lists_one_element_per_line(#[case] attribute: DeviceAttribute, #[case] expected: &str) {
    assert_eq!(written_attribute(attribute), format!("{expected}}}"));
}

#[rstest]
#[case(DeviceAttribute::default())]
#[case(DeviceAttribute::from(Vec::<i64>::new()))]
#[case(DeviceAttribute::from(Vec::<bool>::new()))]
#[case(DeviceAttribute::from(Vec::<String>::new()))]
#[case(DeviceAttribute::versions(Vec::<String>::new()))]
fn an_attribute_without_a_value_is_written_as_an_empty_object(#[case] attribute: DeviceAttribute) {
    let text = text_of(&with_device(Device { attributes: [("a".into(), attribute)].into(), ..Device::default() }));
    assert!(text.contains("\"attributes\": {\n            \"a\": {}\n          }"), "{text}");
}

#[test]
fn attributes_are_sorted_by_the_bytes_of_their_names() {
    let names = ["b", "a/z", "Z", "a", "é", "a.b/c", "0", "_"];
    let attributes = names.iter().map(|name| ((*name).to_owned(), DeviceAttribute::from(true))).collect();
    let text = text_of(&with_device(Device { attributes, ..Device::default() }));
    let mut sorted = names;
    sorted.sort_by_key(|name| name.as_bytes());
    let positions: Vec<_> = sorted.iter().map(|name| text.find(&format!("            \"{name}\": {{"))).collect();
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{text}");
}

#[test]
fn empty_network_data_is_an_empty_object_and_absent_network_data_is_absent() {
    let empty = Device { network_data: Some(NetworkDeviceData::default()), ..Device::default() };
    assert!(text_of(&with_device(empty)).contains("\n          \"networkData\": {}\n"));
    assert!(!text_of(&with_device(Device::default())).contains("networkData"));
}

#[test]
fn generation_zero_is_not_written_and_any_other_is() {
    assert!(!written_meta(ObjectMeta::default()).contains("generation"));
    assert!(written_meta(ObjectMeta { generation: -1, ..ObjectMeta::default() }).contains("\"generation\": -1"));
}

#[rstest]
#[case::fraction("2024-02-29T23:59:59.999999999Z", "2024-02-29T23:59:59Z")]
#[case::offset("2024-03-01T00:30:00+01:00", "2024-02-29T23:30:00Z")]
#[case::negative_offset("2023-12-31T20:00:00-05:00", "2024-01-01T01:00:00Z")]
#[case::before_the_epoch("1969-12-31T23:59:58.5Z", "1969-12-31T23:59:58Z")]
#[case::early_year("0033-04-03T15:00:00Z", "0033-04-03T15:00:00Z")]
fn times_are_written_in_utc_and_whole_seconds(#[case] read: &str, #[case] expected: &str) {
    let document = format!(
        r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1",
            "metadata":{{"creationTimestamp":"{read}","deletionTimestamp":"{read}","managedFields":[{{"time":"{read}"}}]}}}}"#
    );
    let decoded = decode(document.as_bytes()).unwrap().metadata;
    let text = text_of(&decoded);
    for name in ["creationTimestamp", "deletionTimestamp", "time"] {
        assert!(text.contains(&format!("\"{name}\": \"{expected}\"")), "{name}: {text}");
    }
    assert_eq!(decode(text.as_bytes()).unwrap().metadata, decoded);
}

#[rstest]
#[case("-000001-01-01T00:00:00Z")]
#[case("-009999-01-02T01:59:59Z")]
fn a_time_before_year_zero_is_refused_or_can_be_read_again(#[case] time: &str) {
    let document = format!(
        r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1",
            "metadata":{{"deletionTimestamp":"{time}"}}}}"#
    );
    if let Ok(decoded) = decode(document.as_bytes()) {
        let again = decode(text_of(&decoded.metadata).as_bytes());
        assert_eq!(again.expect("what was written can be read").metadata, decoded.metadata);
    }
}

#[rstest]
#[case("0001-01-01T00:00:00Z")]
#[case("0001-01-01T00:00:00.25Z")]
fn gos_zero_time_is_an_absent_creation_and_a_null_deletion(#[case] zero: &str) {
    let zero: Option<Time> = Some(zero.parse().unwrap());
    let metadata = ObjectMeta { creation_timestamp: zero, deletion_timestamp: zero, ..ObjectMeta::default() };
    let text = written_meta(metadata);
    assert!(text.contains("  \"metadata\": {\n    \"deletionTimestamp\": null\n  }\n"), "{text}");
    assert_eq!(decode(text.as_bytes()).unwrap().metadata.metadata, ObjectMeta::default());
}

#[rstest]
#[case::empty(r#" { } "#, "{}")]
#[case::empty_list("[\n]", "[]")]
#[case::nested_empties(
    r#"{"f:a":{},"b":[ ],"c":[{}]}"#,
    "{\n          \"f:a\": {},\n          \"b\": [],\n          \"c\": [\n            {}\n          ]\n        }"
)]
#[case::numbers_keep_their_text(
    "[1.0e5,0.10,1E+2,123456789012345678901234567890,-0]",
    "[\n          1.0e5,\n          0.10,\n          1E+2,\n          123456789012345678901234567890,\n          -0\n        ]"
)]
#[case::strings_keep_their_escapes(r#""a\/b\u0041\"[1, 2]""#, r#""a\/b\u0041\"[1, 2]""#)]
#[case::html_is_escaped(r#"{"<":"&>"}"#, "{\n          \"\\u003c\": \"\\u0026\\u003e\"\n        }")]
#[case::an_escaped_backslash_before_a_quote(r#"["\\","x"]"#, "[\n          \"\\\\\",\n          \"x\"\n        ]")]
#[case::order_and_repetition_are_kept(
    r#"{"b":1,"a":2,"b":3}"#,
    "{\n          \"b\": 1,\n          \"a\": 2,\n          \"b\": 3\n        }"
)]
#[case::scalar("  true ", "true")]
fn raw_json_is_indented_again_and_otherwise_unchanged(#[case] json: &str, #[case] expected: &str) {
    let entry =
        ManagedFieldsEntry { fields_v1: Some(FieldsV1::from_json(json).unwrap()), ..ManagedFieldsEntry::default() };
    let text = written_meta(ObjectMeta { managed_fields: vec![entry], ..ObjectMeta::default() });
    let whole = format!("    \"managedFields\": [\n      {{\n        \"fieldsV1\": {expected}\n      }}\n    ]\n");
    assert!(text.contains(&whole), "{text}");
    let again = decode(text.as_bytes()).unwrap().metadata;
    assert_eq!(text_of(&again), text);
}

#[test]
fn fields_after_raw_json_are_indented_as_usual() {
    let entry = ManagedFieldsEntry {
        fields_v1: Some(FieldsV1::from_json(r#"{"a":[1]}"#).unwrap()),
        subresource: "status".into(),
        ..ManagedFieldsEntry::default()
    };
    let text = written_meta(ObjectMeta { managed_fields: vec![entry.clone(), entry], ..ObjectMeta::default() });
    let one = r#"      {
        "fieldsV1": {
          "a": [
            1
          ]
        },
        "subresource": "status"
      }"#;
    assert!(text.contains(&format!("\"managedFields\": [\n{one},\n{one}\n    ]\n  }}\n}}\n")), "{text}");
}

#[test]
fn text_that_is_not_json_is_not_a_field_set() {
    assert!(FieldsV1::from_json("{").is_err());
    assert!(FieldsV1::from_json("").is_err());
    assert!(FieldsV1::from_json("{} {}").is_err());
}
