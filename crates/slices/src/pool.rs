//! The state of one pool: what is desired, what the API server stores, and when to compare them next.
//!
//! States that exclude each other are enums: what is desired ([`Desired`]), when the pool is due ([`Schedule`]), whether
//! syncs fail ([`Health`]), and the retries of dropped fields ([`DroppedRetry`]).

mod dropped_retry;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use drakkar_client::Backoff;
use drakkar_client::backoff::jittered;
use tokio::time::Instant;

use self::dropped_retry::DroppedRetry;
use self::schedule::Schedule;
use super::PublishError;
use super::content::{Digest, TaintTime};
use super::desired::DesiredPool;
use super::diff::{Known, Writes, diff};
use super::name;
use super::stored::StoredSlice;

/// The number of repairs within [`REPAIR_WINDOW`] that are done without delay. More than that means another client that
/// changes the slices all the time.
const MAX_REPAIRS: usize = 5;
const REPAIR_WINDOW: Duration = Duration::from_secs(60);
const CONTESTED_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// What the driver wants the pool to be.
#[derive(Debug, Default)]
enum Desired {
    /// The pool is not published: its slices are deleted.
    #[default]
    Absent,
    Published(Arc<DesiredPool>),
    /// The version that was published last is not valid. The last valid one stays; if there is none, slices of the pool that
    /// the API server stores are left alone.
    Invalid {
        error: PublishError,
        last_valid: Option<Arc<DesiredPool>>,
    },
}

/// Whether syncs of the pool succeed.
#[derive(Debug, Default)]
enum Health {
    #[default]
    Healthy,
    Failing {
        /// The number of consecutive failures.
        failures: u32,
        /// The last error; `None` as long as there were only conflicts, which are not worth a report.
        error: Option<PublishError>,
    },
}

/// A pool that is published, or of which the API server stores slices.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    desired: Desired,
    pub(super) stored: Vec<StoredSlice>,
    /// The UIDs of slices that this process deleted. Watch events that are older than the deletion may still arrive.
    deleted: Vec<String>,
    /// The times of taints by device, also while no stored slice has them.
    taints: HashMap<String, Vec<TaintTime>>,
    dropped: DroppedRetry,
    /// The generation that is being rolled out, from the write of its first slice to that of its last.
    rollout: Option<i64>,
    schedule: Schedule,
    /// The times of recent repairs.
    repairs: VecDeque<Instant>,
    health: Health,
}

impl PoolState {
    /// Returns the pool as it should be: the last valid version, if there is one.
    pub(super) fn desired(&self) -> Option<&Arc<DesiredPool>> {
        match &self.desired {
            Desired::Absent => None,
            Desired::Published(pool) => Some(pool),
            Desired::Invalid { last_valid, .. } => last_valid.as_ref(),
        }
    }

    /// Sets what the pool should be, `None` for no pool, and makes it due.
    ///
    /// The first version of a pool is split like the slices that an earlier process has published.
    pub(super) fn set_desired(&mut self, pool: Option<Arc<DesiredPool>>) -> Result<(), serde_json::Error> {
        self.desired = match pool {
            None => Desired::Absent,
            Some(pool) if self.desired().is_some() => Desired::Published(pool),
            Some(pool) => {
                let (assigned, slices) = self.stored_layout();
                let rearranged = pool.rearranged(|device| assigned.get(device).copied(), slices)?;
                Desired::Published(rearranged.map_or(pool, Arc::new))
            }
        };
        self.forget_undesired_taints();
        self.rollout = None;
        let digests = self.desired().into_iter().flat_map(|pool| &pool.slices).map(|slice| slice.digest);
        let digests: Vec<Digest> = digests.collect();
        self.dropped.reset(|sent| digests.contains(sent));
        self.clear_error();
        self.set_due();
        Ok(())
    }

    /// Records that the version that was published last is not valid. Returns whether that is a new error.
    pub(super) fn set_invalid(&mut self, error: PublishError) -> bool {
        let is_new = match &self.desired {
            Desired::Invalid { error: known, .. } => discriminant(known) != discriminant(&error),
            Desired::Absent | Desired::Published(_) => true,
        };
        let last_valid = match std::mem::take(&mut self.desired) {
            Desired::Absent => None,
            Desired::Published(pool) => Some(pool),
            Desired::Invalid { last_valid, .. } => last_valid,
        };
        if last_valid.is_none() {
            self.schedule = Schedule::Synced;
        }
        self.desired = Desired::Invalid { error, last_valid };
        is_new
    }

    /// Returns the index of the stored slice that each device is in, and the number of slices.
    fn stored_layout(&self) -> (HashMap<&str, usize>, usize) {
        let Some(highest) = self.stored.iter().map(|slice| slice.generation).max() else { return (HashMap::new(), 0) };
        let width = name::width(self.stored.len());
        let mut assigned = HashMap::new();
        let mut slices = 0;
        for slice in self.stored.iter().filter(|slice| slice.generation == highest) {
            let Some(index) = name::index(&slice.name, width).filter(|index| *index < self.stored.len()) else {
                continue;
            };
            slices = slices.max(index + 1);
            assigned.extend(slice.devices.names().map(|device| (device, index)));
        }
        (assigned, slices)
    }

