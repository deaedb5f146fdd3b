//! Waits for devices that another claim still holds.
//!
//! For the scheduler, a pod that was deleted by force is gone at once, and its devices are allocated to the next one. On the
//! node, the kubelet unprepares the old claim a moment later, and possibly prepares the new claim before that. If that
//! prepare failed right away, the kubelet would retry it only after a minute. So a prepare waits, with no lock held:
//!
//! 1. When a holder is first seen, the API server is asked about it: it may know shares that a record does not have.
//! 2. The kubelet gets `device_timeout` to unprepare the holder; no time at all if it never unprepares that claim.
//! 3. Then the API server decides ([`super::resolve_holders`]): a holder that is gone is unprepared, and the waiting claim
//!    is retried; any other holder keeps its device, and the waiting claim fails.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::ClaimRef;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::driver_response::PreparedDevice;
use super::error::ClaimError;
use super::resolve_holders::HolderState;
use super::{Responses, Service};
use crate::driver::DraPlugin;
use crate::ledger::{Conflict, Holder, Unpreparer};

/// The interval at which the disk is checked for what another instance of the driver does.
const DISK_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The delay after a retry that ran into another holder.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The time limit for asking the API server about holders, and for locking a holder.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after its start at which a call is no longer retried. The kubelet gives a call 45 s, and the driver needs some.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of a call whose claims wait for devices.
struct DeviceWait<'a> {
    /// All claims of the call, by UID.
    claims: &'a BTreeMap<String, ClaimRef>,
    /// When the call stops waiting.
    deadline: Instant,
    /// The holders seen so far, by the ID of their ledger entry.
    seen: HashMap<u64, SeenHolder>,
    /// The claims to retry although their holders are still there.
    retry: BTreeSet<String>,
    /// The claims that are not retried.
    failed: BTreeSet<String>,
    is_logged: bool,
}

/// A holder that claims of this call wait for.
#[derive(Clone, Copy)]
struct SeenHolder {
    since: Instant,
    /// Whether the API server has been asked about it.
    is_checked: bool,
}

impl<P: DraPlugin> Service<P> {
    /// Retries the claims of a call that failed because others hold their devices, once these are released.
    pub(super) async fn resolve_conflicts(
        &self,
        claims: &BTreeMap<String, ClaimRef>,
        responses: &mut Responses<Vec<PreparedDevice>>,
        started: Instant,
    ) {
        if !responses.values().any(is_conflict) {
            return;
        }
        let wait = DeviceWait {
            claims,
            deadline: started + RETRY_TIMEOUT,
            seen: HashMap::new(),
            retry: BTreeSet::new(),
            failed: BTreeSet::new(),
            is_logged: false,
        };
        // Boxed because it is rare and large: the future of a prepare without conflicts stays small.
        Box::pin(self.wait_for_devices(wait, responses)).await;
    }

    async fn wait_for_devices(&self, mut wait: DeviceWait<'_>, responses: &mut Responses<Vec<PreparedDevice>>) {
        while Instant::now() < wait.deadline {
            // Subscribed before the ledger is checked, so that no release is missed.
            let mut releases = self.ledger.releases();
            let blocked = wait.blocked(responses);
            if blocked.is_empty() {
                return;
            }
            let mut free = Vec::new();
            for (uid, conflict) in &blocked {
                if wait.retry.remove(uid) || self.all_released(conflict).await {
                    free.extend(wait.claims.get(uid));
                }
            }
            if !free.is_empty() {
                self.prepare_references(free.clone(), responses).await;
                // Another claim may have taken the device meanwhile. Slows down two claims that keep displacing each other.
                if free.iter().any(|claim| responses.get(claim.uid.as_str()).is_some_and(is_conflict)) {
                    sleep_until(wait.deadline.min(Instant::now() + RETRY_DELAY)).await;
                }
                continue;
            }
            let due = self.due_for_check(&wait, &blocked);
            if due.is_empty() {
                wait.log(&blocked);
                let next = self.next_check(&wait, &blocked);
                // A release and the timeout have the same effect: everything is checked again.
                let _ = timeout_at(next, releases.changed()).await;
                continue;
            }
            let deadline = wait.deadline.min(Instant::now() + RESOLVE_TIMEOUT);
            let has_any_timed_out = due.iter().any(|holder| self.has_timed_out(&wait, holder));
            let states = tokio::select! {
                states = self.check_holders(&due, deadline) => states,
                // The first check of a holder is pointless once the kubelet has unprepared it.
                _ = releases.changed(), if !has_any_timed_out => continue,
            };
            for (holder, state) in due.iter().zip(states) {
                self.handle_holder(&mut wait, holder, state, &blocked, responses).await;
            }
        }
    }

