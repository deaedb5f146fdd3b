//! Tests of docs/metrics.md: it has exactly the metrics that are exposed, with their type and labels, and the alerts of
//! deploy/alerts. These and the dashboard query metrics that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const PAGE: &str = include_str!("../../../../../docs/metrics.md");
const RULES: &str = include_str!("../../../../../deploy/alerts/drakkar.rules.yaml");
const RULE_TESTS: &str = include_str!("../../../../../deploy/alerts/drakkar.rules.test.yaml");
const DASHBOARD: &str = include_str!("../../../../../deploy/dashboards/drakkar.json");
/// The guides of the drivers, whose own tests compare the metrics there with the exposed ones.
const DRIVERS: [&str; 2] =
    [include_str!("../../../../../docs/network-driver.md"), include_str!("../../../../../docs/pci-driver.md")];

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

/// Checks that all metrics in a text of queries exist, and returns their number.
fn check_queries(text: &str) -> usize {
    let exposition = metrics().exposition();
    let names = exposition.in_queries();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_metric = |word: &&str| {
        ["drakkar_plugin_", "drakkar_net_", "drakkar_pci_", "process_"].iter().any(|prefix| word.starts_with(prefix))
            && !word.ends_with('_')
    };
    let mut queried = BTreeSet::new();
    for word in text.split(|c| !is_part(c)).filter(is_metric) {
        queried.insert(word);
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
        if word.starts_with("drakkar_net_") || word.starts_with("drakkar_pci_") {
            let rows = DRIVERS.iter().flat_map(|guide| guide.lines()).filter(|line| line.starts_with('|'));
            let mut documented = rows.flat_map(|row| row.split(|c| !is_part(c)));
            assert!(documented.any(|name| name == base), "{word} is queried, and not in the driver's guide");
            continue;
        }
        let (kind, _) = names.get(base).unwrap_or_else(|| panic!("{word} is queried, and not exposed"));
        assert_eq!(kind == "histogram", base != word, "{word}");
    }
    queried.len()
}

#[test]
fn alerts_query_metrics_that_are_exposed() {
    let rules = yaml(RULES);
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let queries: String = rules.iter().flat_map(|rule| [rule["expr"].as_str().unwrap(), "\n"]).collect();
    // A pattern of names is written out.
    let written_out = queries.replace("drakkar_(net|pci)_", "drakkar_net_");
    let queried = check_queries(&written_out);
    assert!(queried >= 15, "{queried} metrics in alerts");
}

#[test]
fn the_dashboard_queries_metrics_that_are_exposed() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let queries: Vec<&str> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() >= 30, "{} queries", queries.len());
    let queried = check_queries(&queries.join("\n"));
    assert!(queried >= 25, "{queried} metrics in the dashboard");
    for query in queries {
        assert!(query.contains(r#"job=~"$job""#) && query.contains(r#"instance=~"$instance""#), "{query}");
    }
}

/// `promtool test rules` runs the cases; this checks that none is missing.
#[test]
fn every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let tests = yaml(RULE_TESTS);
    let checks = tests["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let mut seen: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    for check in checks {
        let (fires, is_silent) = seen.entry(check["alertname"].as_str().unwrap()).or_default();
        let is_empty = check["exp_alerts"].as_array().unwrap().is_empty();
        *is_silent |= is_empty;
        *fires |= !is_empty;
    }
    let rules = yaml(RULES);
    let alerts: BTreeSet<&str> =
        rules["groups"][0]["rules"].as_array().unwrap().iter().map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!(seen.keys().copied().collect::<BTreeSet<_>>(), alerts);
    for (alert, cases) in seen {
        assert_eq!(cases, (true, true), "{alert}: fires, is silent");
    }
}

fn yaml(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn the_document_has_exactly_the_alerts_of_the_file_with_their_severities() {
    let groups = yaml(RULES);
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
