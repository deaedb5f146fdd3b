//! Tests of reporting that need no API server.

mod denial;
mod known;
mod merge;
mod queue;
mod validate;

use serde_json::{Value, json};

use super::queue::{Next, Report};
use super::*;
use crate::metrics::Metrics;

const DRIVER: &str = "gpu.example.com";
const MANAGER: &str = "gpu.example.com-kubelet-plugin";
const SHARE: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";

fn claim_ref(number: usize) -> ClaimRef {
    ClaimRef {
        namespace: "default".parse().unwrap(),
        name: format!("claim-{number}").parse().unwrap(),
        uid: format!("uid-{number}").parse().unwrap(),
    }
}

fn metrics() -> Metrics {
    Metrics::new(&DRIVER.parse().unwrap())
}

/// Returns the number of reports with an outcome, from the metrics.
fn reports(metrics: &Metrics, outcome: &str) -> u64 {
    let text = metrics.encode().unwrap();
    let line = format!("drakkar_plugin_status_reports_total{{outcome=\"{outcome}\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

fn pending(queue: &Queue) -> Vec<Report> {
    match queue.next() {
        Next::Ready(delivery) => delivery.reports,
        other => panic!("{other:?}"),
    }
}

fn entry(device: &str, more: &Value) -> Value {
    let mut entry = json!({"driver": DRIVER, "pool": "node-1", "device": device});
    for (name, value) in more.as_object().unwrap() {
        entry[name] = value.clone();
    }
    entry
}