    /// Retries or fails the claims that wait for a holder, depending on the holder's state.
    async fn handle_holder(
        &self,
        wait: &mut DeviceWait<'_>,
        holder: &Holder,
        state: HolderState,
        blocked: &[(String, Conflict)],
        responses: &mut Responses<Vec<PreparedDevice>>,
    ) {
        let has_timed_out = self.has_timed_out(wait, holder);
        if let Some(seen) = wait.seen.get_mut(&holder.entry_id()) {
            seen.is_checked = true;
        }
        let waiting = blocked.iter().filter(|(_, conflict)| has_holder(conflict, holder));
        let error = match state {
            HolderState::Allocated { is_corrected: true } => {
                wait.retry.extend(waiting.map(|(uid, _)| uid.clone()));
                return;
            }
            _ if !has_timed_out => return,
            HolderState::Allocated { is_corrected: false } => None,
            HolderState::Unknown(error) => Some(error),
            HolderState::Gone(reason) => {
                let Some((_, conflict)) = waiting.clone().next() else { return };
                let deadline = wait.deadline.min(Instant::now() + RESOLVE_TIMEOUT);
                match self.unprepare_gone_holder(holder, conflict, &reason, deadline).await {
                    Ok(()) => return,
                    Err(error) => Some(error),
                }
            }
        };
        let error = error.map(Arc::new);
        for (uid, conflict) in waiting {
            wait.failed.insert(uid.clone());
            if let Some(source) = &error {
                let conflict = Box::new(conflict.clone());
                responses.insert(uid.clone(), Err(ClaimError::Holder { conflict, source: source.clone() }));
            }
        }
    }

    /// Returns the holders to ask the API server about: those not checked yet, and those that have timed out.
    fn due_for_check(&self, wait: &DeviceWait<'_>, blocked: &[(String, Conflict)]) -> Vec<Holder> {
        let mut due: Vec<Holder> = Vec::new();
        for holder in blocked.iter().flat_map(|(_, conflict)| conflict.holders()) {
            let is_unchecked = wait.seen.get(&holder.entry_id()).is_some_and(|seen| !seen.is_checked);
            let is_listed = due.iter().any(|other| other.entry_id() == holder.entry_id());
            if (is_unchecked || self.has_timed_out(wait, holder)) && !is_listed && self.ledger.still_holds(holder) {
                due.push(holder.clone());
            }
        }
        due
    }

    /// Whether the kubelet's time to unprepare a holder is over.
    fn has_timed_out(&self, wait: &DeviceWait<'_>, holder: &Holder) -> bool {
        holder.unpreparer() == Unpreparer::None || self.unprepare_deadline(wait, holder) <= Instant::now()
    }

    fn unprepare_deadline(&self, wait: &DeviceWait<'_>, holder: &Holder) -> Instant {
        let since = wait.seen.get(&holder.entry_id()).map_or_else(Instant::now, |seen| seen.since);
        since + self.settings.device_timeout
    }

    /// Returns when to check again if nothing is released in this process before.
    fn next_check(&self, wait: &DeviceWait<'_>, blocked: &[(String, Conflict)]) -> Instant {
        let holders = blocked.iter().flat_map(|(_, conflict)| conflict.holders());
        let deadlines = holders.map(|holder| self.unprepare_deadline(wait, holder));
        let disk_check = self.locks.are_shared().then(|| Instant::now() + DISK_CHECK_INTERVAL);
        // A deadline in the past belongs to a holder that has released its device, while another holder of the same conflict
        // has not.
        let now = Instant::now();
        deadlines.filter(|deadline| *deadline > now).chain(disk_check).fold(wait.deadline, Instant::min)
    }

    /// Whether all holders of a conflict have released their devices.
    async fn all_released(&self, conflict: &Conflict) -> bool {
        for holder in conflict.holders() {
            if self.ledger.still_holds(holder) && !self.is_unprepared_elsewhere(holder).await {
                return false;
            }
        }
        true
    }
}

impl DeviceWait<'_> {
    /// Returns the UIDs of the claims that wait for others, each with its conflict.
    fn blocked(&mut self, responses: &Responses<Vec<PreparedDevice>>) -> Vec<(String, Conflict)> {
        let mut blocked = Vec::new();
        for (uid, response) in responses.iter().filter(|(uid, _)| !self.failed.contains(*uid)) {
            let Err(ClaimError::Conflict(conflict)) = response else { continue };
            // The kubelet does not unprepare a claim of this call before it has the response.
            if conflict.holders().any(|holder| self.claims.contains_key(holder.claim().uid.as_str())) {
                continue;
            }
            for holder in conflict.holders() {
                let seen = SeenHolder { since: Instant::now(), is_checked: false };
                self.seen.entry(holder.entry_id()).or_insert(seen);
            }
            blocked.push((uid.clone(), conflict.clone()));
        }
        blocked
    }

    /// Logs, once, which claims wait for which.
    fn log(&mut self, blocked: &[(String, Conflict)]) {
        if std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        for (_, conflict) in blocked {
            let claim = conflict.claim();
            for holder in conflict.holders() {
                tracing::info!(%claim, holder = %holder.claim(), "claim waits for a device that another claim holds");
            }
        }
    }
}

fn is_conflict<T>(response: &Result<T, ClaimError>) -> bool {
    matches!(response, Err(ClaimError::Conflict(_)))
}

fn has_holder(conflict: &Conflict, holder: &Holder) -> bool {
    conflict.holders().any(|other| other.entry_id() == holder.entry_id())
}
