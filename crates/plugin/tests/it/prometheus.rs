//! Prometheus' own tool on what a driver exposes, and on the alerts and the dashboard.
//!
//! Without `promtool` these tests say so and pass. With `DRAKKAR_REQUIRE_PROMTOOL` it has to be there.

mod promtool;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use self::promtool::{check_metrics, promtool};
use crate::support::{ANY_PORT, Kubelet, Node, TestClaim, TestDriver, http_get, notify};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The text format is for clients that do not ask for OpenMetrics, as this tool.
#[tokio::test]
async fn metrics_are_clean_by_promtool() {
    let node = Node::default();
    let helper = node.builder().node_name("node-7").http_endpoint(ANY_PORT).start(TestDriver::default()).await.unwrap();
    let address = helper.http_address().unwrap();
    let (_, at_start) = http_get(address, "/metrics").await;
    notify(&helper, None).await.unwrap();
    let claim = node.claim(TestClaim::new("train", "uid-1").device("gpu", "gpu-0"));
    let kubelet = Kubelet::of(&helper).await;
    kubelet.prepare_one(&claim).await.unwrap();
    kubelet.prepare_one(&TestClaim::new("unknown", "uid-2")).await.unwrap_err();
    let (_, later) = http_get(address, "/metrics").await;
    helper.stop().await.unwrap();
    for text in [at_start, later] {
        assert!(text.contains("drakkar_plugin_grpc_call_duration_seconds_bucket"), "{text}");
        check_metrics(&text);
    }
}

/// The tool finds what it should: otherwise its silence would mean nothing.
#[test]
fn promtool_finds_fault_with_a_counter_without_its_suffix() {
    if let Some(output) = promtool(&["check", "metrics"], "# HELP calls Calls.\n# TYPE calls counter\ncalls 1\n") {
        assert!(!output.status.success(), "{output:?}");
    }
}

#[test]
fn the_cases_of_the_alerts_pass() {
    let cases = deploy().join("alerts/drakkar.rules.test.yaml");
    if let Some(output) = promtool(&["test", "rules", cases.to_str().unwrap()], "") {
        assert!(output.status.success(), "{output:?}");
    }
}

/// Every query of the dashboard is valid: as the expression of a recording rule.
#[test]
fn the_queries_of_the_dashboard_are_valid() {
    let dashboard: Value =
        serde_json::from_slice(&std::fs::read(deploy().join("dashboards/drakkar.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default());
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(index, target)| {
            let mut query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            for variable in ["$driver", "$job", "$instance"] {
                query = query.replace(variable, ".*");
            }
            assert!(!query.contains('$'), "an unknown variable: {query}");
            json!({"record": format!("dashboard:query:{index}"), "expr": query})
        })
        .collect();
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "driver", "job", "instance"]);
    let mut ids: Vec<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), panels.len(), "panels have their own ids");
    // JSON is YAML.
    let file = tempfile::NamedTempFile::new().unwrap();
    serde_json::to_writer(&file, &json!({"groups": [{"name": "dashboard", "rules": rules}]})).unwrap();
    if let Some(output) = promtool(&["check", "rules", file.path().to_str().unwrap()], "") {
        assert!(output.status.success(), "{output:?}");
    }
}
