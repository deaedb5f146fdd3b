//! A one-line description of the state of publishing, for status pages.
//!
//! Everybody who reaches a status page can read it, so it has only numbers and kinds of errors. Messages of the API server or
//! of the validation may name devices: they are in the log.

use std::sync::Arc;
use std::time::SystemTime;

use super::PublishError;
use super::pending::{PendingPublish, PublishStatus};

/// The numbers of an [`Overview`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// The number of published pools.
    pub(super) pools: usize,
    /// The number of slices that the API server stores.
    pub(super) slices: usize,
    /// The highest generation of a pool.
    pub(super) generation: i64,
    /// The time and the kind of the last error.
    pub(super) last_error: Option<(SystemTime, &'static str)>,
}

/// A handle to describe the state of publishing with.
#[derive(Debug, Clone, Default)]
pub struct Overview(Arc<PendingPublish>);

impl Overview {
    pub(super) fn of(pending: Arc<PendingPublish>) -> Self {
        Self(pending)
    }

    /// Returns one line without names of devices. `date` formats a time.
    pub fn line(&self, date: impl Fn(SystemTime) -> String) -> String {
        let status = match self.0.status() {
            PublishStatus::Nothing => return "nothing yet".to_owned(),
            PublishStatus::Pending => "pending",
            PublishStatus::Published => "published",
            PublishStatus::Failing(_) => "failing",
            PublishStatus::Standby => "left to a newer instance",
            PublishStatus::Stopped => "stopped",
        };
        let Summary { pools, slices, generation, last_error } = self.0.summary();
        let last_error = match last_error {
            Some((when, kind)) => format!("last error at {}: {kind}, see the log", date(when)),
            None => "no error so far".to_owned(),
        };
        format!("{status}; pools: {pools}, slices: {slices}, highest generation: {generation}; {last_error}")
    }
}

/// Returns the kind of an error in words that name no object.
pub(super) fn kind(error: &PublishError) -> &'static str {
    match error {
        PublishError::Invalid { .. } | PublishError::OtherPool { .. } => "a pool is not valid",
        PublishError::Forbidden { .. } => "the API server does not allow it",
        PublishError::Rejected { .. } => "the API server refuses a slice",
        PublishError::DroppedFields { .. } => "the API server dropped fields",
        PublishError::Contested { .. } => "another client changes the slices",
        PublishError::Stopped => "the publisher has stopped",
        PublishError::Panicked(_) | PublishError::Encode { .. } => "an internal error",
        PublishError::Api { .. } => "the API server gave no usable answer",
    }
}
