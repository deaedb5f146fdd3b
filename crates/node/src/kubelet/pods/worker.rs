//! The lifecycle of one pod on this node: prepare its claims, run its containers, stop them, unprepare, report the final
//! phase, and delete the pod.
//!
//! Claims are prepared if the runtime has no sandbox of the pod yet, as a real kubelet does before it creates the sandbox: not
//! when a container restarts, and not again for containers that an earlier kubelet started. When a sandbox fails, claims that
//! this kubelet has prepared are not prepared again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drakkar_client::Retry;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::directory::grace;
use super::events::Events;
use super::plan::{Phase, containers, exit_code, is_sidecar, newest, plan};
use super::spec::{container_spec, sandbox_spec};
use super::status::{Record, Waiting, time};
use super::{Context, Pods};
use crate::kubelet::containers::is_running;
use crate::runner::{ContainerId, ContainerInfo};

/// Why a pod stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its containers have ended.
    Finished(Phase),
    /// The pod is being deleted, or is gone.
    Deleted,
}

pub(super) struct Worker {
    pub(super) pods: Pods,
    pub(super) uid: String,
    pub(super) latest: watch::Receiver<Option<Arc<Pod>>>,
    pub(super) resync: Arc<Notify>,
    /// The pod as it was seen last.
    pub(super) pod: Option<Arc<Pod>>,
    /// Whether the claims are prepared and the sandbox runs.
    pub(super) ready: bool,
    pub(super) records: HashMap<String, Record>,
    restarts: HashMap<String, Restart>,
    pub(super) reported: Option<Value>,
    pub(super) conditions: Vec<PodCondition>,
    pub(super) start_time: Time,
    pub(super) events: Events,
}

/// The restart backoff of a container.
#[derive(Debug, Default)]
struct Restart {
    /// The last run whose end was handled.
    ended: Option<ContainerId>,
    retry: Option<Retry>,
    not_before: Option<Instant>,
}

impl Worker {
    pub(super) fn new(pods: Pods, uid: String, latest: watch::Receiver<Option<Arc<Pod>>>, resync: Arc<Notify>) -> Self {
        Self {
            pods,
            uid,
            latest,
            resync,
            pod: None,
            ready: false,
            records: HashMap::new(),
            restarts: HashMap::new(),
            reported: None,
            conditions: Vec::new(),
            start_time: time(SystemTime::now()),
            events: Events::default(),
        }
    }

    pub(super) fn context(&self) -> Arc<Context> {
        self.pods.context.clone()
    }

    pub(super) async fn run(mut self) {
        self.refresh();
        self.restore();
        let end = match self.reported_phase() {
            Some(phase) => End::Finished(phase),
            None => self.run_containers().await,
        };
        self.stop().await;
        self.context().containers.stop_sandbox(&self.uid).await;
        self.report(None).await;
        self.unprepare().await;
        let phase = match end {
            End::Finished(phase) => phase,
            End::Deleted => self.final_phase(),
        };
        self.report_end(phase).await;
        self.wait_until_deleted().await;
        self.delete().await;
        for info in self.context().containers.list(&self.uid) {
            self.context().containers.remove(&info.id);
        }
        self.context().containers.remove_sandbox(&self.uid).await;
        self.pods.directories.remove(&self.uid);
    }

    /// Updates the pod. Returns whether it exists and is not being deleted.
    fn refresh(&mut self) -> bool {
        match self.latest.borrow_and_update().clone() {
            Some(pod) => {
                let stays = pod.metadata.deletion_timestamp.is_none();
                self.pod = Some(pod);
                stays
            }
            None => false,
        }
    }

    /// Restores what an earlier kubelet has reported.
    fn restore(&mut self) {
        let Some(pod) = &self.pod else { return };
        let Some(status) = &pod.status else { return };
        self.conditions = status.conditions.clone().unwrap_or_default();
        if let Some(before) = &status.start_time {
            self.start_time = before.clone();
        }
        let statuses = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        for status in statuses {
            self.records.entry(status.name.clone()).or_default().restarts = status.restart_count;
        }
    }

    /// Returns the final phase of the pod, if an earlier kubelet has reported it.
    pub(super) fn reported_phase(&self) -> Option<Phase> {
        let phase = self.pod.as_ref()?.status.as_ref()?.phase.as_deref()?;
        [Phase::Succeeded, Phase::Failed].into_iter().find(|known| known.name() == phase)
    }

