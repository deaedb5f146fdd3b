//! Repairs after a time without a connection to the runtime: what should be attached is attached, what is gone is brought back.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_nri::PodSandboxExt as _;
use drakkar_nri::api::{Container, PodSandbox};
use drakkar_plugin::ClaimRef;

use super::{Caller, Hooks, is_attached, sandbox};
use crate::attacher::Sandbox;
use crate::journal::{Phase, Record};

impl Hooks {
    /// Begins to repair what has happened while the runtime was not connected. The runtime does not wait for it: a repair
    /// can take longer than it would, and a call for the same claim waits for its turn.
    pub(super) fn begin_repair(&self, pods: &[PodSandbox], containers: &[Container]) {
        // Before what is complete is looked for: a gate that is closed from now on is seen there, or opened by who closes it.
        // Also if nobody has noticed that the connection was lost, because the next one came at once.
        let discarded = self.confirm_listed(pods);
        for sandbox in self.running(pods, containers) {
            self.repairs().insert(sandbox.id.clone(), sandbox);
        }
        let hooks = self.clone();
        self.0.tasks.spawn(async move {
            hooks.hold_back_all(discarded).await;
            // What is in a namespace that is gone comes first: a pod's next sandbox may need it.
            hooks.retry().await;
            hooks.repair().await;
        });
    }

    /// Attaches interfaces to running sandboxes that should have them. What fails is tried again by the next call.
    pub(crate) async fn repair(&self) {
        // One after the other: a sandbox that another repair has finished meanwhile would be taken for one that has stopped.
        let _repairing = self.0.repairing.lock().await;
        let waiting: Vec<Sandbox> = self.repairs().values().cloned().collect();
        for sandbox in waiting {
            let is_there = self.0.attacher.namespace(&sandbox.namespace).is_some();
            if is_there && self.attach(&sandbox, &Caller::nobody()).await.is_err() {
                continue;
            }
            // It was stopped while it was repaired, and the stop has found nothing to bring back.
            if self.repairs().remove(&sandbox.id).is_none() {
                self.detach(&sandbox.id, crate::metadata::reason::DETACHED, "the pod's sandbox has stopped").await;
            }
        }
    }

    /// Brings back what could not be brought back before, and what is in namespaces that are gone. Writes what the disk did not take.
    pub(crate) async fn retry(&self) {
        let claims = self.0.claims.clone();
        let work = tokio::task::spawn_blocking(move || {
            claims.write_unwritten();
            claims.left_over_sandboxes()
        });
        let sandboxes = work.await.unwrap_or_default();
        for id in sandboxes {
            self.detach(&id, crate::metadata::reason::DETACHED, "the pod's network namespace is gone").await;
        }
    }

    /// Closes the gates of claims whose interfaces were brought back at the start: an earlier process has opened them.
    pub(crate) fn close_gates(&self, claims: Vec<ClaimRef>) {
        let hooks = self.clone();
        self.0.tasks.spawn(async move {
            let records = claims.into_iter().filter_map(|claim| hooks.0.claims.find(&claim.uid)).collect();
            let message =
                "an earlier process of the driver has ended before the interface was attached, or its pod was gone";
            hooks.withdraw_all(records, crate::metadata::reason::DETACHED, message).await;
        });
    }

    /// Closes the gate of a claim that was prepared again, if its interfaces are in no pod: an earlier pod had them, or a process that
    /// has ended. Not at once, but when the kubelet has its answer: until then the framework keeps the claim's files locked.
    pub(crate) fn close_gate_after_prepare(&self, claim: &ClaimRef) {
        let hooks = self.clone();
        let uid = claim.uid.clone();
        self.0.tasks.spawn(async move {
            let _slot = hooks.slot(&uid).lock().await;
            if let Some(record) = hooks.0.claims.find(&uid).filter(|record| !is_attached(record)) {
                hooks.close_gate(&record).await;
            }
        });
    }

    /// Waits until no repair is going on.
    pub(crate) async fn finish(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Returns the sandboxes that run and whose claims are not, or not completely, attached.
    ///
    /// Stopped sandboxes are among those of the runtime, with no mark, and a pod can have several: that with a network namespace
    /// and containers is the one that runs, else the last with a namespace.
    fn running(&self, pods: &[PodSandbox], containers: &[Container]) -> Vec<Sandbox> {
        let with_containers: BTreeSet<&str> =
            containers.iter().map(|container| container.pod_sandbox_id.as_str()).collect();
        let mut running: BTreeMap<&str, Sandbox> = BTreeMap::new();
        for pod in pods {
            let Some(uid) = pod.pod_uid().filter(|uid| self.0.claims.has_interfaces_for(uid)) else { continue };
            let Some(sandbox) = sandbox(pod, uid) else { continue };
            if self.0.attacher.namespace(&sandbox.namespace).is_none() {
                continue;
            }
            let has_containers = |sandbox: &Sandbox| with_containers.contains(sandbox.id.as_str());
            match running.get(uid) {
                Some(other) if has_containers(other) && !has_containers(&sandbox) => {}
                _ => drop(running.insert(uid, sandbox)),
            }
        }
        running.into_values().filter(|sandbox| !self.is_complete(sandbox)).collect()
    }

    /// Returns whether all interfaces of a pod are in its sandbox, and containers see them.
    fn is_complete(&self, sandbox: &Sandbox) -> bool {
        let records = self.0.claims.of_pod(&sandbox.pod_uid);
        let mut interfaces = records.iter().flat_map(Record::interfaces);
        interfaces.all(|interface| match &interface.phase {
            Phase::Attached { place, is_published, .. } => place.sandbox.id == sandbox.id && *is_published,
            _ => false,
        })
    }
}