    /// Forgets the times of taints that are no longer desired: one that comes back later is a new taint.
    fn forget_undesired_taints(&mut self) {
        let desired = match &self.desired {
            Desired::Published(pool) | Desired::Invalid { last_valid: Some(pool), .. } => pool,
            Desired::Absent | Desired::Invalid { last_valid: None, .. } => return self.taints.clear(),
        };
        self.taints.retain(|device, known| {
            let device = desired.get(device);
            let is_desired = |taint: &TaintTime| {
                device.is_some_and(|(slice, index)| slice.taints_of(index).any(|one| one.is_same_taint(taint)))
            };
            known.retain(is_desired);
            !known.is_empty()
        });
    }

    /// Returns the times of taints by device.
    pub(super) fn taints(&self) -> &HashMap<String, Vec<TaintTime>> {
        &self.taints
    }

    /// Applies a slice from the API server. Returns whether it is newer than what is known.
    pub(super) fn apply(&mut self, slice: StoredSlice) -> bool {
        if self.deleted.contains(&slice.uid) {
            return false;
        }
        self.record_taint_times(&slice);
        match self.stored.iter_mut().find(|known| known.uid == slice.uid) {
            Some(known) if !slice.is_newer_than(&known.resource_version) => false,
            Some(known) => {
                *known = slice;
                true
            }
            None => {
                self.stored.push(slice);
                // The order of two slices with the same index must not depend on which was seen first.
                self.stored.sort_by(|one, other| one.name.cmp(&other.name));
                true
            }
        }
    }

    fn record_taint_times(&mut self, slice: &StoredSlice) {
        for (device, taint) in slice.taints_by_device() {
            let known = self.taints.entry(device.to_owned()).or_default();
            match known.iter_mut().find(|known| known.is_same_taint(taint)) {
                Some(known) => known.added = taint.added.or(known.added),
                None => known.push(taint.clone()),
            }
        }
    }

    /// Removes a slice that the API server no longer has. Returns whether another client deleted it.
    pub(super) fn remove(&mut self, uid: &str) -> bool {
        self.deleted.retain(|deleted| deleted != uid);
        let before = self.stored.len();
        self.stored.retain(|slice| slice.uid != uid);
        self.stored.len() < before
    }

    /// Records that this process deleted a slice.
    pub(super) fn mark_deleted(&mut self, uid: &str) {
        self.stored.retain(|slice| slice.uid != uid);
        self.deleted.push(uid.to_owned());
    }

    /// Replaces the known slices by a list. Returns whether they differ.
    ///
    /// Resource versions are not compared: a list is never older than the writes of this process (see `reflector`), and in a
    /// cluster that was restored from a backup the older version is the true one. Only a list that is not `is_current` may
    /// still have slices that this process deleted.
    pub(super) fn replace(&mut self, mut listed: Vec<StoredSlice>, is_current: bool) -> bool {
        if is_current {
            self.deleted.clear();
        }
        self.deleted.retain(|uid| listed.iter().any(|slice| slice.uid == *uid));
        listed.retain(|slice| !self.deleted.contains(&slice.uid));
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.iter().for_each(|slice| self.record_taint_times(slice));
        let version = |slice: &StoredSlice| (slice.uid.clone(), slice.resource_version.clone());
        let differs = !listed.iter().map(version).eq(self.stored.iter().map(version));
        self.stored = listed;
        differs
    }

    /// Schedules a repair after another client changed slices.
    pub(super) fn schedule_repair(&mut self) {
        if !self.is_left_alone() {
            self.schedule.repair();
        }
    }

    /// Makes the pool due at once.
    pub(super) fn set_due(&mut self) {
        self.schedule.set_due_now();
    }

    /// Delays a pool that is due, because the API server asks for it.
    pub(super) fn not_before(&mut self, earliest: Instant) {
        self.schedule.not_before(earliest);
    }

    /// Returns the writes that bring the API server up to date; `None` if the pool must be left alone.
    pub(super) fn plan_writes(&mut self, remembered: i64) -> Option<Writes> {
        if self.is_left_alone() {
            self.schedule = Schedule::Synced;
            return None;
        }
        self.dropped.probe_if_due();
        let known = Known { stored: &self.stored, remembered, rollout: self.rollout };
        let desired = self.desired();
        let writes = diff(desired.map(|pool| &**pool), known, |index, slice| {
            let sent = desired.and_then(|pool| pool.slices.get(index)).map(|slice| slice.digest);
            sent.is_some_and(|sent| sent == slice.digest || self.dropped.is_accepted(sent, slice.digest))
        });
        Some(writes)
    }

