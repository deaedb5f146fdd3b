//! Bodies that client-go 0.37.2 has written, beside its JSON of the same objects.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{MAGIC, to_json};

fn bodies() -> Vec<(String, Vec<u8>, Value)> {
    let table: Vec<Value> = serde_json::from_str(include_str!("tests/go_1_37_2.json")).unwrap();
    let decode = |text: &Value| base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
    table
        .into_iter()
        .map(|row| (row["name"].as_str().unwrap().to_owned(), decode(&row["protobuf"]), row["json"].clone()))
        .collect()
}

#[test]
fn bodies_are_what_go_says_in_json() {
    for (name, body, expected) in bodies() {
        let found: Value = serde_json::from_slice(&to_json(&body).unwrap()).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_body_that_is_cut_off_is_refused_and_never_a_panic() {
    let (_, body, _) = bodies().remove(0);
    let refused = (0..body.len()).filter(|length| to_json(&body[..*length]).is_err()).count();
    // A cut between two fields of the outermost message leaves a message.
    assert!(refused > body.len() - 10, "{refused} of {}", body.len());
    for place in 0..body.len() {
        let mut changed = body.clone();
        changed[place] ^= 0xff;
        let _ = to_json(&changed);
    }
}

#[test]
fn other_objects_are_refused_as_a_media_type() {
    let of = |kind: &str| {
        let mut of_type = b"\x0a\x02v1\x12".to_vec();
        of_type.push(u8::try_from(kind.len()).unwrap());
        of_type.extend(kind.as_bytes());
        let mut body = [MAGIC, b"\x0a"].concat();
        body.push(u8::try_from(of_type.len()).unwrap());
        body.extend(of_type);
        body
    };
    assert_eq!(to_json(&of("Pod")).unwrap_err().code, 415);
    assert_eq!(to_json(b"{}").unwrap_err().code, 400);
    let options: Value = serde_json::from_slice(&to_json(&of("DeleteOptions")).unwrap()).unwrap();
    assert_eq!(options, json!({"apiVersion": "v1", "kind": "DeleteOptions"}));
}
