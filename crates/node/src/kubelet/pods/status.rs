//! The status of a pod, from the state of its containers.

use std::collections::HashMap;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Pod, PodCondition, ResourceStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::plan::{Phase, containers, exit_code, is_sidecar, newest};
use crate::kubelet::containers::is_running;
use crate::runner::{ContainerInfo, State};

/// The prefix of container ids in a pod's status.
const RUNTIME: &str = "drakkar://";
/// The conditions that a kubelet sets. Others are kept.
const CONDITIONS: [&str; 4] = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];

/// Why a container is waiting: reason and message of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What the kubelet records of a container, besides what the runtime knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) restarts: i32,
    /// The run before the current one.
    pub(super) last: Option<ContainerInfo>,
    pub(super) waiting: Option<Waiting>,
}

/// The input of a status.
pub(super) struct View<'a> {
    pub(super) pod: &'a Pod,
    pub(super) infos: &'a [ContainerInfo],
    pub(super) records: &'a HashMap<String, Record>,
    /// Whether the claims are prepared, or were when the containers started, and the sandbox runs.
    pub(super) ready: bool,
    /// The addresses of the pod.
    pub(super) ips: Vec<String>,
    /// The final phase, if the pod has ended.
    pub(super) ended: Option<Phase>,
    /// When the first kubelet took the pod.
    pub(super) start_time: &'a Time,
    /// The conditions that were reported last.
    pub(super) conditions: &'a [PodCondition],
}

/// Builds the status to report. `resources` returns the health of a container's devices.
pub(super) fn status(view: &View<'_>, resources: impl Fn(&Container) -> Vec<ResourceStatus>) -> Value {
    let (init, main) = containers(view.pod);
    let initialized = init.iter().all(|container| {
        let found = newest(view.infos, &container.name);
        let started = found.is_some_and(|info| is_sidecar(container) || exit_code(info) == Some(0));
        started || main.iter().any(|container| newest(view.infos, &container.name).is_some())
    });
    let waiting_reason = if init.is_empty() || initialized { "ContainerCreating" } else { "PodInitializing" };
    let init: Vec<ContainerStatus> =
        init.iter().map(|container| view.container(container, "PodInitializing", true)).collect();
    let main: Vec<ContainerStatus> = main
        .iter()
        .map(|container| {
            let statuses = Some(resources(container)).filter(|statuses| !statuses.is_empty());
            ContainerStatus { allocated_resources_status: statuses, ..view.container(container, waiting_reason, false) }
        })
        .collect();
    let ready = view.ended.is_none() && main.iter().all(|status| status.ready);
    let started = main.iter().all(|status| {
        status.state.as_ref().is_some_and(|state| state.waiting.is_none()) || status.last_state.is_some()
    });
    let phase = match view.ended {
        Some(phase) => phase.name(),
        None if initialized && started => "Running",
        None => "Pending",
    };
    let values = [view.ready && view.ended.is_none(), initialized, ready, ready];
    let mut status = json!({
        "phase": phase,
        "startTime": view.start_time,
        "conditions": conditions(view, values),
        "initContainerStatuses": init,
        "containerStatuses": main,
    });
    // Kept when the sandbox is gone, as a real kubelet does.
    if let Some(first) = view.ips.first() {
        status["podIP"] = json!(first);
        status["podIPs"] = view.ips.iter().map(|ip| json!({"ip": ip})).collect();
    }
    status
}

fn conditions(view: &View<'_>, values: [bool; 4]) -> Vec<PodCondition> {
    let others = view.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = others.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str())).cloned();
    let ours = CONDITIONS.into_iter().zip(values).map(|(name, value)| {
        let status = if value { "True" } else { "False" };
        let before = view.conditions.iter().find(|condition| condition.type_ == name);
        let same = before.filter(|before| before.status == status);
        let since = same.and_then(|before| before.last_transition_time.clone());
        let reason = match view.ended {
            Some(Phase::Succeeded) if !value => Some("PodCompleted".to_owned()),
            _ if !value && name.ends_with("Ready") => Some("ContainersNotReady".to_owned()),
            _ => None,
        };
        PodCondition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason,
            last_transition_time: Some(since.unwrap_or_else(|| time(SystemTime::now()))),
            ..PodCondition::default()
        }
    });
    let mut all: Vec<PodCondition> = ours.collect();
    all.extend(others);
    all
}

impl View<'_> {
    fn container(&self, container: &Container, waiting_reason: &str, init: bool) -> ContainerStatus {
        let info = newest(self.infos, &container.name);
        let record = self.records.get(&container.name);
        let waiting = record.and_then(|record| record.waiting.as_ref()).filter(|_| self.ended.is_none());
        let state = match (info, waiting) {
            (Some(info), None) => api_state(info),
            (Some(info), Some(_)) if is_running(info) => api_state(info),
            (_, Some(waiting)) => waiting_state(waiting.reason, Some(waiting.message.clone())),
            (None, None) => waiting_state(waiting_reason, None),
        };
        let last = match waiting {
            // A container that waits for its restart has run before.
            Some(_) => info.filter(|info| !is_running(info)),
            None => None,
        };
        let last = last.or(record.and_then(|record| record.last.as_ref())).map(api_state);
        let running = info.is_some_and(is_running);
        let done = info.is_some_and(|info| exit_code(info) == Some(0));
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: String::new(),
            container_id: info.map(|info| format!("{RUNTIME}{}", info.id)),
            ready: if init && !is_sidecar(container) { done } else { running },
            started: Some(running),
            restart_count: record.map_or(0, |record| record.restarts),
            state: Some(state),
            last_state: last,
            ..ContainerStatus::default()
        }
    }
}

fn api_state(info: &ContainerInfo) -> ApiState {
    let started_at = Some(time(info.started));
    match &info.state {
        State::Running { .. } => {
            ApiState { running: Some(ContainerStateRunning { started_at }), ..ApiState::default() }
        }
        State::Exited(exit) => {
            let terminated = ContainerStateTerminated {
                exit_code: exit.code,
                reason: Some(exit.reason.clone()),
                message: Some(exit.message.clone()).filter(|message| !message.is_empty()),
                started_at,
                finished_at: info.finished.map(time),
                container_id: Some(format!("{RUNTIME}{}", info.id)),
                ..ContainerStateTerminated::default()
            };
            ApiState { terminated: Some(terminated), ..ApiState::default() }
        }
    }
}

fn waiting_state(reason: &str, message: Option<String>) -> ApiState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ApiState { waiting: Some(waiting), ..ApiState::default() }
}

/// Converts a time to whole seconds, the precision of Kubernetes' timestamps.
pub(in crate::kubelet) fn time(time: SystemTime) -> Time {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or_default();
    Time(Timestamp::from_second(seconds).unwrap_or_default())
}
