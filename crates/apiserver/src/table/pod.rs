//! The cells of a pod, from the states of its containers.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::age;

pub(super) fn ready(pod: &Value, _: Timestamp) -> Value {
    let summary = Summary::of(pod);
    format!("{}/{}", summary.ready, summary.total).into()
}

pub(super) fn status(pod: &Value, _: Timestamp) -> Value {
    Summary::of(pod).reason.into()
}

pub(super) fn restarts(pod: &Value, now: Timestamp) -> Value {
    let summary = Summary::of(pod);
    match summary.last_restart.filter(|_| summary.restarts > 0) {
        Some(last) => format!("{} ({} ago)", summary.restarts, age::since(last, now)).into(),
        None => summary.restarts.to_string().into(),
    }
}

pub(super) fn readiness_gates(pod: &Value, _: Timestamp) -> Value {
    let gates: Vec<&Value> = list(&pod["spec"]["readinessGates"]).collect();
    if gates.is_empty() {
        return "<none>".into();
    }
    let passed = gates.iter().filter(|gate| {
        let kind = gate["conditionType"].as_str().unwrap_or_default();
        condition(pod, kind).is_some_and(|condition| condition["status"] == "True")
    });
    format!("{}/{}", passed.count(), gates.len()).into()
}

/// What a pod's row says of its containers.
struct Summary<'a> {
    total: usize,
    ready: usize,
    reason: String,
    restarts: i64,
    /// When the last container that was restarted had ended.
    last_restart: Option<&'a Value>,
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Self {
        let status = &pod["status"];
        let phase = text(&status["phase"]);
        let sidecars = list(&pod["spec"]["initContainers"]).filter(|container| is_sidecar(container)).count();
        let reason = match text(&status["reason"]) {
            "" => phase,
            reason => reason,
        };
        let is_gated = condition(pod, "PodScheduled").is_some_and(|found| found["reason"] == "SchedulingGated");
        let mut summary = Self {
            total: list(&pod["spec"]["containers"]).count() + sidecars,
            ready: 0,
            reason: if is_gated { "SchedulingGated".to_owned() } else { reason.to_owned() },
            restarts: 0,
            last_restart: None,
        };
        if !summary.add_init_containers(pod) {
            summary.add_containers(pod);
        }
        if pod["metadata"]["deletionTimestamp"].is_string() && !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = if status["reason"] == "NodeLost" { "Unknown" } else { "Terminating" }.to_owned();
        }
        summary
    }

    /// Adds the init containers up to the first that is not done. Returns whether there is one.
    fn add_init_containers(&mut self, pod: &'a Value) -> bool {
        let specs: Vec<&Value> = list(&pod["spec"]["initContainers"]).collect();
        let mut restarts_of_others = 0;
        let mut initializing = false;
        for (index, status) in list(&pod["status"]["initContainerStatuses"]).enumerate() {
            let is_sidecar = specs.iter().any(|spec| spec["name"] == status["name"] && is_sidecar(spec));
            self.add_restarts(status);
            if !is_sidecar {
                restarts_of_others += count(status);
            }
            let terminated = &status["state"]["terminated"];
            let waiting = text(&status["state"]["waiting"]["reason"]);
            if terminated.is_object() && terminated["exitCode"] == 0 {
                continue;
            }
            if is_sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            self.reason = if terminated.is_object() {
                format!("Init:{}", ended(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", specs.len())
            };
            initializing = true;
            break;
        }
        let is_initialized = condition(pod, "Initialized").is_some_and(|found| found["status"] == "True");
        if initializing && !is_initialized {
            return true;
        }
        // Restarts before the pod was initialized no longer count, except of sidecars.
        self.restarts -= restarts_of_others;
        false
    }

    fn add_containers(&mut self, pod: &'a Value) {
        let statuses: Vec<&Value> = list(&pod["status"]["containerStatuses"]).collect();
        let mut is_running = false;
        let mut failed = None;
        for status in statuses.into_iter().rev() {
            self.add_restarts(status);
            let state = &status["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if state["terminated"].is_object() {
                self.reason = ended(&state["terminated"]);
                if state["terminated"]["exitCode"] != 0 {
                    failed = Some(self.reason.clone());
                }
            } else if status["ready"] == true && state["running"].is_object() {
                is_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            let is_ready = condition(pod, "Ready").is_some_and(|found| found["status"] == "True");
            match (is_running, is_ready, failed) {
                (true, true, _) => self.reason = "Running".to_owned(),
                (_, _, Some(failed)) => self.reason = failed,
                (true, false, None) => self.reason = "NotReady".to_owned(),
                (false, _, None) => {}
            }
        }
    }

    fn add_restarts(&mut self, status: &'a Value) {
        self.restarts += count(status);
        let ended = &status["lastState"]["terminated"]["finishedAt"];
        if age::parse(ended) > self.last_restart.and_then(age::parse) {
            self.last_restart = Some(ended);
        }
    }
}

/// Returns why a container has ended.
fn ended(terminated: &Value) -> String {
    match (text(&terminated["reason"]), terminated["signal"].as_i64().filter(|signal| *signal != 0)) {
        ("", Some(signal)) => format!("Signal:{signal}"),
        ("", None) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or_default()),
        (reason, _) => reason.to_owned(),
    }
}

fn count(status: &Value) -> i64 {
    status["restartCount"].as_i64().unwrap_or_default()
}

/// Whether an init container runs beside the others.
fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list(&pod["status"]["conditions"]).find(|condition| condition["type"] == kind)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
