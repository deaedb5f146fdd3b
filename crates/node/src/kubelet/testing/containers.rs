//! A container runtime under the control of the test.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::Log;
use crate::kubelet::{Containers, SandboxSpec, StartError};
use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Exit, State};

pub(crate) struct FakeContainers {
    all: Mutex<Vec<(ContainerSpec, ContainerInfo)>>,
    count: Mutex<usize>,
    changes: watch::Sender<u64>,
    log: Log,
    /// The error of each start, if set.
    pub(crate) refuse: Mutex<Option<StartError>>,
    /// The UIDs of pods that have a sandbox.
    sandboxes: Mutex<BTreeSet<String>>,
    /// How many of the next sandboxes fail.
    pub(crate) failing_sandboxes: Mutex<usize>,
}

impl FakeContainers {
    pub(crate) fn new(log: Log) -> Self {
        Self {
            all: Mutex::default(),
            count: Mutex::default(),
            changes: watch::channel(0).0,
            log,
            refuse: Mutex::default(),
            sandboxes: Mutex::default(),
            failing_sandboxes: Mutex::default(),
        }
    }

    /// Ends the running container of this name.
    pub(crate) fn exit(&self, name: &str, code: i32) {
        self.finish(|info| info.name == name, code);
    }

    fn finish(&self, which: impl Fn(&ContainerInfo) -> bool, code: i32) {
        for (_, info) in self.all.lock().unwrap().iter_mut().filter(|(_, info)| which(info)) {
            if matches!(info.state, State::Running { .. }) {
                let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
                info.state = State::Exited(Exit { code, signal: None, reason, message: String::new() });
                info.finished = Some(SystemTime::now());
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns the spec of the newest container of this name.
    pub(crate) fn spec(&self, name: &str) -> Option<ContainerSpec> {
        self.all.lock().unwrap().iter().rev().find(|(spec, _)| spec.name == name).map(|(spec, _)| spec.clone())
    }

    /// Returns the running containers as `pod/name`.
    pub(crate) fn running(&self) -> Vec<String> {
        let all = self.all.lock().unwrap();
        let running = all.iter().filter(|(_, info)| matches!(info.state, State::Running { .. }));
        running.map(|(spec, _)| format!("{}/{}", spec.pod_name, spec.name)).collect()
    }

    /// Counts the containers, running or not.
    pub(crate) fn len(&self) -> usize {
        self.all.lock().unwrap().len()
    }
}

impl Containers for FakeContainers {
    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerId, StartError>> {
        Box::pin(async move {
            if let Some(error) = &*self.refuse.lock().unwrap() {
                return Err(error.clone());
            }
            self.log.add(format!("start {}/{}", spec.pod_name, spec.name));
            let mut count = self.count.lock().unwrap();
            *count += 1;
            let id = ContainerId(format!("c{count}"));
            let info = ContainerInfo::new(id.clone(), &spec, State::Running { pid: 1 }, SystemTime::now());
            self.all.lock().unwrap().push((spec, info));
            self.changes.send_modify(|changes| *changes += 1);
            Ok(id)
        })
    }

    fn list(&self, pod_uid: &str) -> Vec<ContainerInfo> {
        let all = self.all.lock().unwrap();
        all.iter().filter(|(spec, _)| spec.pod_uid == pod_uid).map(|(_, info)| info.clone()).collect()
    }

    fn stop<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let all = self.all.lock().unwrap();
            let name = all.iter().find(|(_, info)| info.id == *id).map(|(spec, _)| spec.name.clone());
            drop(all);
            self.log.add(format!("stop {} with grace {}", name.unwrap_or_default(), grace.as_secs_f64().round()));
            self.finish(|info| info.id == *id, 143);
        })
    }

    fn remove(&self, id: &ContainerId) {
        let mut all = self.all.lock().unwrap();
        let running = |info: &ContainerInfo| info.id == *id && matches!(info.state, State::Running { .. });
        assert!(!all.iter().any(|(_, info)| running(info)), "a running container is removed");
        all.retain(|(_, info)| info.id != *id);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn has_sandbox(&self, pod_uid: &str) -> bool {
        self.sandboxes.lock().unwrap().contains(pod_uid)
    }

    fn run_sandbox(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.log.add(format!("run sandbox of {}", spec.pod_name));
            let mut failing = self.failing_sandboxes.lock().unwrap();
            if *failing > 0 {
                *failing -= 1;
                return Err("no network".to_owned());
            }
            self.sandboxes.lock().unwrap().insert(spec.pod_uid);
            Ok(())
        })
    }

    fn stop_sandbox<'a>(&'a self, pod_uid: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {
            if self.sandboxes.lock().unwrap().remove(pod_uid) {
                self.log.add("end sandbox");
            }
        })
    }
}
