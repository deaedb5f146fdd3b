//! What became of writes: what is known then, who is told, and when to try again.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::super::PublishError;
use super::super::mailbox::PublishStatus;
use super::super::overview::{self, Facts};
use super::super::write::{Done, explain};
use super::Task;
use drakkar_client::Backoff;

/// After trouble that passes.
const PASSING: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// After a refusal for want of permission.
const FORBIDDEN: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(120));
/// After a refusal of what was sent.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(1800));
/// After somebody else was faster.
const CONFLICT: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(30));

impl Task {
    /// Takes over what became of the writes of a pool.
    pub(super) fn wrote(&mut self, pool: &str, done: Vec<Done>, is_complete: bool) {
        let Some(state) = self.pools.get_mut(pool) else { return };
        let (mut failure, mut least) = (None, Duration::ZERO);
        let mut drops: Option<PublishError> = None;
        let (mut has_conflict, mut is_gone) = (false, false);
        for one in done {
            match one {
                Done::Put { sent, stored, dropped } => {
                    let (name, got) = (stored.name.clone(), stored.digest);
                    self.generations.raise(pool, stored.generation);
                    state.put(*stored);
                    let Some(dropped) = dropped else {
                        state.kept(sent);
                        continue;
                    };
                    state.settle(sent, got);
                    match &mut drops {
                        Some(PublishError::DroppedFields { gates, .. }) => {
                            gates.extend(dropped.gates);
                            gates.sort_unstable();
                            gates.dedup();
                        }
                        _ => {
                            let (fields, gates) = (dropped.fields, dropped.gates);
                            let pool = pool.to_owned();
                            drops = Some(PublishError::DroppedFields { pool, slice: name, fields, gates });
                        }
                    }
                }
                Done::Deleted { uid } => state.record_deletion(&uid),
                Done::Gone { uid } => is_gone |= state.gone(&uid),
                Done::Conflict => has_conflict = true,
                Done::Failed { what, error } => {
                    least = least.max(error.retry_delay(Duration::ZERO));
                    failure = failure.or(Some(explain(what, &error)));
                }
            }
        }
        if let Some(error) = failure {
            self.fail(pool, &error);
            self.not_before(pool, least);
        } else if has_conflict {
            // The watch tells what it is now; if it does not, what is known here is not true.
            state.failures = state.failures.saturating_add(1);
            state.due = Some(Instant::now() + CONFLICT.delay(state.failures));
            if state.failures > 1 {
                self.is_list_awaited = true;
                self.relist.notify_one();
            }
        } else if is_gone || !is_complete {
            state.due = Some(Instant::now());
        } else {
            state.rollout = None;
            state.calm();
        }
        if let Some(error) = drops
            && let Some(state) = self.pools.get_mut(pool)
        {
            let is_new = !std::mem::replace(&mut state.was_told_of_drops, true);
            self.report(&error, is_new);
        }
    }

    /// A pool is not as it should be: tells the driver, if that is new, and tries again later where that makes sense.
    pub(super) fn fail(&mut self, pool: &str, error: &PublishError) {
        let Some(state) = self.pools.get_mut(pool) else { return };
        state.failures = state.failures.saturating_add(1);
        let pauses = match error {
            PublishError::Invalid { .. }
            | PublishError::OtherPool { .. }
            | PublishError::Contested { .. }
            | PublishError::Stopped(_) => None,
            PublishError::Forbidden { .. } => Some(FORBIDDEN),
            PublishError::Rejected { .. } => Some(REFUSED),
            PublishError::DroppedFields { .. } | PublishError::Api { .. } => Some(PASSING),
        };
        if let Some(pauses) = pauses {
            state.due = Some(Instant::now() + pauses.delay(state.failures));
        }
        let kind = std::mem::discriminant(error);
        let is_new = state.told.replace(kind) != Some(kind);
        state.problem = Some(error.to_string());
        self.report(error, is_new);
    }

    /// Leaves a pool alone for at least so long, because the API server wants it.
    pub(super) fn not_before(&mut self, pool: &str, least: Duration) {
        let Some(state) = self.pools.get_mut(pool) else { return };
        let earliest = Instant::now() + least;
        state.due = state.due.map(|due| due.max(earliest));
    }

    pub(super) fn report(&mut self, error: &PublishError, is_new: bool) {
        self.last_error = Some((SystemTime::now(), overview::kind(error)));
        self.observer.publish_failed(error, is_new);
    }

    /// Tells how it goes.
    pub(super) fn tell(&self) {
        let problem = self.pools.values().find_map(|state| state.problem.clone());
        let problem = problem.or_else(|| self.source_trouble.as_ref().map(ToString::to_string));
        let is_pending = !self.is_listed || self.pools.values().any(|state| state.due.is_some());
        let status = match problem {
            _ if self.is_on_stand_by => PublishStatus::Standby,
            Some(problem) => PublishStatus::Failing(problem),
            None if is_pending => PublishStatus::Pending,
            None => PublishStatus::Published,
        };
        let slices = || self.pools.values().flat_map(|state| &state.stored);
        let facts = Facts {
            pools: self.pools.values().filter(|state| state.wanted.is_some()).count(),
            slices: slices().count(),
            generation: slices().map(|slice| slice.generation).max().unwrap_or(0),
            last_error: self.last_error,
        };
        self.mailbox.tell(status, facts);
    }
}
