//! Between the publisher of slices and the driver: what happens is counted, and new errors reach the driver.

use drakkar_slices::{Observer, PublishError, SliceWrite};

use crate::background::{Background, BackgroundError};
use crate::metrics::Metrics;
use crate::recent_errors::RecentErrors;

/// The operation as errors name it.
const OPERATION: &str = "publish resources";

/// Counts what the publisher does, and hands its errors to the driver.
pub(crate) struct PublishObserver {
    pub(crate) metrics: Metrics,
    pub(crate) background: Background,
    pub(crate) recent: RecentErrors,
}

impl Observer for PublishObserver {
    fn slice_written(&self, write: SliceWrite, is_success: bool) {
        self.metrics.slice_write(write, is_success);
    }

    fn published(&self, slices: usize, devices: usize) {
        self.metrics.set_published(slices, devices);
    }

    fn publish_failed(&self, error: &PublishError, is_new: bool) {
        self.metrics.publish_failed(error);
        if is_new {
            (self.background)(BackgroundError::recoverable(OPERATION, error.clone()));
        } else {
            self.recent.add(OPERATION, None, error);
            tracing::debug!(%error, "publishing still fails");
        }
    }
}
