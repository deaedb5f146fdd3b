//! Metrics of published resources.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use drakkar_slices::PublishError;

use super::labels::{SliceProblem, SliceWrite, WriteOutcome};
use super::table::Table;
use super::{Metrics, set};

#[derive(Default)]
pub(super) struct SliceMetrics {
    writes: Table<(SliceWrite, WriteOutcome), Counter>,
    problems: Table<SliceProblem, Counter>,
    slices: Gauge,
    devices: Gauge,
}

impl SliceMetrics {
    pub(super) fn register(&self, ours: &mut Registry) {
        let help = "Writes of resource slices to the API server, by what became of it";
        ours.register("slice_writes", help, self.writes.clone());
        let help = "Reasons why resources are not published as the driver wants them, each time that one is found";
        ours.register("publish_problems", help, self.problems.clone());
        ours.register(
            "published_slices",
            "Resource slices of this driver that the API server has",
            self.slices.clone(),
        );
        ours.register("published_devices", "Devices in these slices", self.devices.clone());
    }
}

impl Metrics {
    /// A slice was written, or could not be.
    pub(crate) fn slice_write(&self, write: drakkar_slices::SliceWrite, is_success: bool) {
        let write = match write {
            drakkar_slices::SliceWrite::Create => SliceWrite::Create,
            drakkar_slices::SliceWrite::Update => SliceWrite::Update,
            drakkar_slices::SliceWrite::Delete => SliceWrite::Delete,
        };
        let outcome = if is_success { WriteOutcome::Success } else { WriteOutcome::Failed };
        self.0.slices.writes.of((write, outcome)).inc();
    }

    /// Resources are not published as they should be.
    pub(crate) fn publish_failed(&self, error: &PublishError) {
        self.0.slices.problems.of(problem(error)).inc();
    }

    /// The API server has that many slices with that many devices.
    pub(crate) fn set_published(&self, slices: usize, devices: usize) {
        set(&self.0.slices.slices, slices);
        set(&self.0.slices.devices, devices);
    }
}

fn problem(error: &PublishError) -> SliceProblem {
    match error {
        PublishError::Invalid { .. } | PublishError::OtherPool { .. } => SliceProblem::Invalid,
        PublishError::Forbidden { .. } => SliceProblem::Forbidden,
        PublishError::Rejected { .. } => SliceProblem::Rejected,
        PublishError::DroppedFields { .. } => SliceProblem::DroppedFields,
        PublishError::Contested { .. } => SliceProblem::Contested,
        _ => SliceProblem::Unanswered,
    }
}
