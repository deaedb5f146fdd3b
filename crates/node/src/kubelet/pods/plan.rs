//! What to do next for the containers of a pod: init containers in their order, sidecars among them, then all others; and
//! which of them to restart.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::kubelet::containers::is_running;
use crate::runner::{ContainerInfo, State};

/// The phase of a pod that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Succeeded,
    Failed,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// What to do next.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan<'a> {
    /// Containers to start, each with its last run.
    pub(super) start: Vec<(&'a Container, Option<&'a ContainerInfo>)>,
    /// The final phase, if nothing will ever have to be done again.
    pub(super) ended: Option<Phase>,
}

/// Returns the init containers and the main containers of a pod.
pub(super) fn containers(pod: &Pod) -> (&[Container], &[Container]) {
    match &pod.spec {
        Some(spec) => (spec.init_containers.as_deref().unwrap_or_default(), &spec.containers),
        None => (&[], &[]),
    }
}

/// Reports whether an init container is a sidecar, which keeps running.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns the newest container of this name.
pub(super) fn newest<'a>(infos: &'a [ContainerInfo], name: &str) -> Option<&'a ContainerInfo> {
    infos.iter().filter(|info| info.name == name).max_by_key(|info| (is_running(info), info.started))
}

pub(super) fn exit_code(info: &ContainerInfo) -> Option<i32> {
    match &info.state {
        State::Exited(exit) => Some(exit.code),
        State::Running { .. } => None,
    }
}

pub(super) fn plan<'a>(pod: &'a Pod, infos: &'a [ContainerInfo]) -> Plan<'a> {
    let (init, main) = containers(pod);
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
    let restarts = |code: i32| policy == "Always" || (policy == "OnFailure" && code != 0);
    let initialized = main.iter().any(|container| newest(infos, &container.name).is_some());
    let mut plan = Plan::default();
    for container in init {
        let found = newest(infos, &container.name);
        match found.map(exit_code) {
            Some(None) if is_sidecar(container) => {}
            Some(Some(_)) if is_sidecar(container) => plan.start.push((container, found)),
            // It must have started before the next may.
            None if is_sidecar(container) => {
                plan.start.push((container, found));
                if !initialized {
                    return plan;
                }
            }
            Some(Some(0)) => {}
            _ if initialized => {}
            None => {
                plan.start.push((container, found));
                return plan;
            }
            Some(None) => return plan,
            Some(Some(_)) if policy == "Never" => {
                return Plan { start: Vec::new(), ended: Some(Phase::Failed) };
            }
            Some(Some(_)) => {
                plan.start.push((container, found));
                return plan;
            }
        }
    }
    let mut finished = 0;
    let mut failed = false;
    for container in main {
        let found = newest(infos, &container.name);
        match found.map(exit_code) {
            None => plan.start.push((container, found)),
            Some(None) => {}
            Some(Some(code)) if restarts(code) => plan.start.push((container, found)),
            Some(Some(code)) => {
                finished += 1;
                failed |= code != 0;
            }
        }
    }
    if finished == main.len() {
        plan.start.clear();
        plan.ended = Some(if failed { Phase::Failed } else { Phase::Succeeded });
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::json;

    use super::*;
    use crate::runner::{ContainerId, Exit};

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": "first"}, {"name": "sidecar", "restartPolicy": "Always"}, {"name": "second"}],
            "containers": [{"name": "a"}, {"name": "b"}],
        }}))
        .unwrap()
    }

    /// Containers by name: running (`None`), or exited with a code.
    fn infos(states: &[(&str, Option<i32>)]) -> Vec<ContainerInfo> {
        let info = |(at, (name, code)): (usize, &(&str, Option<i32>))| ContainerInfo {
            id: ContainerId(at.to_string()),
            name: (*name).to_owned(),
            pod_uid: String::new(),
            pod_name: String::new(),
            namespace: String::new(),
            notes: vec![],
            state: match code {
                None => State::Running { pid: 1 },
                Some(code) => State::Exited(Exit {
                    code: *code,
                    signal: None,
                    reason: "Error".to_owned(),
                    message: String::new(),
                }),
            },
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64),
            finished: None,
        };
        states.iter().enumerate().map(info).collect()
    }

    fn next(policy: &str, states: &[(&str, Option<i32>)]) -> (Vec<String>, Option<Phase>) {
        let pod = pod(policy);
        let infos = infos(states);
        let plan = plan(&pod, &infos);
        (plan.start.iter().map(|(container, _)| container.name.clone()).collect(), plan.ended)
    }

    fn start(names: &[&str]) -> (Vec<String>, Option<Phase>) {
        (names.iter().map(|name| (*name).to_owned()).collect(), None)
    }

    #[test]
    fn init_containers_run_one_after_the_other_and_sidecars_keep_running() {
        assert_eq!(next("Always", &[]), start(&["first"]));
        assert_eq!(next("Always", &[("first", None)]), start(&[]));
        assert_eq!(next("Always", &[("first", Some(0))]), start(&["sidecar"]));
        let mut states = vec![("first", Some(0)), ("sidecar", None)];
        assert_eq!(next("Always", &states), start(&["second"]));
        states.push(("second", Some(0)));
        assert_eq!(next("Always", &states), start(&["a", "b"]));
        states.extend([("a", None), ("b", None)]);
        assert_eq!(next("Always", &states), start(&[]));
    }

    #[test]
    fn a_failed_init_container_is_restarted_or_ends_the_pod() {
        assert_eq!(next("OnFailure", &[("first", Some(1))]), start(&["first"]));
        assert_eq!(next("Never", &[("first", Some(1))]), (vec![], Some(Phase::Failed)));
        assert_eq!(next("Never", &[("first", Some(0)), ("sidecar", Some(1))]), start(&["sidecar", "second"]));
    }

    #[test]
    fn containers_are_restarted_as_the_policy_says() {
        let done = [("first", Some(0)), ("sidecar", None), ("second", Some(0))];
        let with = |a, b| [&done[..], &[("a", a), ("b", b)]].concat();
        assert_eq!(next("Always", &with(Some(0), Some(1))), start(&["a", "b"]));
        assert_eq!(next("OnFailure", &with(Some(0), Some(1))), start(&["b"]));
        assert_eq!(next("OnFailure", &with(Some(0), Some(0))), (vec![], Some(Phase::Succeeded)));
        assert_eq!(next("Never", &with(Some(0), None)), start(&[]));
        assert_eq!(next("Never", &with(Some(0), Some(1))), (vec![], Some(Phase::Failed)));
        assert_eq!(next("Never", &with(Some(0), Some(0))), (vec![], Some(Phase::Succeeded)));
    }

    #[test]
    fn the_newest_of_several_runs_counts() {
        let states = [("first", Some(1)), ("first", Some(0)), ("sidecar", None), ("second", None)];
        assert_eq!(next("Always", &states), start(&[]));
    }
}
