//! Quantities as Kubernetes' Go package reads, writes, compares and adds them, and as ours does.

use drakkar_client::{Format, Quantity};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{generated, program};

/// How many random pairs of texts are compared.
const PAIRS: usize = 5_000;

/// Texts that are read in a way of their own, or not at all.
const EDGES: [&str; 64] = [
    "",
    "0",
    "00",
    "-0",
    "+0",
    "-",
    "+",
    ".",
    "-.",
    "Ki",
    "Ti",
    "Pi",
    "Ei",
    "E",
    "e",
    "e3",
    ".e-10",
    "0e-10",
    "1.",
    ".5",
    "-.5",
    "+1",
    "--1",
    "1 ",
    " 1",
    "1Kii",
    "1K",
    "1i",
    "1mm",
    "1gi",
    "1GB",
    "1e",
    "1e+",
    "1e+3",
    "1E3",
    "1E-3",
    "1e3e3",
    "1.2.3",
    "0x10",
    "٣",
    "1e4294967296",
    "1e9223372036854775808",
    "100E",
    "200E",
    "999E",
    "8Ei",
    "7Ei",
    "15Ei",
    "-15Ei",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "123456789012345678",
    "1234567890123456789",
    "100000000000000000000000000000000000001",
    "0.1Ki",
    "0.0001Ki",
    "1.5Gi",
    "1023",
    "1024Ki",
    "8Ki",
    "0.0000000001",
    "-0.0000000011",
    "1e-30",
];

/// Texts that look like quantities, most of which are.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[-+]?[0-9]{1,4}(\\.[0-9]{1,3})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?",
        2 => "[-+]?0{0,2}[0-9]{0,22}(\\.[0-9]{0,14})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?",
        1 => "[-+.0-9eEinumkKMGTP]{0,8}",
    ]
}

/// Go drops the suffix of decimal quantities that are too large for one: what it writes is another number.
fn is_lost_by_go(quantity: &Quantity) -> bool {
    quantity.format() != Format::DecimalExponent && quantity.to_string().contains('e')
}

#[test]
fn quantities_are_those_of_go() {
    let Some(program) = program() else { return };
    let mut pairs: Vec<(String, String)> = generated(&(texts(), texts()), PAIRS);
    pairs.extend(EDGES.iter().flat_map(|one| EDGES.iter().map(|other| ((*one).to_owned(), (*other).to_owned()))));
    let questions: Vec<Value> = pairs.iter().map(|(one, other)| json!({"one": one, "other": other})).collect();
    let answers = program.ask(&["quantity"], &questions).unwrap();
    assert_eq!(answers.len(), pairs.len());
    let mut valid = 0;
    let mut wrong = Vec::new();
    for ((one, other), answer) in pairs.iter().zip(answers) {
        let (ours, is_lost) = ours(one, other);
        valid += usize::from(ours["sum"] != "");
        let is_same = if is_lost {
            ours["errors"] == answer["errors"] && ours["order"] == answer["order"]
        } else {
            ours == answer
        };
        if !is_same {
            wrong.push(format!("{one:?} and {other:?}:\n  ours {ours}\n  Go   {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), pairs.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(valid > 4_000, "{valid} pairs of quantities");
}

/// What our type says of a pair, in Go's form, and whether Go cannot write all of it.
fn ours(one: &str, other: &str) -> (Value, bool) {
    let parsed = [one, other].map(str::parse::<Quantity>);
    let errors = parsed.each_ref().map(|parsed| parsed.as_ref().err().map_or(String::new(), ToString::to_string));
    let texts = parsed.each_ref().map(|parsed| parsed.as_ref().map_or(String::new(), ToString::to_string));
    let is_lost = parsed.iter().flatten().any(is_lost_by_go);
    let [Ok(one), Ok(other)] = parsed else {
        return (json!({"errors": errors, "texts": texts, "order": 0, "sum": "", "difference": ""}), is_lost);
    };
    let sum = &one + &other;
    let difference = &one - &other;
    let is_lost = is_lost || is_lost_by_go(&sum) || is_lost_by_go(&difference);
    let value = json!({
        "errors": errors,
        "texts": texts,
        "order": one.cmp(&other) as i8,
        "sum": sum.to_string(),
        "difference": difference.to_string(),
    });
    (value, is_lost)
}