    /// Prepares the claims and runs the containers until the pod ends or is deleted.
    async fn run_containers(&mut self) -> End {
        let context = self.context();
        let mut changes = context.containers.subscribe();
        self.ready = context.containers.has_sandbox(&self.uid);
        while self.refresh() {
            let Some(pod) = self.pod.clone() else { break };
            if !self.ready
                && let Some(phase) = self.ended_before(&pod)
            {
                return End::Finished(phase);
            }
            self.ready = self.ready || self.prepare(&pod).await && self.run_sandbox(&pod).await;
            if !self.ready {
                continue;
            }
            changes.borrow_and_update();
            let infos = context.containers.list(&self.uid);
            let next = match self.start_containers(&pod, &infos).await {
                Ok(next) => next,
                Err(phase) => return End::Finished(phase),
            };
            let retry = self.report(None).await;
            let wake = [next, retry].into_iter().flatten().min();
            let sync = Instant::now() + context.timing.pod_sync.pick();
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { sleep_until(sync).await },
                changed = self.latest.changed() => if changed.is_err() { break },
                () = self.resync.notified() => {}
                () = sleep_until(wake.unwrap_or(sync).min(sync)) => {}
            }
        }
        End::Deleted
    }

    /// Returns the final phase of a pod whose containers have all ended for good: it needs no sandbox any longer, even if an
    /// earlier kubelet has stopped the one it had.
    fn ended_before(&self, pod: &Pod) -> Option<Phase> {
        let infos = self.pods.context.containers.list(&self.uid);
        if infos.is_empty() { None } else { plan(pod, &infos).ended }
    }

    /// Prepares the claims of the pod. If that fails, reports it, and returns after the delay for the next attempt.
    async fn prepare(&mut self, pod: &Arc<Pod>) -> bool {
        let context = self.context();
        if let Err(error) = self.pods.directories.create(&self.uid, pod) {
            tracing::error!(pod = self.uid, %error, "kubelet: creating a pod's directory failed");
        }
        let mut latest = self.latest.clone();
        let prepared = tokio::select! {
            prepared = context.manager.prepare(pod) => prepared,
            () = deleted(&mut latest) => return false,
        };
        let Err(error) = prepared else { return true };
        let message = format!("Failed to prepare dynamic resources: {error}");
        tracing::warn!(pod = self.uid, %error, "kubelet: preparing claims failed, retrying");
        let reason = "FailedPrepareDynamicResources";
        self.events.warn(&context.client, &context.node, pod, reason, message).await;
        self.report(None).await;
        tokio::select! {
            () = sleep(context.timing.pod_sync.pick()) => {}
            () = deleted(&mut latest) => {}
        }
        false
    }

    /// Makes the sandbox of the pod. If that fails, reports it, and returns after the delay for the next attempt.
    async fn run_sandbox(&mut self, pod: &Arc<Pod>) -> bool {
        let context = self.context();
        let Err(error) = context.containers.run_sandbox(sandbox_spec(pod)).await else { return true };
        tracing::warn!(pod = self.uid, error, "kubelet: creating a sandbox failed, retrying");
        let message = format!("Failed to create pod sandbox: {error}");
        self.events.warn(&context.client, &context.node, pod, "FailedCreatePodSandBox", message).await;
        self.report(None).await;
        let mut latest = self.latest.clone();
        tokio::select! {
            () = sleep(context.timing.pod_retry.pick()) => {}
            () = deleted(&mut latest) => {}
        }
        false
    }

    /// Starts the containers that must run. Returns when to check again, or the final phase.
    async fn start_containers(&mut self, pod: &Arc<Pod>, infos: &[ContainerInfo]) -> Result<Option<Instant>, Phase> {
        let plan = plan(pod, infos);
        if let Some(phase) = plan.ended {
            return Err(phase);
        }
        let mut next = None;
        for (container, before) in plan.start {
            let wait = self.backoff(container, before);
            let wait = match wait {
                Some(wait) => Some(wait),
                None => self.start(pod, container, before).await,
            };
            next = [next, wait].into_iter().flatten().min();
        }
        Ok(next)
    }

    /// Returns when the container may be restarted, if not now.
    fn backoff(&mut self, container: &Container, before: Option<&ContainerInfo>) -> Option<Instant> {
        let timing = &self.pods.context.timing;
        let restart = self.restarts.entry(container.name.clone()).or_default();
        let record = self.records.entry(container.name.clone()).or_default();
        if let Some(before) = before.filter(|before| restart.ended.as_ref() != Some(&before.id)) {
            restart.ended = Some(before.id.clone());
            let finished = before.finished.unwrap_or_else(SystemTime::now);
            let ran = finished.duration_since(before.started).unwrap_or_default();
            if ran >= timing.container_backoff_reset {
                restart.retry = None;
            }
            // The first restart has no delay.
            restart.not_before = restart.retry.as_mut().map(|retry| {
                let since = SystemTime::now().duration_since(finished).unwrap_or_default();
                Instant::now() + retry.next_delay().saturating_sub(since)
            });
            restart.retry.get_or_insert_with(|| timing.container_backoff.retry());
        }
        let wait = restart.not_before.filter(|until| *until > Instant::now())?;
        if before.is_some() && record.waiting.is_none() {
            let message = format!("back-off restarting failed container {}", container.name);
            record.waiting = Some(Waiting { reason: "CrashLoopBackOff", message });
        }
        Some(wait)
    }

    /// Starts a container. Returns the time of the next attempt if that fails.
    async fn start(
        &mut self,
        pod: &Arc<Pod>,
        container: &Container,
        before: Option<&ContainerInfo>,
    ) -> Option<Instant> {
        let context = self.context();
        let directory = self.pods.directories.of(&self.uid);
        let spec = context.manager.cdi_devices(pod, container).map_err(|error| error.to_string());
        let spec = spec
            .and_then(|devices| container_spec(pod, container, &directory, devices).map_err(|error| error.to_string()));
        let started = match spec {
            Ok(spec) => match context.containers.start(spec).await {
                Ok(_) => Ok(None),
                // The container has exited, and is restarted like any other.
                Err(error) if error.created => Ok(Some(error.message)),
                Err(error) => Err(("CreateContainerError", error.message)),
            },
            Err(error) => Err(("CreateContainerConfigError", error)),
        };
        let record = self.records.entry(container.name.clone()).or_default();
        match started {
            Ok(failure) => {
                record.waiting = None;
                if let Some(before) = before {
                    record.restarts += 1;
                    record.last = Some(before.clone());
                    context.containers.remove(&before.id);
                }
                if let Some(message) = failure {
                    self.events.warn(&context.client, &context.node, pod, "Failed", format!("Error: {message}")).await;
                }
                None
            }
            Err((reason, message)) => {
                tracing::warn!(
                    pod = self.uid,
                    container = container.name,
                    message,
                    "kubelet: creating a container failed, retrying"
                );
                record.waiting = Some(Waiting { reason, message: message.clone() });
                let until = Instant::now() + context.timing.pod_retry.pick();
                self.restarts.entry(container.name.clone()).or_default().not_before = Some(until);
                self.events.warn(&context.client, &context.node, pod, "Failed", format!("Error: {message}")).await;
                Some(until)
            }
        }
    }

    /// Stops all containers: first the main containers, then the sidecars in reverse order.
    async fn stop(&mut self) {
        let context = self.context();
        self.refresh();
        let grace = self.pod.as_ref().map_or_else(|| self.pods.directories.grace(&self.uid), |pod| grace(pod));
        let running = || context.containers.list(&self.uid).into_iter().filter(is_running);
        let sidecars: Vec<String> = match &self.pod {
            Some(pod) => {
                containers(pod).0.iter().filter(|container| is_sidecar(container)).map(|c| c.name.clone()).collect()
            }
            None => Vec::new(),
        };
        let deadline = Instant::now() + grace;
        let first: Vec<ContainerInfo> = running().filter(|info| !sidecars.contains(&info.name)).collect();
        join_all(first.iter().map(|info| context.containers.stop(&info.id, grace))).await;
        for name in sidecars.iter().rev() {
            let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(2)).min(grace);
            for info in running().filter(|info| info.name == *name) {
                context.containers.stop(&info.id, remaining).await;
            }
        }
    }

    async fn unprepare(&mut self) {
        let context = self.context();
        while let Err(error) = context.manager.unprepare(&self.uid).await {
            tracing::warn!(pod = self.uid, %error, "kubelet: unpreparing claims failed, retrying");
            if let Some(pod) = &self.pod {
                let message = format!("error killing pod: {error}");
                self.events.warn(&context.client, &context.node, pod, "FailedKillPod", message).await;
            }
            sleep(context.timing.pod_retry.pick()).await;
        }
        self.pods.unprepared(&self.uid);
    }

    /// Returns the final phase of a deleted pod.
    fn final_phase(&self) -> Phase {
        let Some(pod) = &self.pod else { return Phase::Failed };
        let infos = self.pods.context.containers.list(&self.uid);
        let succeeded = |container: &Container| newest(&infos, &container.name).and_then(exit_code) == Some(0);
        if containers(pod).1.iter().all(succeeded) { Phase::Succeeded } else { Phase::Failed }
    }

    async fn wait_until_deleted(&mut self) {
        let mut latest = self.latest.clone();
        deleted(&mut latest).await;
        self.refresh();
    }
}

/// Waits until the pod is being deleted, or is gone.
async fn deleted(latest: &mut watch::Receiver<Option<Arc<Pod>>>) {
    let is_deleted = |pod: &Option<Arc<Pod>>| match pod {
        Some(pod) => pod.metadata.deletion_timestamp.is_some(),
        None => true,
    };
    // The sender lives as long as the worker.
    let _ = latest.wait_for(is_deleted).await;
}
