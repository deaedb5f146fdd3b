//! Waiting for devices that another claim still has.
//!
//! A pod that was removed by force is gone for the scheduler at once, which gives its devices to the next. On the node the
//! kubelet unprepares the old claim a moment later, and maybe prepares the new one before that. If that were refused at
//! once, the kubelet would come back only after a minute. So a prepare waits, with nothing locked:
//!
//! 1. When a holder is met, the API server is asked for it: it may know shares that a record does not tell.
//! 2. The kubelet has the time of `device_patience` to unprepare it; none if it never unprepares that claim.
//! 3. After that the API server decides ([`super::settling`]): a holder that is gone is unprepared, and the claim tried again;
//!    any other keeps its device, and the claim is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::AnsweredDevice;
use super::error::ClaimError;
use super::settling::Verdict;
use super::{Answers, Service};
use crate::driver::DraPlugin;
use crate::ledger::{Conflict, Holder, Unpreparer};
use drakkar_client::ClaimRef;

/// How often to look at what another instance of the driver does, which is seen only on disk.
const LOOK: Duration = Duration::from_millis(250);
/// The pause after a retry that met another holder.
const PACE: Duration = Duration::from_millis(100);
/// How long the API server, and whoever works on a holder, are waited for.
const SETTLING: Duration = Duration::from_secs(10);
/// How long after its begin a call is still retried. A kubelet gives it 45 s, of which the driver needs some.
const LIMIT: Duration = Duration::from_secs(30);

/// What the claims of one call wait for.
struct Wait<'a> {
    wanted: &'a BTreeMap<String, ClaimRef>,
    /// When to give up.
    limit: Instant,
    /// The holders that were met, by their number.
    met: HashMap<u64, Met>,
    /// The claims that are to be tried again though their holders are still there.
    retried: BTreeSet<String>,
    /// The claims that are not tried again.
    refused: BTreeSet<String>,
    is_logged: bool,
}

/// A holder that was met.
#[derive(Clone, Copy)]
struct Met {
    since: Instant,
    was_asked_for: bool,
}

impl<P: DraPlugin> Service<P> {
    /// Prepares the claims of a call that were refused because of others, once these have no device of them any more.
    pub(super) async fn settle_conflicts(
        &self,
        wanted: &BTreeMap<String, ClaimRef>,
        answers: &mut Answers<Vec<AnsweredDevice>>,
        begun: Instant,
    ) {
        if !answers.values().any(is_conflict) {
            return;
        }
        let wait = Wait {
            wanted,
            limit: begun + LIMIT,
            met: HashMap::new(),
            retried: BTreeSet::new(),
            refused: BTreeSet::new(),
            is_logged: false,
        };
        // Rare, and large: whoever does not need it does not carry it around.
        Box::pin(self.wait_for_devices(wait, answers)).await;
    }

    async fn wait_for_devices(&self, mut wait: Wait<'_>, answers: &mut Answers<Vec<AnsweredDevice>>) {
        while Instant::now() < wait.limit {
            // From before the look, so that nothing is missed.
            let mut releases = self.ledger.releases();
            let blocked = wait.blocked(answers);
            if blocked.is_empty() {
                return;
            }
            let mut free = Vec::new();
            for (uid, conflict) in &blocked {
                if wait.retried.remove(uid) || self.have_released(conflict).await {
                    free.extend(wait.wanted.get(uid));
                }
            }
            if !free.is_empty() {
                self.prepare_references(free.clone(), answers).await;
                // Another may have been quicker, and is in the way now. Two that chase each other do so slowly.
                if free.iter().any(|claim| answers.get(claim.uid.as_str()).is_some_and(is_conflict)) {
                    sleep_until(wait.limit.min(Instant::now() + PACE)).await;
                }
                continue;
            }
            let due = self.due(&wait, &blocked);
            if due.is_empty() {
                wait.log(&blocked);
                let next = self.next_look(&wait, &blocked);
                // Whether something was released or it is only time to look again makes no difference.
                let _ = timeout_at(next, releases.changed()).await;
                continue;
            }
            let deadline = wait.limit.min(Instant::now() + SETTLING);
            let is_any_over = due.iter().any(|holder| self.is_over(&wait, holder));
            let verdicts = tokio::select! {
                verdicts = self.ask_for(&due, deadline) => verdicts,
                // It is not needed any more if the kubelet is faster.
                _ = releases.changed(), if !is_any_over => continue,
            };
            for (holder, verdict) in due.iter().zip(verdicts) {
                self.judge(&mut wait, holder, verdict, &blocked, answers).await;
            }
        }
    }

