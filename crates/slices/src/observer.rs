//! What a publisher tells its owner: for metrics, for the log, for a driver that wants to act.

use crate::PublishError;

/// A kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SliceWrite {
    /// A new slice.
    Create,
    /// Another content for a slice.
    Update,
    /// A slice less.
    Delete,
}

/// Receives what happens while resources are published. Called from the publisher's task, so it must not block.
pub trait Observer: Send + Sync + 'static {
    /// A slice was written, or could not be.
    fn slice_written(&self, write: SliceWrite, is_success: bool) {
        let _ = (write, is_success);
    }

    /// The API server has that many slices with that many devices.
    fn published(&self, slices: usize, devices: usize) {
        let _ = (slices, devices);
    }

    /// Resources are not published as the driver wants them. It is retried where that makes sense. `is_new` is false for an
    /// error that was reported before and is still there.
    fn publish_failed(&self, error: &PublishError, is_new: bool) {
        if is_new {
            tracing::warn!(%error, "publishing failed");
        } else {
            tracing::debug!(%error, "publishing still fails");
        }
    }
}

/// Logs errors.
impl Observer for () {}
