//! The driver as the container runtime sees it: interfaces are attached when a pod's sandbox runs and brought back when it stops.
//!
//! # `RunPodSandbox`
//!
//! The claims of the pod are found by its UID, which the kubelet's prepare has recorded. Their interfaces are attached, then described
//! to containers and the API server, in this order: the metadata file opens the gate, so no container starts without its network. If
//! anything fails, all interfaces of the pod are brought back, the gate is closed, the condition `Ready` is False with the
//! reason, and the runtime gets the error.
//!
//! The runtime waits two seconds by default. What takes longer is answered with an error by then and taken back; it is never
//! cut in the middle.
//!
//! # `CreateContainer`
//!
//! A container with the metadata of an interface that is not in its sandbox is refused: see [`containers`].
//!
//! # `StopPodSandbox` and `RemovePodSandbox`
//!
//! Both bring back what is in the sandbox; neither can fail. What cannot be brought back is tried again ([`Hooks::retry`]), at the
//! latest by the kubelet's unprepare.
//!
//! # Synchronize
//!
//! While the driver is not connected, pods start and stop without it. Pods that were prepared and not attached are attached now,
//! which opens their gate, and the kubelet's next attempt to create their containers succeeds. A namespace that is gone has given its
//! interfaces back. A claim whose pod is not among those of the runtime is left alone: its sandbox may not exist yet.
//!
//! A connection that is lost closes the gates of sandboxes that the runtime may have discarded: see [`unconfirmed`].

mod containers;
mod repair;
#[cfg(test)]
mod tests;
mod unconfirmed;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drakkar_driver_kit::logged::Logged;
use drakkar_metadata::name::ClaimUid;
use drakkar_nri::api::{Container, PodSandbox};
use drakkar_nri::{Abandoned, Adjustments, Call, ContainerUpdate, NriPlugin, PodSandboxExt as _};
use drakkar_plugin::BoxError;
use tokio_util::task::TaskTracker;

use self::unconfirmed::Confirmations;
use crate::attacher::{Attacher, Sandbox};
use crate::claims::{AttachedClaim, Claims, Patience, base};
use crate::journal::{DeviceRecord, Phase, Record};
use crate::metadata::{self, reason};
use crate::metrics::{Hook, Metrics};
use crate::published::Published;
use crate::reports::Reports;

/// The number of locks for all claims.
const SLOTS: usize = 32;

/// The hooks of the runtime. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Hooks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    claims: Arc<Claims>,
    attacher: Arc<dyn Attacher>,
    published: Arc<dyn Published>,
    reports: Arc<dyn Reports>,
    metrics: Metrics,
    /// One writes what containers see of a claim at a time: what is written last is what the journal says.
    slots: [tokio::sync::Mutex<()>; SLOTS],
    /// What was logged of sandboxes whose interfaces cannot be brought back.
    logged: Mutex<Logged<String>>,
    /// Sandboxes that run and whose interfaces could not be attached, by id.
    repairs: Mutex<BTreeMap<String, Sandbox>>,
    /// Held by a repair from its first sandbox to its last.
    repairing: tokio::sync::Mutex<()>,
    confirmations: Mutex<Confirmations>,
    tasks: TaskTracker,
}

/// Who waits for an attach, and how long.
#[derive(Clone)]
struct Caller {
    deadline: Option<Instant>,
    abandonment: Arc<dyn Fn() -> Option<Abandoned> + Send + Sync>,
}

impl Caller {
    /// Nobody waits: it takes as long as it takes.
    fn nobody() -> Self {
        Self { deadline: None, abandonment: Arc::new(|| None) }
    }

    /// The runtime waits. What the kernel is asked for ends a little earlier, so that taking it back is in time, too.
    fn runtime(call: &Call) -> Self {
        let deadline = Instant::now() + share(call.remaining());
        let call = call.clone();
        Self { deadline: Some(deadline), abandonment: Arc::new(move || call.abandonment()) }
    }
}

