//! Our quantities are parsed, formatted, compared and added like those of Kubernetes' Go package.

use drakkar_client::{Format, Quantity};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{generated, program};

/// The number of random pairs of texts.
const PAIRS: usize = 5_000;

/// Edge cases of the syntax and of the range, valid and invalid.
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

/// Texts that look like quantities. Most of them are valid.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[-+]?[0-9]{1,4}(\\.[0-9]{1,3})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?",
        2 => "[-+]?0{0,2}[0-9]{0,22}(\\.[0-9]{0,14})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?",
        1 => "[-+.0-9eEinumkKMGTP]{0,8}",
    ]
}

/// Whether Go formats a quantity wrongly: it drops the exponent of decimal quantities that are too large for a suffix, so
/// that it prints another number.
fn is_misprinted_by_go(quantity: &Quantity) -> bool {
    quantity.format() != Format::DecimalExponent && quantity.to_string().contains('e')
}

#[test]
fn quantities_behave_like_those_of_go() {
    let Some(program) = program() else { return };
    let mut pairs: Vec<(String, String)> = generated(&(texts(), texts()), PAIRS);
    pairs.extend(EDGES.iter().flat_map(|one| EDGES.iter().map(|other| ((*one).to_owned(), (*other).to_owned()))));
    let questions: Vec<Value> = pairs.iter().map(|(one, other)| json!({"one": one, "other": other})).collect();
    let answers = program.ask(&["quantity"], &questions).unwrap();
    assert_eq!(answers.len(), pairs.len());
    let mut valid = 0;
    let mut wrong = Vec::new();
    for ((one, other), answer) in pairs.iter().zip(answers) {
        let (ours, is_misprinted) = ours(one, other);
        valid += usize::from(ours["sum"] != "");
        let is_same = if is_misprinted {
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

/// The verdict of our type about a pair, in the form of the Go program, and whether Go misprints one of its quantities.
fn ours(one: &str, other: &str) -> (Value, bool) {
    let parsed = [one, other].map(str::parse::<Quantity>);
    let errors = parsed.each_ref().map(|parsed| parsed.as_ref().err().map_or(String::new(), ToString::to_string));
    let texts = parsed.each_ref().map(|parsed| parsed.as_ref().map_or(String::new(), ToString::to_string));
    let is_misprinted = parsed.iter().flatten().any(is_misprinted_by_go);
    let [Ok(one), Ok(other)] = parsed else {
        return (json!({"errors": errors, "texts": texts, "order": 0, "sum": "", "difference": ""}), is_misprinted);
    };
    let sum = &one + &other;
    let difference = &one - &other;
    let is_misprinted = is_misprinted || is_misprinted_by_go(&sum) || is_misprinted_by_go(&difference);
    let value = json!({
        "errors": errors,
        "texts": texts,
        "order": one.cmp(&other) as i8,
        "sum": sum.to_string(),
        "difference": difference.to_string(),
    });
    (value, is_misprinted)
}
