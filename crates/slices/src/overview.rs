//! How publishing goes, in one line for people.
//!
//! Everybody who reaches the status page can read it, so it has numbers and kinds of trouble; what the API server or a check
//! says may name devices, and is in the log.

use std::sync::Arc;
use std::time::SystemTime;

use super::PublishError;
use super::mailbox::{Mailbox, PublishStatus};

/// What there is, as far as people want to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The pools that are wanted.
    pub(super) pools: usize,
    /// The slices that the API server has.
    pub(super) slices: usize,
    /// The highest generation of a pool.
    pub(super) generation: i64,
    /// When something went wrong last, and what.
    pub(super) last_error: Option<(SystemTime, &'static str)>,
}

/// How publishing goes.
#[derive(Debug, Clone, Default)]
pub struct Overview(Arc<Mailbox>);

impl Overview {
    pub(super) fn of(mailbox: Arc<Mailbox>) -> Self {
        Self(mailbox)
    }

    /// One line. `date` tells a time.
    pub fn line(&self, date: impl Fn(SystemTime) -> String) -> String {
        let status = match self.0.status() {
            PublishStatus::Nothing => return "nothing yet".to_owned(),
            PublishStatus::Pending => "on its way",
            PublishStatus::Published => "published",
            PublishStatus::Failing(_) => "failing",
            PublishStatus::Standby => "left to a newer instance",
        };
        let Facts { pools, slices, generation, last_error } = self.0.facts();
        let last_error = match last_error {
            Some((when, kind)) => format!("last error at {}: {kind}, see the log", date(when)),
            None => "no error so far".to_owned(),
        };
        format!("{status}; pools: {pools}, slices: {slices}, highest generation: {generation}; {last_error}")
    }
}

/// The kind of an error, in words that name nothing.
pub(super) fn kind(error: &PublishError) -> &'static str {
    match error {
        PublishError::Invalid { .. } | PublishError::OtherPool { .. } => "a pool is not valid",
        PublishError::Forbidden { .. } => "the API server does not allow it",
        PublishError::Rejected { .. } => "the API server refuses a slice",
        PublishError::DroppedFields { .. } => "the API server dropped fields",
        PublishError::Contested { .. } => "somebody else changes the slices",
        PublishError::Stopped(_) => "the publisher has ended",
        PublishError::Api { .. } => "the API server gave no usable answer",
    }
}
