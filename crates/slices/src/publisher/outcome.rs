//! Outcomes of writes: what is recorded, what is reported, and when to retry.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drakkar_client::Backoff;
use tokio::time::Instant;

use super::super::PublishError;
use super::super::overview::{self, Counts, StoredPool, Summary};
use super::super::pending::PublishStatus;
use super::super::pool::PoolState;
use super::super::write::{Permission, WriteOutcome, explain};
use super::failures::Failures;
use super::{Listing, PublisherTask};

/// After a transient error.
const TRANSIENT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// After a refusal for lack of permission: a cluster role may be about to be created.
const FORBIDDEN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(120));
/// After a refusal of the content.
const REJECTED_BACKOFF: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(1800));
/// After a conflict with a write of another client.
const CONFLICT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(30));

impl PublisherTask {
    /// Records the outcomes of the writes to a pool.
    pub(super) fn record_outcomes(&mut self, pool: &str, outcomes: Vec<WriteOutcome>, is_complete: bool) {
        let Some(state) = self.pools.get_mut(pool) else { return };
        let mut failure = None;
        let mut least_delay = Duration::ZERO;
        let mut drops: Option<PublishError> = None;
        let mut has_conflict = false;
        let mut is_deleted = false;
        for outcome in outcomes {
            match outcome {
                WriteOutcome::Stored { sent, stored, dropped } => {
                    let slice = stored.name.clone();
                    let digest = stored.digest;
                    self.generations.raise(pool, stored.generation);
                    state.apply(*stored);
                    let Some(dropped) = dropped else {
                        state.record_kept(sent);
                        continue;
                    };
                    state.record_dropped(sent, digest);
                    match &mut drops {
                        Some(PublishError::DroppedFields { gates, .. }) => {
                            gates.extend(dropped.gates);
                            gates.sort_unstable();
                            gates.dedup();
                        }
                        _ => {
                            drops = Some(PublishError::DroppedFields {
                                pool: pool.to_owned(),
                                slice,
                                fields: dropped.fields,
                                gates: dropped.gates,
                            });
                        }
                    }
                }
                WriteOutcome::Deleted { uid } => state.mark_deleted(&uid),
                WriteOutcome::NotFound { uid } => is_deleted |= state.remove(&uid),
                WriteOutcome::Conflict => has_conflict = true,
                WriteOutcome::Failed { what, error } => {
                    least_delay = least_delay.max(error.retry_delay(Duration::ZERO));
                    failure = failure.or_else(|| Some(explain(what, Permission::Slices, error)));
                }
            }
        }
        if let Some(error) = failure {
            self.fail(pool, &error);
            self.not_before(pool, least_delay);
        } else if has_conflict {
            // The watch delivers the other client's version. After a second conflict it evidently has not, so slices are listed.
            if state.record_conflict(CONFLICT_BACKOFF) > 1 {
                self.expect_list();
                self.relist.notify_one();
            }
        } else if is_deleted || !is_complete {
            state.set_due();
        } else {
            state.mark_synced();
        }
        if let Some(error) = drops
            && let Some(state) = self.pools.get_mut(pool)
        {
            let is_new = state.mark_drops_reported();
            self.report(&error, is_new);
        }
    }

    /// Records and reports that a pool could not be synced, and schedules a retry.
    pub(super) fn fail(&mut self, pool: &str, error: &PublishError) {
        let Some(state) = self.pools.get_mut(pool) else { return };
        let backoff = match error {
            PublishError::Forbidden { .. } => Some(FORBIDDEN_BACKOFF),
            PublishError::Rejected { .. } => Some(REJECTED_BACKOFF),
            PublishError::DroppedFields { .. } | PublishError::Api { .. } => Some(TRANSIENT_BACKOFF),
            // Already scheduled, by the number of repairs.
            PublishError::Contested { .. } => None,
            // Permanent.
            PublishError::Invalid { .. }
            | PublishError::OtherPool { .. }
            | PublishError::UnknownPool { .. }
            | PublishError::Stopped
            | PublishError::Panicked(_)
            | PublishError::Encode { .. } => None,
        };
        let is_new = state.record_failure(error.clone(), backoff);
        self.report(error, is_new);
    }

    /// Delays the retry of a pool by at least this time, because the API server asks for it.
    pub(super) fn not_before(&mut self, pool: &str, delay: Duration) {
        if let Some(state) = self.pools.get_mut(pool) {
            state.not_before(Instant::now() + delay);
        }
    }

    /// Reports an error to the observer.
    pub(super) fn report(&mut self, error: &PublishError, is_new: bool) {
        self.last_error = Some((SystemTime::now(), overview::kind(error)));
        self.observer.publish_failed(error, is_new);
        // What the server stored is accepted.
        if matches!(error, PublishError::DroppedFields { .. }) {
            return;
        }
        let failures = self.failures.get_or_insert_with(Failures::new);
        if failures.record() && !is_new {
            self.observer.still_failing(error, failures.since, failures.tries);
        }
    }

    /// Updates the status and the overview.
    pub(super) fn report_status(&mut self) {
        let pool_error = self.pools.values().find_map(PoolState::error);
        let error = pool_error.or(self.publish_error.as_ref()).or(self.watch_error.as_ref());
        let is_pending =
            matches!(self.listing, Listing::First { .. }) || self.pools.values().any(PoolState::is_pending);
        let status = match error {
            _ if self.is_on_standby => PublishStatus::Standby,
            Some(error) => PublishStatus::Failing(error.to_string()),
            None if is_pending => PublishStatus::Pending,
            None => PublishStatus::Published,
        };
        match status {
            PublishStatus::Published | PublishStatus::Standby => self.failures = None,
            PublishStatus::Failing(_) => self.logged = None,
            _ => {}
        }
        let slices = || self.pools.values().flat_map(|state| &state.stored);
        let counts = Counts {
            pools: self.pools.values().filter(|state| state.desired().is_some()).count(),
            slices: slices().count(),
            devices: slices().map(|slice| slice.devices.len()).sum(),
            generation: slices().map(|slice| slice.generation).max().unwrap_or(0),
        };
        let summary = Summary {
            counts,
            last_error: self.last_error,
            failures: self.failures.map(|failures| (failures.since, failures.tries)),
            stored: Arc::new(self.pools.iter().map(|(name, state)| (name.clone(), stored(state))).collect()),
        };
        if status == PublishStatus::Published && self.logged != Some(summary.counts) {
            let Counts { pools, devices, slices, .. } = summary.counts;
            tracing::info!(pools, devices, slices, "resources published");
            self.logged = Some(summary.counts);
        }
        self.pending.report(status, summary);
    }
}

/// Returns what the API server stores of a pool.
fn stored(state: &PoolState) -> StoredPool {
    StoredPool {
        slices: state.stored.len(),
        generation: state.stored.iter().map(|slice| slice.generation).max().unwrap_or(0),
        problem: state.error().map(overview::kind),
    }
}
