//! The observer of a publisher: the hook for metrics, logs and drivers that act on errors.

use std::time::SystemTime;

use drakkar_metadata::show::Printable;

use crate::PublishError;
use crate::overview::rfc3339;

/// A kind of write to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SliceWrite {
    /// A slice is created.
    Create,
    /// A slice is replaced.
    Update,
    /// A slice is deleted.
    Delete,
}

/// Receives the events of a publisher. Every method has a default, so an observer implements only those that it needs.
///
/// Methods are called from the publisher's task and must not block. `()` is an observer that only logs errors.
pub trait Observer: Send + Sync + 'static {
    /// Called after each write of a slice, successful or not.
    fn slice_written(&self, write: SliceWrite, is_success: bool) {
        let _ = (write, is_success);
    }

    /// Called after each sync with the number of slices that the API server stores for this publisher, and of the devices in
    /// them.
    fn published(&self, slices: usize, devices: usize) {
        let _ = (slices, devices);
    }

    /// Called when resources cannot be published as requested. All errors but those in [`PublishError::is_permanent`] are
    /// retried. `is_new` is false for an error that has been reported before and persists.
    fn publish_failed(&self, error: &PublishError, is_new: bool) {
        if is_new {
            tracing::warn!(%error, "publishing failed");
        } else {
            tracing::debug!(%error, "publishing still fails");
        }
    }

    /// Called in growing intervals, from 10 s to 10 minutes, while an error persists: with the time of the first failure and the
    /// number of failed tries since then.
    fn still_failing(&self, error: &PublishError, since: SystemTime, tries: u32) {
        // The API server may quote what is published: it must not break the log line.
        let error = error.to_string();
        tracing::warn!(error = %Printable::whole(&error), since = rfc3339(since), tries, "publishing still fails, retrying");
    }
}

/// Logs errors.
impl Observer for () {}