    /// Starts a sync: nothing is due until its outcome is known. Returns whether it repairs changes of another client.
    pub(super) fn begin_sync(&mut self) -> bool {
        std::mem::take(&mut self.schedule).repair_since().is_some()
    }

    /// Records the first write of a new generation, which is then finished and not started again.
    pub(super) fn begin_rollout(&mut self, generation: i64) {
        let highest = self.stored.iter().map(|slice| slice.generation).max().unwrap_or(0);
        if generation > highest {
            self.rollout = Some(generation);
        }
    }

    /// Records that the API server has all that is desired.
    pub(super) fn mark_synced(&mut self) {
        self.rollout = None;
        self.clear_error();
    }

    /// Records a repair. Returns whether there were so many that the pool is left to the other client for a while.
    pub(super) fn is_contested(&mut self) -> bool {
        let now = Instant::now();
        while self.repairs.front().is_some_and(|repair| now.duration_since(*repair) > REPAIR_WINDOW) {
            self.repairs.pop_front();
        }
        self.repairs.push_back(now);
        let excess = self.repairs.len().saturating_sub(MAX_REPAIRS);
        if excess > 0 {
            self.schedule.back_off(CONTESTED_BACKOFF.delay(u32::try_from(excess).unwrap_or(u32::MAX)));
        }
        excess > 0
    }

    /// Records a failed sync, to be retried after the backoff, if there is one. Returns whether the error is of another kind
    /// than the last one.
    pub(super) fn record_failure(&mut self, error: PublishError, backoff: Option<Backoff>) -> bool {
        let known = match &self.health {
            Health::Failing { error: Some(known), .. } => Some(discriminant(known)),
            Health::Healthy | Health::Failing { error: None, .. } => None,
        };
        let is_new = known != Some(discriminant(&error));
        let failures = self.failures().saturating_add(1);
        self.health = Health::Failing { failures, error: Some(error) };
        if let Some(backoff) = backoff {
            self.schedule.back_off(backoff.delay(failures));
        }
        is_new
    }

    /// Records a write that conflicted with one of another client. Returns the number of consecutive failures.
    pub(super) fn record_conflict(&mut self, backoff: Backoff) -> u32 {
        let failures = self.failures().saturating_add(1);
        let error = match std::mem::take(&mut self.health) {
            Health::Healthy => None,
            Health::Failing { error, .. } => error,
        };
        self.health = Health::Failing { failures, error };
        self.schedule.back_off(backoff.delay(failures));
        failures
    }

    fn failures(&self) -> u32 {
        match self.health {
            Health::Healthy => 0,
            Health::Failing { failures, .. } => failures,
        }
    }

    /// Forgets failures of earlier syncs. That the last publish is not valid remains an error.
    fn clear_error(&mut self) {
        self.health = Health::Healthy;
    }

    /// Returns why the API server does not have what was published last.
    pub(super) fn error(&self) -> Option<&PublishError> {
        match (&self.health, &self.desired) {
            (Health::Failing { error: Some(error), .. }, _) | (_, Desired::Invalid { error, .. }) => Some(error),
            _ => None,
        }
    }

    /// Records that the API server stored a slice as it was sent.
    pub(super) fn record_kept(&mut self, sent: Digest) {
        if self.dropped.kept(sent) {
            self.set_due();
        }
    }

    /// Records that the API server stored a slice without some of its fields, which is accepted for now.
    pub(super) fn record_dropped(&mut self, sent: Digest, stored: Digest) {
        self.dropped.accept(sent, stored);
    }

    /// Marks the dropped fields as reported. Returns whether they were not before.
    pub(super) fn mark_drops_reported(&mut self) -> bool {
        self.dropped.mark_reported()
    }

    /// Returns whether slices must not be touched: the first version that was published is not valid.
    fn is_left_alone(&self) -> bool {
        matches!(self.desired, Desired::Invalid { last_valid: None, .. })
    }

    /// Returns whether slices have still to be written.
    pub(super) fn is_pending(&self) -> bool {
        self.schedule != Schedule::Synced
    }

    /// Returns when to compare the pool next. Never a time in the past at which nothing could be done: the task would spin.
    pub(super) fn next_sync(&self) -> Option<Instant> {
        if self.is_left_alone() {
            return None;
        }
        [self.schedule.due(), self.dropped.due()].into_iter().flatten().min()
    }

    /// Returns whether the pool is neither desired nor stored, so that its state can be dropped.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.desired, Desired::Absent)
            && self.stored.is_empty()
            && self.schedule == Schedule::Synced
            && self.deleted.is_empty()
    }

    /// Waits for a newer instance, which publishes, to end.
    pub(super) fn stand_by(&mut self, delay: Duration) {
        let until = Instant::now() + jittered(delay, 1.0..=2.0);
        self.schedule = Schedule::Standby { until };
        self.dropped.not_before(until);
    }
}
