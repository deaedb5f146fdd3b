//! Between the publisher of slices and the driver: what happens is counted, and new errors reach the driver.

use drakkar_slices::{Observer, PublishError, SliceWrite};

use crate::background::{Background, BackgroundError};
use crate::metrics::Metrics;

/// Counts what the publisher does, and hands its errors to the driver.
pub(crate) struct PublishObserver {
    pub(crate) metrics: Metrics,
    pub(crate) background: Background,
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
            (self.background)(BackgroundError::recoverable("publish resources", error.clone()));
        } else {
            tracing::debug!(%error, "publishing still fails");
        }
    }
}
