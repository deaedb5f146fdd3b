//! Tests of docs/metrics.md: it has exactly the metrics that are exposed, with their type and labels, and the alerts of
//! deploy/alerts, which query metrics that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const PAGE: &str = include_str!("../../../../../docs/metrics.md");
const RULES: &str = include_str!("../../../../../deploy/alerts/drakkar.rules.yaml");

/// Parses the tables of metrics.
fn documented() -> BTreeMap<String, (String, Vec<String>)> {
    let mut metrics = BTreeMap::new();
    for row in PAGE.lines().filter(|line| line.starts_with("| `drakkar_plugin_") || line.starts_with("| `process_")) {
        let [_, name, kind, labels, meaning, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("not four columns: {row}")
        };
        assert!(meaning.len() > 10, "{row}");
        let labels: BTreeSet<_> = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let known = metrics.insert(name.trim_matches('`').to_owned(), (kind.to_owned(), labels.into_iter().collect()));
        assert!(known.is_none(), "{name} is documented twice");
    }
    metrics
}

#[test]
fn the_document_has_exactly_the_exposed_metrics() {
    assert_eq!(documented(), metrics().exposition().in_queries());
}

/// The document explains the values of each label.
#[test]
fn every_value_of_every_label_is_in_the_document() {
    fn values<L: LabelSet>(text: fn(L) -> &'static str) -> Vec<&'static str> {
        L::all().map(text).collect()
    }
    let all = [
        values(Method::as_str),
        values(Version::as_str),
        values(Code::as_str),
        values(Operation::as_str),
        values(Outcome::as_str),
        values(ApiAnswer::as_str),
        values(FileWork::as_str),
        values(UpdateOutcome::as_str),
        values(ReportOutcome::as_str),
        values(Severity::as_str),
        values(DeviceHealth::as_str),
        values(labels::SliceWrite::as_str),
        values(labels::SliceProblem::as_str),
    ];
    for value in all.concat() {
        assert!(PAGE.contains(&format!("`{value}`")), "{value} is not explained");
    }
}

#[test]
fn alerts_query_metrics_that_are_exposed() {
    let exposition = metrics().exposition();
    let names = exposition.in_queries();
    let rules: String = RULES.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = rules
        .split(|c| !is_part(c))
        .filter(|word| (word.starts_with("drakkar_plugin_") || word.starts_with("process_")) && !word.ends_with('_'));
    let mut queried = 0;
    for word in words {
        let base = word.strip_suffix("_bucket").unwrap_or(word);
        let (kind, _) = names.get(base).unwrap_or_else(|| panic!("an alert queries {word}, which is not exposed"));
        assert_eq!(kind == "histogram", word.ends_with("_bucket"), "{word}");
        queried += 1;
    }
    assert!(queried >= 12, "{queried} metrics in alerts");
}

#[test]
fn the_document_has_exactly_the_alerts_of_the_file_with_their_severities() {
    let groups: serde_json::Value = serde_saphyr::from_str(RULES).unwrap();
    let rules = groups["groups"][0]["rules"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let alerts: Vec<_> = rules
        .iter()
        .map(|rule| {
            let annotations = &rule["annotations"];
            assert!(annotations["summary"].is_string() && annotations["action"].is_string(), "{rule}");
            (text(&rule["alert"]), text(&rule["labels"]["severity"]))
        })
        .collect();
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `Dra"));
    let documented: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (format!("Dra{}", cells[0].trim_end_matches('`')), cells[1].to_owned())
        })
        .collect();
    assert_eq!(documented, alerts);
    for needed in ["publish", "status_reports", "registered", "claim_operations"] {
        assert!(rules.iter().any(|rule| text(&rule["expr"]).contains(needed)), "no alert on {needed}");
    }
}