/// Returns the part of the runtime's patience for attaching: four fifths, the rest is for taking it back.
fn share(remaining: Duration) -> Duration {
    remaining / 5 * 4
}

/// An attach that failed.
#[derive(Debug)]
struct HookError {
    reason: &'static str,
    message: String,
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HookError {}

impl HookError {
    fn new(reason: &'static str, message: impl fmt::Display) -> Self {
        Self { reason, message: message.to_string() }
    }
}

impl NriPlugin for Hooks {
    async fn synchronize(
        &self,
        _call: &Call,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> Result<Vec<ContainerUpdate>, drakkar_nri::BoxError> {
        self.begin_repair(pods, containers);
        Ok(Vec::new())
    }

    async fn run_pod_sandbox(&self, call: &Call, pod: &PodSandbox) -> Result<(), drakkar_nri::BoxError> {
        Ok(self.run(pod, Caller::runtime(call)).await?)
    }

    async fn create_container(
        &self,
        _call: &Call,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Adjustments, drakkar_nri::BoxError> {
        self.confirm(&pod.id);
        self.check_container(pod, container)?;
        Ok(Adjustments::default())
    }

    async fn stop_pod_sandbox(&self, _call: &Call, pod: &PodSandbox) {
        self.end(Hook::Stop, pod).await;
    }

    async fn remove_pod_sandbox(&self, _call: &Call, pod: &PodSandbox) {
        self.end(Hook::Remove, pod).await;
    }
}

impl Hooks {
    pub(crate) fn new(
        claims: Arc<Claims>,
        attacher: Arc<dyn Attacher>,
        published: Arc<dyn Published>,
        reports: Arc<dyn Reports>,
        metrics: Metrics,
    ) -> Self {
        let slots = std::array::from_fn(|_| tokio::sync::Mutex::new(()));
        Self(Arc::new(Inner {
            claims,
            attacher,
            published,
            reports,
            metrics,
            slots,
            logged: Mutex::default(),
            repairs: Mutex::default(),
            repairing: tokio::sync::Mutex::default(),
            confirmations: Mutex::default(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Attaches the interfaces of a pod whose sandbox runs.
    async fn run(&self, pod: &PodSandbox, caller: Caller) -> Result<(), HookError> {
        let Some(pod_uid) = pod.pod_uid().filter(|uid| self.0.claims.has_interfaces_for(uid)) else { return Ok(()) };
        let start = Instant::now();
        let outcome = match sandbox(pod, pod_uid) {
            Some(sandbox) => self.run_sandbox(&sandbox, &caller).await,
            None => {
                let message = format!(
                    "pod {}: it uses the host's network, so it cannot have interfaces of its own: remove hostNetwork or the claim",
                    pod.pod_name()
                );
                let error = HookError::new(reason::HOST_NETWORK, message);
                self.withdraw_all(self.0.claims.of_pod(pod_uid), error.reason, &error.message).await;
                Err(error)
            }
        };
        self.0.metrics.attached(outcome.is_ok());
        self.0.metrics.hook(Hook::Run, start.elapsed());
        outcome
    }

    /// Attaches the interfaces of a pod for the runtime, which may be gone before it has the answer.
    async fn run_sandbox(&self, sandbox: &Sandbox, caller: &Caller) -> Result<(), HookError> {
        self.expect_confirmation(sandbox);
        let outcome = self.attach(sandbox, caller).await;
        match (caller.abandonment)() {
            _ if outcome.is_err() => self.confirm(&sandbox.id),
            Some(Abandoned::Disconnected) => self.hold_back(sandbox).await,
            Some(Abandoned::Deadline) | None => {}
        }
        outcome
    }

    /// Brings back the interfaces that are in a sandbox.
    async fn end(&self, hook: Hook, pod: &PodSandbox) {
        self.confirm(&pod.id);
        self.repairs().remove(&pod.id);
        if !self.0.claims.is_in_use(&pod.id) {
            return;
        }
        let start = Instant::now();
        self.detach(&pod.id, reason::DETACHED, "the pod's sandbox has stopped").await;
        self.0.metrics.hook(hook, start.elapsed());
    }

    /// Attaches the interfaces of a pod, opens the gate and reports. If anything fails, everything is taken back.
    async fn attach(&self, sandbox: &Sandbox, caller: &Caller) -> Result<(), HookError> {
        let outcome = self.try_attach(sandbox, caller).await;
        if let Err(error) = &outcome {
            tracing::warn!(pod = sandbox.pod, sandbox = sandbox.id, %error, "interfaces not attached");
            self.restore(&sandbox.id).await;
            // All of the pod's claims: an earlier sandbox may have opened their gates.
            self.withdraw_all(self.0.claims.of_pod(&sandbox.pod_uid), error.reason, &error.message).await;
        } else {
            tracing::info!(pod = sandbox.pod, sandbox = sandbox.id, "interfaces attached");
        }
        self.changed(&self.0.claims.of_pod(&sandbox.pod_uid));
        outcome
    }

    async fn try_attach(&self, sandbox: &Sandbox, caller: &Caller) -> Result<(), HookError> {
        let attached = self.attach_interfaces(sandbox.clone(), caller.clone()).await?;
        if (caller.abandonment)() == Some(Abandoned::Disconnected) {
            // The pod may go on without an answer, and then it needs its interfaces; or the runtime has discarded the sandbox. Which
            // of them, its next list says, and then the gate is opened.
            return Ok(());
        }
        for claim in attached.iter().filter(|claim| claim.is_new) {
            self.publish(&claim.record, sandbox).await?;
        }
        match (caller.abandonment)() {
            // The runtime has answered with an error and stops the pod.
            Some(Abandoned::Deadline) => {
                Err(HookError::new("Timeout", format!("pod {}: the runtime no longer waits", sandbox.pod)))
            }
            Some(Abandoned::Disconnected) | None => Ok(()),
        }
    }

    /// Does what blocks, on a thread of its own.
    async fn attach_interfaces(&self, sandbox: Sandbox, caller: Caller) -> Result<Vec<AttachedClaim>, HookError> {
        let inner = self.0.clone();
        let work = tokio::task::spawn_blocking(move || {
            let is_over = || (caller.abandonment)() == Some(Abandoned::Deadline);
            let patience = Patience { deadline: caller.deadline, is_over: &is_over };
            inner.claims.attach(&sandbox, &patience)
        });
        match work.await {
            Ok(outcome) => outcome.map_err(|error| HookError::new(error.reason(), error)),
            Err(error) => Err(HookError::new(reason::ATTACH_FAILED, error)),
        }
    }

    /// Writes what containers see of a claim, and notes that in the journal.
    async fn publish(&self, record: &Record, sandbox: &Sandbox) -> Result<(), HookError> {
        const NOT_WRITTEN: &str = "MetadataNotWritten";
        let _slot = self.slot(&record.claim.uid).lock().await;
        for (request, devices) in metadata::requests(record) {
            let published = self.0.reports.publish(&record.claim, &request, devices, &sandbox.pod);
            published.await.map_err(|error| HookError::new(NOT_WRITTEN, error))?;
        }
        let claims = self.0.claims.clone();
        let uid = record.claim.uid.clone();
        let sandbox_id = sandbox.id.clone();
        let marked = tokio::task::spawn_blocking(move || claims.mark_published(&uid, &sandbox_id)).await;
        let marked = marked.map_err(BoxError::from).and_then(|marked| Ok(marked?));
        match marked {
            Ok(true) => Ok(()),
            Ok(false) => {
                let message = format!("claim {}: {sandbox} was stopped meanwhile", record.claim);
                Err(HookError::new(reason::DETACHED, message))
            }
            Err(error) => Err(HookError::new(NOT_WRITTEN, error)),
        }
    }

    /// Brings back the interfaces that are in a sandbox, closes the gate and reports why.
    async fn detach(&self, sandbox_id: &str, why: &'static str, message: &str) {
        let claims = self.restore(sandbox_id).await;
        self.changed(&claims);
        self.withdraw_all(claims, why, message).await;
    }

    /// Brings back the interfaces that are in a sandbox. Returns the claims that had some there.
    async fn restore(&self, sandbox_id: &str) -> Vec<Record> {
        let before = self.0.claims.in_sandbox(sandbox_id);
        if before.is_empty() {
            return before;
        }
        let claims = self.0.claims.clone();
        let id = sandbox_id.to_owned();
        let outcome = tokio::task::spawn_blocking(move || claims.detach(&id)).await;
        let outcome = outcome.map_err(BoxError::from).and_then(|detached| Ok(detached?));
        self.0.metrics.restored(outcome.is_ok());
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(_) => {
                logged.forget(&sandbox_id.to_owned());
                tracing::info!(sandbox = sandbox_id, "interfaces brought back");
            }
            Err(error) => {
                if logged.is_new(sandbox_id.to_owned(), &error.to_string()) {
                    tracing::error!(sandbox = sandbox_id, %error, "interfaces not brought back, trying again");
                }
            }
        }
        before
    }

    async fn withdraw_all(&self, records: Vec<Record>, why: &'static str, message: &str) {
        for record in records {
            self.withdraw(&record, why, message).await;
        }
    }

    /// Closes the gate of a claim, unless its interfaces are in another sandbox by now.
    async fn withdraw(&self, record: &Record, why: &'static str, message: &str) {
        let _slot = self.slot(&record.claim.uid).lock().await;
        let now = self.0.claims.find(&record.claim.uid);
        if now.as_ref().is_none_or(is_attached) {
            return;
        }
        self.close_gate(record).await;
        let statuses = with_interface(record).map(|device| metadata::status(device).not_ready(why, message));
        self.0.reports.report(&record.claim, statuses.collect());
    }

    /// Takes back what containers see of a claim. The caller has its slot.
    async fn close_gate(&self, record: &Record) {
        let mut requests: Vec<&str> = with_interface(record).map(|device| base(&device.request)).collect();
        requests.dedup();
        for request in requests {
            if let Err(error) = self.0.reports.withdraw(&record.claim, request).await {
                tracing::error!(claim = %record.claim, request, %error, "metadata not withdrawn");
            }
        }
    }

    /// Tells those who publish devices that claims have changed. They read interfaces again, which the runtime does not wait for.
    fn changed(&self, records: &[Record]) {
        self.0.metrics.held(self.0.claims.count());
        let devices = records.iter().flat_map(|record| &record.devices).map(|device| device.device.clone()).collect();
        let published = self.0.published.clone();
        self.0.tasks.spawn_blocking(move || published.claims_changed(devices));
    }

    fn slot(&self, uid: &ClaimUid) -> &tokio::sync::Mutex<()> {
        let hash = uid.as_str().bytes().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        &self.0.slots[hash % SLOTS]
    }

    fn repairs(&self) -> MutexGuard<'_, BTreeMap<String, Sandbox>> {
        // The map is whole after every operation on it, also if a thread panicked.
        self.0.repairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirmations(&self) -> MutexGuard<'_, Confirmations> {
        // As with repairs.
        self.0.confirmations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether interfaces of a claim are in a pod.
fn is_attached(record: &Record) -> bool {
    record.interfaces().any(|interface| matches!(interface.phase, Phase::Attached { .. }))
}

fn with_interface(record: &Record) -> impl Iterator<Item = &DeviceRecord> {
    record.devices.iter().filter(|device| device.interface().is_some())
}

/// Returns the sandbox of a pod. `None`: it uses the host's network.
fn sandbox(pod: &PodSandbox, pod_uid: &str) -> Option<Sandbox> {
    Some(Sandbox {
        id: pod.id.clone(),
        pod_uid: pod_uid.to_owned(),
        pod: pod.pod_name(),
        namespace: pod.network_namespace()?.to_owned(),
    })
}
