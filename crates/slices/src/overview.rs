//! A description of the state of publishing, for status pages: one line without names, and the pools with their devices.
//!
//! Whoever reaches a health page can read the line, so it has only numbers and kinds of errors. Messages of the API server or
//! of the validation may name devices: they are in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use drakkar_client::ApiError;
use drakkar_metadata::Time;
use tokio::sync::watch;

use super::PublishError;
use super::lookup::Index;
use super::pending::{PendingPublish, PublishStatus};

/// What is published, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The number of published pools.
    pub(super) pools: usize,
    /// The number of slices that the API server stores.
    pub(super) slices: usize,
    /// The number of devices in them.
    pub(super) devices: usize,
    /// The highest generation of a pool.
    pub(super) generation: i64,
}

/// The state of publishing without names.
#[derive(Debug, Clone, Default)]
pub(super) struct Summary {
    pub(super) counts: Counts,
    /// The time and the kind of the last error.
    pub(super) last_error: Option<(SystemTime, &'static str)>,
    /// The time of the first of the failures since resources were last published, and their number.
    pub(super) failures: Option<(SystemTime, u32)>,
    /// The slices of each pool that the API server stores.
    pub(super) stored: Arc<BTreeMap<String, StoredPool>>,
}

/// What the API server stores of a pool, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StoredPool {
    pub(super) slices: usize,
    pub(super) generation: i64,
    /// Why the pool is not published as desired.
    pub(super) problem: Option<&'static str>,
}

/// A pool that the driver publishes, or of which the API server stores slices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolOverview {
    /// The name of the pool.
    pub name: String,
    /// The number of slices that the API server stores.
    pub slices: usize,
    /// The generation of these slices; 0 if there are none.
    pub generation: i64,
    /// The number of devices that the driver publishes.
    pub devices: usize,
    /// The names of the first of these devices.
    pub device_names: Vec<Arc<str>>,
    /// The kind of problem that keeps the pool from being published as desired.
    pub problem: Option<&'static str>,
}

/// A handle to describe the state of publishing with.
#[derive(Debug, Clone)]
pub struct Overview {
    pending: Arc<PendingPublish>,
    index: watch::Receiver<Index>,
}

/// A description of nothing: no publisher sets it.
impl Default for Overview {
    fn default() -> Self {
        Self::new(Arc::default(), watch::channel(None).1)
    }
}

impl Overview {
    pub(super) fn new(pending: Arc<PendingPublish>, index: watch::Receiver<Index>) -> Self {
        Self { pending, index }
    }

    /// Returns the pools in the order of their names, at most `pools` of them with at most `devices` names of devices in all,
    /// and the number of all pools. Answers from memory and never waits for a write.
    pub fn pools(&self, pools: usize, devices: usize) -> (Vec<PoolOverview>, usize) {
        // Shared with the publisher's task, which replaces it as a whole.
        let published = self.index.borrow().clone().unwrap_or_default();
        let Summary { stored, .. } = self.pending.summary();
        let mut all: BTreeMap<&str, PoolOverview> = BTreeMap::new();
        for (name, pool) in stored.iter() {
            let StoredPool { slices, generation, problem } = *pool;
            all.insert(name, PoolOverview { slices, generation, problem, ..PoolOverview::default() });
        }
        for (name, pool) in &published {
            all.entry(name).or_default().devices = pool.len();
        }
        let total = all.len();
        let mut left = devices;
        let shown = all.into_iter().take(pools).map(|(name, mut overview)| {
            let names = published.get(name).into_iter().flat_map(|pool| pool.names());
            overview.device_names = names.take(left).map(Arc::from).collect();
            left -= overview.device_names.len();
            overview.name = name.to_owned();
            overview
        });
        (shown.collect(), total)
    }

    /// Returns whether resources wait to be published: they are being written, or that fails.
    pub fn is_pending(&self) -> bool {
        match self.pending.status() {
            PublishStatus::Nothing | PublishStatus::Published | PublishStatus::Standby => false,
            PublishStatus::Pending | PublishStatus::Failing(_) | PublishStatus::Stopped => true,
        }
    }

    /// Returns why there are resources to publish but none were ever published, in words that name no device; `None` once they
    /// were, or while there are none.
    pub fn never_published(&self) -> Option<String> {
        if self.pending.status() == PublishStatus::Nothing || self.pending.was_published() {
            return None;
        }
        Some(match self.pending.summary() {
            Summary { failures: Some((since, tries)), last_error: Some((_, kind)), .. } => {
                let tries = if tries == 1 { "1 try".to_owned() } else { format!("{tries} tries") };
                format!("resources are not published after {tries} since {}: {kind}, see the log", rfc3339(since))
            }
            _ => "resources are not published yet".to_owned(),
        })
    }

    /// Returns one line without names of devices.
    pub fn line(&self) -> String {
        let status = match self.pending.status() {
            PublishStatus::Nothing => return "nothing yet".to_owned(),
            PublishStatus::Pending => "pending",
            PublishStatus::Published => "published",
            PublishStatus::Failing(_) => "failing",
            PublishStatus::Standby => "left to a newer instance",
            PublishStatus::Stopped => "stopped",
        };
        let Summary { counts: Counts { pools, slices, generation, .. }, last_error, .. } = self.pending.summary();
        let last_error = match last_error {
            Some((when, kind)) => format!("last error at {}: {kind}, see the log", rfc3339(when)),
            None => "no error so far".to_owned(),
        };
        format!("{status}; pools: {pools}, slices: {slices}, highest generation: {generation}; {last_error}")
    }
}

/// Returns the kind of an error in words that name no object.
pub(super) fn kind(error: &PublishError) -> &'static str {
    match error {
        PublishError::Invalid { .. } | PublishError::OtherPool { .. } => "a pool is not valid",
        PublishError::UnknownPool { .. } => "a pool is not published",
        PublishError::Forbidden { .. } => "the API server does not allow it",
        PublishError::Rejected { .. } => "the API server refuses a slice",
        PublishError::DroppedFields { .. } => "the API server dropped fields",
        PublishError::Contested { .. } => "another client changes the slices",
        PublishError::Stopped => "the publisher has stopped",
        PublishError::Panicked(_) | PublishError::Encode { .. } => "an internal error",
        PublishError::Api { source, .. } => match &**source {
            ApiError::Unauthorized { .. } => "the API server does not accept the driver's credentials",
            ApiError::Send(_) | ApiError::Timeout { .. } => "the API server does not answer",
            _ => "the API server gave no usable answer",
        },
    }
}

/// Formats a time as Kubernetes does.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds).ok().and_then(|seconds| Time::from_unix_seconds(seconds).ok());
    time.map_or_else(|| "an unknown time".to_owned(), |time| time.to_string())
}
