//! Malformed and unusual files: both libraries reject them or read them alike. Where they differ it is intended, and the table
//! in the README gives the reason.

use drakkar_metadata::{Decoder, MAX_DEPTH, MAX_VALUES, encode};
use proptest::prelude::*;
use serde_json::Value;

use crate::generate::any_metadata;
use crate::support::{about_file, generated, object, program, versions};

/// Which of the two libraries read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    Both,
    Nobody,
    /// Only Go: ours is stricter.
    Go,
    /// Only ours.
    We,
    /// Both, but ours finds more in it than Go's.
    BothAndWeMore,
}

use Readers::{Both, BothAndWeMore, Go, Nobody, We};

const VALID: &str =
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","requests":[{"name":"r"}]}"#;
const UNKNOWN: &str = r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v9","requests":7}"#;

/// A v1beta1 document with these members.
fn beta(members: &str) -> String {
    let comma = if members.is_empty() { "" } else { "," };
    format!(r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1"{comma}{members}}}"#)
}

fn device(members: &str) -> String {
    beta(&format!(r#""requests":[{{"name":"r","devices":[{{{members}}}]}}]"#))
}

fn attribute(value: &str) -> String {
    device(&format!(r#""attributes":{{"a":{value}}}"#))
}

fn created(time: &str) -> String {
    beta(&format!(r#""metadata":{{"creationTimestamp":"{time}"}}"#))
}

fn table() -> Vec<(&'static str, Vec<u8>, Readers)> {
    let text = |name, text: &str, readers| (name, text.as_bytes().to_vec(), readers);
    let nested = |depth: usize| beta(&format!(r#""x":{}{}"#, "[".repeat(depth), "]".repeat(depth)));
    let values = |count: usize| beta(&format!(r#""x":[{}]"#, vec!["{}"; count].join(",")));
    let mut not_unicode = beta(r#""podClaimName":"X""#).into_bytes();
    let position = not_unicode.iter().rposition(|byte| *byte == b'X').unwrap();
    not_unicode[position] = 0xff;
    vec![
        // Empty, or not JSON.
        text("an empty file", "", Nobody),
        text("white space", " \n\t\r\n", Nobody),
        text("no JSON", "garbage", Nobody),
        text("YAML", "kind: DeviceMetadata\napiVersion: metadata.resource.k8s.io/v1beta1\n", Nobody),
        text("a byte order mark", &format!("\u{feff}{VALID}"), Nobody),
        text("another white space", &format!("\u{a0}{VALID}"), Nobody),
        text("a comment", &format!("// x\n{VALID}"), Nobody),
        text("cut in a name", r#"{"ki"#, Nobody),
        text("cut before the end", VALID.strip_suffix('}').unwrap(), Nobody),
        text("a comma too many", &beta(r#""requests":[],"#), Nobody),
        text("a comma too few", &beta(r#""requests":[] "x":1"#), Nobody),
        text("single quotes", &VALID.replace('"', "'"), Nobody),
        text("a control character in a text", &beta("\"podClaimName\":\"a\nb\""), Nobody),
        text("an escape that there is not", &beta(r#""podClaimName":"\x41""#), Nobody),
        text("a stray bracket", "]", Nobody),
        text("a stray bracket behind an unknown version", &format!("{UNKNOWN}}}{VALID}"), Nobody),
        // JSON of another kind.
        text("null", "null", Nobody),
        text("a list", "[]", Nobody),
        text("a list of documents", &format!("[{VALID}]"), Nobody),
        text("a number", "1", Nobody),
        text("a text", "\"x\"", Nobody),
        text("an empty object", "{}", Nobody),
        text("no kind", r#"{"apiVersion":"metadata.resource.k8s.io/v1beta1"}"#, Nobody),
        text("no kind, null", r#"{"kind":null,"apiVersion":"metadata.resource.k8s.io/v1beta1"}"#, Nobody),
        text(
            "no kind of an unknown version",
            &format!(r#"{{"apiVersion":"metadata.resource.k8s.io/v9"}}{VALID}"#),
            Nobody,
        ),
        text("no version", &format!(r#"{{"kind":"DeviceMetadata"}}{VALID}"#), Nobody),
        text("a version of three parts", r#"{"kind":"DeviceMetadata","apiVersion":"a/b/c"}"#, Nobody),
        text("a version that is a number", r#"{"kind":"DeviceMetadata","apiVersion":1}"#, Nobody),
        text("a field's name in another case", &beta(r#""PodClaimName":7"#), Both),
        text("another kind", &VALID.replace("DeviceMetadata", "Pod"), Nobody),
        text("an unknown version", UNKNOWN, Nobody),
        // Streams.
        text("a valid document", VALID, Both),
        text("an unknown version first", &format!("{UNKNOWN}{VALID}"), Both),
        text(
            "another kind of an unknown version first",
            &format!("{{\"kind\":\"Pod\",\"apiVersion\":\"v2\"}}\n{VALID}"),
            Both,
        ),
        text("garbage behind", &format!("{VALID}garbage"), Both),
        text("an unfinished document behind", &format!("{VALID}{{\"kind\":"), Both),
        text("a broken document behind", &format!("{VALID}{}", beta(r#""requests":7"#)), Both),
        text("a broken document first", &format!("{}{VALID}", beta(r#""requests":7"#)), Nobody),
        text("no JSON behind an unknown version", &format!("{UNKNOWN}x{VALID}"), Nobody),
        // Values of the wrong type.
        text("requests that are no list", &beta(r#""requests":{}"#), Nobody),
        text("a request that is no object", &beta(r#""requests":["gpu"]"#), Nobody),
        text("a name that is a number", &beta(r#""requests":[{"name":1}]"#), Nobody),
        text("object metadata that is a list", &beta(r#""metadata":[]"#), Nobody),
        text("attributes that are a list", &device(r#""attributes":[]"#), Nobody),
        text("an int that is a text", &attribute(r#"{"int":"1"}"#), Nobody),
        text("an int with a fraction", &attribute(r#"{"int":1.5}"#), Nobody),
        text("an int with a fraction of zero", &attribute(r#"{"int":1.0}"#), Nobody),
        text("an int with an exponent", &attribute(r#"{"int":1e3}"#), Nobody),
        text("an int beyond 64 bits", &attribute(r#"{"int":9223372036854775808}"#), Nobody),
        text("an int below 64 bits", &attribute(r#"{"int":-9223372036854775809}"#), Nobody),
        text("an int with a leading zero", &attribute(r#"{"int":01}"#), Nobody),
        text("an int with a plus", &attribute(r#"{"int":+1}"#), Nobody),
        text("no number", &attribute(r#"{"int":NaN}"#), Nobody),
        text("a bool that is a text", &attribute(r#"{"bool":"true"}"#), Nobody),
        text("a bool that is a number", &attribute(r#"{"bool":1}"#), Nobody),
        text("a list with an element of another kind", &attribute(r#"{"ints":[1,"2"]}"#), Nobody),
        text("a text that is a list", &attribute(r#"{"string":["x"]}"#), Nobody),
        text("network data that is a text", &device(r#""networkData":"eth0""#), Nobody),
        // Unusual but valid values.
        text("nothing but its type", &beta(""), Both),
        text("unknown fields", &device(r#""x":[{"y":1.5e300}],"Driver":"upper""#), Both),
        text("null everywhere", &beta(r#""metadata":null,"podClaimName":null,"requests":null"#), Both),
        text(
            "null in lists and maps",
            &beta(r#""requests":[null,{"devices":[null,{"attributes":{"a":null}}]}]"#),
            Both,
        ),
        text("null as a value", &attribute(r#"{"int":null,"bools":[null],"strings":[null,"x"]}"#), Both),
        text("the largest numbers", &attribute(r#"{"ints":[9223372036854775807,-9223372036854775808]}"#), Both),
        text(
            "all kinds of values at once",
            &attribute(r#"{"int":1,"bool":false,"string":"","version":"x","ints":[1]}"#),
            Both,
        ),
        text("escapes", &beta(r#""podClaimName":"\u0041\/\ud83d\udef6\u0000""#), Both),
        text("an escaped name", &beta(r#""pod\u0043laimName":"x""#), Both),
        text("an empty name", &device(r#""attributes":{"":{}}"#), Both),
        text(
            "network data",
            &device(r#""networkData":{"interfaceName":"eth0","ips":["x"],"hardwareAddress":"y"}"#),
            Both,
        ),
        // Times.
        text("a time", &created("2026-02-28T23:59:59Z"), Both),
        text("a time of another zone", &created("2026-01-01T00:00:00+02:00"), Both),
        text("a time with a fraction", &created("2026-01-01T00:00:00.123456789Z"), Both),
        text("the zero time", &created("0001-01-01T00:00:00Z"), Both),
        text("no day", &created("2026-02-30T00:00:00Z"), Nobody),
        text("a leap second", &created("2026-06-30T23:59:60Z"), Nobody),
        text("a time with a blank", &created("2026-01-01 00:00:00Z"), Nobody),
        text("a time without a zone", &created("2026-01-01T00:00:00"), Nobody),
        text("a time that is empty", &created(""), Nobody),
        text("a time with an hour of one digit", &created("2026-01-01T1:00:00Z"), Go),
        text("a time with an offset of 60 minutes", &created("2026-01-01T00:00:00+01:60"), Go),
        // Where we are stricter.
        text(
            "the type's names in another case",
            &VALID.replace("kind", "Kind").replace("apiVersion", "APIVersion"),
            Go,
        ),
        text("the internal version of Go's library", &VALID.replace("v1alpha1", "__internal"), Go),
        text("a field twice", &beta(r#""podClaimName":"a","podClaimName":"b""#), Go),
        text("a type twice", &beta(r#""kind":"DeviceMetadata""#), Go),
        text("an attribute's value twice", &attribute(r#"{"int":1,"int":2}"#), Go),
        text("an attribute twice", &device(r#""attributes":{"a":{"int":1},"a":{"int":2}}"#), Go),
        text("half of a surrogate pair", &beta(r#""podClaimName":"\ud800""#), Go),
        ("text that is not Unicode", not_unicode, Go),
        text("minus zero", &attribute(r#"{"int":-0}"#), Go),
        text("nested as deep as may be", &nested(MAX_DEPTH - 1), Both),
        text("nested deeper", &nested(MAX_DEPTH), Go),
        text("many values", &values(1000), Both),
        text("too many values", &values(MAX_VALUES), Go),
        // Where we read more.
        text("an object of v1 first", &format!("{{\"kind\":\"Pod\",\"apiVersion\":\"v1\"}}\n{VALID}"), We),
        text(
            "network data in the words of the KEP",
            &device(r#""networkData":{"addresses":["x"],"hwAddress":"y"}"#),
            BothAndWeMore,
        ),
        text(
            "the format of VEP 10",
            r#"{"kind":"DeviceMetadata","apiVersion":"resource.k8s.io/v1alpha1","requests":[{"name":"r"}]}"#,
            We,
        ),
        text(
            "the KEP's early draft",
            r#"{"claims":[{"claimName":"c","requests":[{"requestName":"r","attributes":{}}]}]}"#,
            We,
        ),
    ]
}

/// The names of the files that the two libraries read differently.
pub fn read_differently() -> Vec<&'static str> {
    table().into_iter().filter(|(_, _, readers)| !matches!(readers, Both | Nobody)).map(|(name, ..)| name).collect()
}

#[test]
fn both_libraries_read_and_reject_the_same_files_except_for_those_listed() {
    let Some(program) = program() else { return };
    let table = table();
    let questions: Vec<Value> = table.iter().map(|(_, file, _)| about_file(file, "v1beta1")).collect();
    let answers = program.ask(&["decode"], &questions).unwrap();
    assert_eq!(answers.len(), table.len());
    let mut wrong = Vec::new();
    for ((name, file, expected), answer) in table.iter().zip(answers) {
        let ours = Decoder::new().decode(file);
        let found = match (&ours, answer["error"].is_null()) {
            (Ok(ours), true) if object(&ours.metadata) == answer["object"] => Both,
            (Ok(_), true) => BothAndWeMore,
            (Ok(_), false) => We,
            (Err(_), true) => Go,
            (Err(_), false) => Nobody,
        };
        if found != *expected {
            wrong.push(format!("{name}: expected {expected:?}, found {found:?}\n  ours: {ours:?}\n  Go: {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Without the older formats only one kind of file is read by ours only: one with a foreign object of `v1` first.
#[test]
fn the_older_formats_can_be_disabled() {
    for (name, file, _) in
        table().iter().filter(|(name, _, readers)| *readers == We && *name != "an object of v1 first")
    {
        assert!(Decoder::released_only().decode(file).is_err(), "{name}");
    }
}

/// Both errors name the unknown versions, in the order of the file.
#[test]
fn unknown_versions_are_named_alike() {
    let Some(program) = program() else { return };
    let stream = format!("{UNKNOWN}{}", r#"{"kind":"X","apiVersion":"example.com/v2"}"#);
    let answers = program.ask(&["decode"], &[about_file(stream.as_bytes(), "v1beta1")]).unwrap();
    let ours = drakkar_metadata::decode(stream.as_bytes()).unwrap_err().to_string();
    for message in [answers[0]["error"].as_str().unwrap(), &ours] {
        assert!(message.contains("metadata.resource.k8s.io/v9, example.com/v2"), "{message}");
    }
}

/// Files with random changes. Go reads alike what we read; where only Go reads a file, it is for one of the reasons in the
/// table.
#[test]
fn randomly_changed_files_are_read_alike() {
    const REASONS: [&str; 4] = ["duplicate field", "unicode", "surrogate", "RFC 3339"];
    let Some(program) = program() else { return };
    let change = (any::<proptest::sample::Index>(), any::<u8>(), 0_u8..4);
    let strategy = (any_metadata(), proptest::collection::vec(change, 1..3));
    let mut files: Vec<Vec<u8>> = Vec::new();
    for (mut metadata, changes) in generated(&strategy, 3000) {
        // Raw JSON that is kept verbatim: a change could make it half a surrogate pair, which an answer cannot contain.
        metadata.metadata.managed_fields.clear();
        let mut file = encode(&metadata, &versions("v1beta1,v1alpha1"));
        for (position, byte, change) in changes {
            // Mostly in the first document, since a reader ignores what follows a document that it can read.
            let position = position.index(file.len() / 2);
            match change {
                0 => file[position] = byte,
                1 => file[position] = b"{}[],:\"0-n\\"[usize::from(byte) % 11],
                2 => file.insert(position, byte),
                _ => drop(file.remove(position)),
            }
        }
        files.push(file);
    }
    let questions: Vec<Value> = files.iter().map(|file| about_file(file, "v1beta1")).collect();
    let answers = program.ask(&["decode"], &questions).unwrap();
    let mut read = 0;
    let mut rejected = 0;
    for (file, answer) in files.iter().zip(answers) {
        let ours = Decoder::released_only().decode(file);
        let text = String::from_utf8_lossy(file);
        match (ours, answer["error"].is_null()) {
            (Ok(ours), true) => {
                assert_eq!(object(&ours.metadata), answer["object"], "{text}");
                read += 1;
            }
            (Err(_), false) => rejected += 1,
            (Ok(_), false) => panic!("only ours reads this, Go's error is {}:\n{text}", answer["error"]),
            (Err(error), true) => {
                let error = error.to_string();
                assert!(
                    REASONS.iter().any(|reason| error.contains(reason)),
                    "only Go reads this, our error is {error}:\n{text}"
                );
            }
        }
    }
    assert!(read > 500 && rejected > 1000, "too few cases: {read} read, {rejected} rejected");
}
