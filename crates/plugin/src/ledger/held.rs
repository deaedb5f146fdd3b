//! The claims that hold devices, as people read them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::SystemTime;

use drakkar_client::ClaimRef;

use super::DeviceLedger;
use super::entries::{LedgerEntry, State};
use crate::claim::Claim;
use crate::store::DeviceUse;

/// The number of pods of a claim whose names are kept. A claim can be reserved for 256.
const MAX_PODS: usize = 4;

/// A claim that holds devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldClaim {
    pub(crate) claim: ClaimRef,
    pub(crate) state: HeldState,
    /// The time since which it is prepared, or else holds its devices; `None` for a claim that another process prepared.
    pub(crate) since: Option<SystemTime>,
    pub(crate) pods: Pods,
    pub(crate) devices: Box<[DeviceUse]>,
}

/// How far the prepare of a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldState {
    /// The last prepare succeeded.
    Prepared,
    /// The prepare is running, failed or was cancelled.
    Unfinished,
}

/// The pods that a claim was reserved for when it was prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    /// The first of them.
    pub(crate) names: Box<[String]>,
    /// The number of the others.
    pub(crate) more: usize,
}

impl Pods {
    /// Returns the consumers of a claim that are pods.
    pub(super) fn of(claim: &Claim) -> Self {
        let pods = || claim.summary().reserved_for.iter().filter(|consumer| consumer.resource == "pods");
        let count = pods().count();
        let mut names = Vec::with_capacity(count.min(MAX_PODS));
        names.extend(pods().take(MAX_PODS).map(|pod| pod.name.clone()));
        Self { more: count - names.len(), names: names.into() }
    }
}

impl DeviceLedger {
    /// Returns the claims that were prepared last, at most `limit`, the last first, and the number of all claims.
    ///
    /// The ledger is locked for one pass over its claims, and only those that are returned are copied.
    pub(crate) fn held_claims(&self, limit: usize) -> (Vec<HeldClaim>, usize) {
        let entries = self.lock();
        let mut all: Vec<&LedgerEntry> = entries.claims.values().collect();
        let total = all.len();
        if total > limit {
            all.select_nth_unstable_by_key(limit, |entry| Reverse(entry.id));
            all.truncate(limit);
        }
        let mut held: Vec<(u64, HeldClaim)> = all.into_iter().map(|entry| (entry.id, HeldClaim::of(entry))).collect();
        drop(entries);
        held.sort_unstable_by_key(|(id, _)| Reverse(*id));
        (held.into_iter().map(|(_, claim)| claim).collect(), total)
    }
}

impl DeviceLedger {
    /// Returns the claims that hold each of these devices of a pool.
    pub(crate) fn holders_of(&self, pool: &str, devices: &[Arc<str>]) -> Vec<Vec<ClaimRef>> {
        let entries = self.lock();
        devices.iter().map(|device| entries.claims_with(pool, device).cloned().collect()).collect()
    }
}

impl HeldClaim {
    fn of(entry: &LedgerEntry) -> Self {
        Self {
            claim: entry.claim.clone(),
            state: match &entry.state {
                State::Prepared(_) => HeldState::Prepared,
                State::Reserved { .. } | State::Unfinished { .. } => HeldState::Unfinished,
            },
            since: entry.since,
            pods: entry.pods.clone(),
            devices: entry.uses.clone(),
        }
    }
}