    /// Does what the API server's word on a holder means for the claims that it is in the way of.
    async fn judge(
        &self,
        wait: &mut Wait<'_>,
        holder: &Holder,
        verdict: Verdict,
        blocked: &[(String, Conflict)],
        answers: &mut Answers<Vec<AnsweredDevice>>,
    ) {
        let is_over = self.is_over(wait, holder);
        if let Some(met) = wait.met.get_mut(&holder.number()) {
            met.was_asked_for = true;
        }
        let behind = blocked.iter().filter(|(_, conflict)| is_behind(conflict, holder));
        let refusal = match verdict {
            Verdict::Allocated { is_corrected: true } => {
                wait.retried.extend(behind.map(|(uid, _)| uid.clone()));
                return;
            }
            _ if !is_over => return,
            Verdict::Allocated { is_corrected: false } => None,
            Verdict::Unknown(refusal) => Some(refusal),
            Verdict::Gone(reason) => {
                let Some((_, conflict)) = behind.clone().next() else { return };
                let deadline = wait.limit.min(Instant::now() + SETTLING);
                match self.take_from(holder, conflict, &reason, deadline).await {
                    Ok(()) => return,
                    Err(refusal) => Some(refusal),
                }
            }
        };
        let refusal = refusal.map(Arc::new);
        for (uid, conflict) in behind {
            wait.refused.insert(uid.clone());
            if let Some(refusal) = &refusal {
                let conflict = Box::new(conflict.clone());
                answers.insert(uid.clone(), Err(ClaimError::Holder { conflict, refusal: refusal.clone() }));
            }
        }
    }

    /// The holders that the API server is to be asked for: when they are met, and when their time is over.
    fn due(&self, wait: &Wait<'_>, blocked: &[(String, Conflict)]) -> Vec<Holder> {
        let mut due: Vec<Holder> = Vec::new();
        for holder in blocked.iter().flat_map(|(_, conflict)| conflict.holders()) {
            let is_new = wait.met.get(&holder.number()).is_some_and(|met| !met.was_asked_for);
            let is_known = due.iter().any(|other| other.number() == holder.number());
            if (is_new || self.is_over(wait, holder)) && !is_known && self.ledger.still_holds(holder) {
                due.push(holder.clone());
            }
        }
        due
    }

    /// Whether the kubelet has had its time to unprepare a holder.
    fn is_over(&self, wait: &Wait<'_>, holder: &Holder) -> bool {
        holder.unpreparer() == Unpreparer::Nobody || self.end(wait, holder) <= Instant::now()
    }

    fn end(&self, wait: &Wait<'_>, holder: &Holder) -> Instant {
        let since = wait.met.get(&holder.number()).map_or_else(Instant::now, |met| met.since);
        since + self.settings.device_patience
    }

    /// When there may be something to do without a release in this process.
    fn next_look(&self, wait: &Wait<'_>, blocked: &[(String, Conflict)]) -> Instant {
        let ends = blocked.iter().flat_map(|(_, conflict)| conflict.holders()).map(|holder| self.end(wait, holder));
        let look = self.locks.are_shared().then(|| Instant::now() + LOOK);
        // An end that has passed is one of a holder that has let go, while another one of the same claim has not.
        let now = Instant::now();
        ends.filter(|end| *end > now).chain(look).fold(wait.limit, Instant::min)
    }

    /// Whether all holders that were in the way are gone.
    async fn have_released(&self, conflict: &Conflict) -> bool {
        for holder in conflict.holders() {
            if self.ledger.still_holds(holder) && !self.is_unprepared_elsewhere(holder).await {
                return false;
            }
        }
        true
    }
}

impl Wait<'_> {
    /// The claims that wait for others, and for which.
    fn blocked(&mut self, answers: &Answers<Vec<AnsweredDevice>>) -> Vec<(String, Conflict)> {
        let mut blocked = Vec::new();
        for (uid, answer) in answers.iter().filter(|(uid, _)| !self.refused.contains(*uid)) {
            let Err(ClaimError::Conflict(conflict)) = answer else { continue };
            // A claim of the same call is not unprepared before this call has its answer.
            if conflict.holders().any(|holder| self.wanted.contains_key(holder.claim().uid.as_str())) {
                continue;
            }
            for holder in conflict.holders() {
                let met = Met { since: Instant::now(), was_asked_for: false };
                self.met.entry(holder.number()).or_insert(met);
            }
            blocked.push((uid.clone(), conflict.clone()));
        }
        blocked
    }

    /// Tells once that claims wait.
    fn log(&mut self, blocked: &[(String, Conflict)]) {
        if std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        for (_, conflict) in blocked {
            for holder in conflict.holders() {
                let (claim, holder) = (conflict.claim(), holder.claim());
                tracing::info!(%claim, %holder, "claim waits for a device that another claim holds");
            }
        }
    }
}

fn is_conflict<T>(answer: &Result<T, ClaimError>) -> bool {
    matches!(answer, Err(ClaimError::Conflict(_)))
}

/// Whether a holder is one of those that are in the way.
fn is_behind(conflict: &Conflict, holder: &Holder) -> bool {
    conflict.holders().any(|other| other.number() == holder.number())
}
