//! The tables in the README match the tests.

use std::collections::BTreeSet;
use std::path::Path;

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The parts of a text between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_test_of_a_gap_has_a_row_and_each_row_a_test() {
    let readme = text("README.md");
    let section = readme.split("## What the Go driver fails").nth(1).unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| G") || line.starts_with("| –"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let named: BTreeSet<String> = rows.iter().flat_map(|row| quoted(row[2])).map(str::to_owned).collect();
    let gaps = text("tests/it/gaps.rs");
    let tests: BTreeSet<String> =
        gaps.lines().filter_map(|line| line.strip_prefix("async fn ")?.split('(').next()).map(str::to_owned).collect();
    assert_eq!(named, tests);
    let known = text("../../docs/go-gaps.md");
    for gap in rows.iter().flat_map(|row| row[0].split(", ")).filter(|gap| *gap != "–") {
        assert!(known.contains(&format!("\n| {gap} |")), "docs/go-gaps.md has no {gap}");
    }
}

#[test]
fn each_file_that_is_read_differently_is_listed() {
    let readme = text("README.md");
    let section = readme.split("## Where the two read differently").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeSet<String> = section
        .lines()
        .filter(|line| line.starts_with("| only ") || line.starts_with("| both"))
        .flat_map(|line| line.trim_matches('|').split('|').nth(1).unwrap().split(';'))
        .map(|name| name.trim().to_owned())
        .collect();
    let differing: BTreeSet<String> = crate::verdicts::read_differently().into_iter().map(str::to_owned).collect();
    assert_eq!(listed, differing);
}
