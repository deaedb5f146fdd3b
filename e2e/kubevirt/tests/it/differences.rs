//! docs/kubevirt-differences.md: where the default behaviour differs from KubeVirt. The table has exactly the cases whose
//! answer differs, and the tests that it names exist.

use std::collections::BTreeSet;
use std::fs;

use drakkar_kubevirt::Behaviour;

use crate::goldens;
use crate::suites::metadata::PATTERNS;
use crate::suites::{SUITES, UNLIKE, admission, devices};
use crate::support::repository;

fn document() -> String {
    fs::read_to_string(repository("docs/kubevirt-differences.md")).unwrap()
}

/// The parts of a text between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The last cells of the table's rows.
fn shown_by(document: &str) -> Vec<&str> {
    let rows = document.lines().filter(|line| line.starts_with("| K"));
    rows.map(|row| row.trim_matches('|').rsplit('|').next().unwrap().trim()).collect()
}

/// Cases are named `SUITE/ID`, after the files with the recorded answers.
fn listed_cases(document: &str) -> BTreeSet<String> {
    let names: BTreeSet<&str> = SUITES.iter().chain(UNLIKE).map(|suite| suite.name).collect();
    let is_case =
        |text: &&str| text.split_once('/').is_some_and(|(suite, id)| names.contains(suite) && !id.contains('/'));
    shown_by(document).into_iter().flat_map(quoted).filter(is_case).map(str::to_owned).collect()
}

#[test]
fn the_table_has_exactly_the_cases_that_the_default_answers_differently() {
    let mut differing = BTreeSet::new();
    // The suite of domains has all cases of this one.
    for suite in SUITES.iter().filter(|suite| suite.name != devices::DRA.name) {
        let recorded = goldens::read(suite);
        for (id, input) in (suite.cases)() {
            if suite.answer(&input, Behaviour::Extended) != (suite.theirs)(&recorded[&id]) {
                differing.insert(format!("{}/{id}", suite.name));
            }
        }
    }
    for suite in UNLIKE {
        differing.extend((suite.cases)().into_iter().map(|(id, _)| format!("{}/{id}", suite.name)));
    }
    assert_eq!(differing, listed_cases(&document()));
}

/// What KubeVirt takes for a pattern is an error here, in both behaviours.
#[test]
fn names_are_literal_in_both_behaviours() {
    let recorded = goldens::read(&PATTERNS);
    for (id, input) in (PATTERNS.cases)() {
        let theirs = (PATTERNS.theirs)(&recorded[&id]);
        assert_eq!(theirs["pci"], "0000:02:00.0", "{id}");
        for behaviour in [Behaviour::Strict, Behaviour::Extended] {
            assert_eq!(PATTERNS.answer(&input, behaviour)["pci"]["error"], true, "{id}");
        }
    }
}

#[test]
fn a_frame_buffer_without_default_ends_kubevirt_and_is_enabled_here() {
    let suite = devices::UNDEFAULTED;
    for (id, input) in (suite.cases)() {
        let panic = goldens::read(&suite)[&id]["panic"].as_str().unwrap().to_owned();
        assert!(panic.contains("nil pointer"), "{panic}");
        for behaviour in [Behaviour::Strict, Behaviour::Extended] {
            assert_eq!(suite.answer(&input, behaviour)["gpus"][0]["attributes"]["ramfb"], "on");
        }
    }
}

/// Tests are named `path/of/file.rs`: `name`; each such file has each such test.
#[test]
fn the_tests_that_the_table_names_exist() {
    let document = document();
    let rows = shown_by(&document);
    assert!(rows.len() >= 15, "too few rows: {}", rows.len());
    for row in rows {
        let mut source = String::new();
        let mut named = 0;
        for text in quoted(row) {
            if text.ends_with(".rs") {
                source = fs::read_to_string(repository(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
            } else if !text.contains('/') {
                assert!(source.contains(&format!("fn {text}(")), "no test {text}");
                named += 1;
            } else {
                named += 1;
            }
        }
        assert!(named > 0, "a row without a test or case: {row}");
    }
}

/// KubeVirt applies the rules about networks twice, and returns their causes twice.
#[test]
fn kubevirt_returns_causes_about_networks_twice() {
    let case = &goldens::read(&admission::LIVE)["A38"];
    let causes = case["answer"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 2);
    assert_eq!(causes[0], causes[1]);
    let cases = (admission::LIVE.cases)();
    let (_, input) = cases.iter().find(|(id, _)| id == "A38").unwrap();
    assert_eq!(admission::LIVE.answer(input, Behaviour::Extended).as_array().unwrap().len(), 1);
}
