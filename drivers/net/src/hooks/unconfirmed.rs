//! Sandboxes that the runtime may have discarded: their gates are closed while it is not connected.
//!
//! A runtime that ends while it waits for `RunPodSandbox`, or before it has read the answer, discards the sandbox, and the kubelet's
//! next attempt gets another one. If that runs before the driver is connected again, the driver does not see it, and a gate that was
//! opened for the first sandbox would let containers start in the second without their interfaces.
//!
//! A sandbox is confirmed by the first container in it, or when the runtime lists it. When the connection is lost, the gates of those
//! that are not confirmed are closed; their interfaces stay where they are. The runtime's next list opens the gates of those that
//! it knows, and closes those of the others: a loss that is followed by a new connection at once may go unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_nri::api::PodSandbox;
use drakkar_plugin::BoxError;

use super::Hooks;
use crate::attacher::Sandbox;
use crate::journal::Record;

/// Which sandboxes the runtime is known to have.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// Sandboxes whose `RunPodSandbox` was handled and that nothing was heard of since, by id.
    unconfirmed: BTreeMap<String, Sandbox>,
    /// The ids of the runtime's last list.
    listed: BTreeSet<String>,
}

impl Hooks {
    /// Remembers a sandbox that begins to run.
    pub(super) fn expect_confirmation(&self, sandbox: &Sandbox) {
        self.confirmations().unconfirmed.insert(sandbox.id.clone(), sandbox.clone());
    }

    /// The runtime knows a sandbox, or has ended it.
    pub(super) fn confirm(&self, sandbox_id: &str) {
        self.confirmations().unconfirmed.remove(sandbox_id);
    }

    /// The runtime knows these sandboxes. Returns those that it may have discarded: a list comes before the events of its connection.
    pub(super) fn confirm_listed(&self, pods: &[PodSandbox]) -> Vec<Sandbox> {
        let mut confirmations = self.confirmations();
        confirmations.listed = pods.iter().map(|pod| pod.id.clone()).collect();
        // A sandbox with nothing in it is gone, or is about to be attached by a call whose connection is lost, which is noticed there.
        let claims = &self.0.claims;
        let Confirmations { unconfirmed, listed } = &mut *confirmations;
        unconfirmed.retain(|id, _| !listed.contains(id) && claims.is_in_use(id));
        unconfirmed.values().cloned().collect()
    }

    /// Begins to close the gates of all sandboxes that the runtime may have discarded: it is not connected any more.
    pub(crate) fn disconnected(&self) {
        let unconfirmed: Vec<Sandbox> = self.confirmations().unconfirmed.values().cloned().collect();
        if unconfirmed.is_empty() {
            return;
        }
        let hooks = self.clone();
        self.0.tasks.spawn(async move { hooks.hold_back_all(unconfirmed).await });
    }

    pub(super) async fn hold_back_all(&self, sandboxes: Vec<Sandbox>) {
        for sandbox in sandboxes {
            self.hold_back(&sandbox).await;
        }
    }

    /// Closes the gates of a sandbox, unless the runtime is known to have it, and leaves its interfaces there. The runtime's next list
    /// opens them again.
    pub(super) async fn hold_back(&self, sandbox: &Sandbox) {
        if !self.confirmations().unconfirmed.contains_key(&sandbox.id) {
            return;
        }
        for record in self.0.claims.in_sandbox(&sandbox.id) {
            let _slot = self.slot(&record.claim.uid).lock().await;
            match self.mark_held_back(&record, sandbox).await {
                Ok(true) => {
                    tracing::info!(claim = %record.claim, %sandbox, "metadata held back until the runtime is connected");
                    self.close_gate(&record).await;
                }
                Ok(false) => {}
                Err(error) => tracing::error!(claim = %record.claim, %sandbox, %error, "metadata not held back"),
            }
        }
        // The list came meanwhile, and found everything in its place.
        let is_listed = self.confirmations().listed.contains(&sandbox.id);
        if is_listed && self.0.claims.is_in_use(&sandbox.id) {
            self.repairs().insert(sandbox.id.clone(), sandbox.clone());
            self.repair().await;
        }
    }

    async fn mark_held_back(&self, record: &Record, sandbox: &Sandbox) -> Result<bool, BoxError> {
        let claims = self.0.claims.clone();
        let uid = record.claim.uid.clone();
        let sandbox_id = sandbox.id.clone();
        Ok(tokio::task::spawn_blocking(move || claims.mark_held_back(&uid, &sandbox_id)).await??)
    }
}
