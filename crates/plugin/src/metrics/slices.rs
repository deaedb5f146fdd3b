//! Metrics of published resources.

use drakkar_slices::{Overview, PublishError};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::family::StaticFamily;
use super::labels::{SliceProblem, SliceWrite, WriteOutcome};
use super::{Metrics, set};

#[derive(Default)]
pub(super) struct SliceMetrics {
    writes: StaticFamily<(SliceWrite, WriteOutcome), Counter>,
    problems: StaticFamily<SliceProblem, Counter>,
    slices: Gauge,
    devices: Gauge,
    pending: Gauge,
}

impl SliceMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Writes of resource slices to the API server, by outcome";
        registry.register("slice_writes", help, self.writes.clone());
        let help = "Problems that prevent resources from being published as desired";
        registry.register("publish_problems", help, self.problems.clone());
        registry.register(
            "published_slices",
            "Resource slices of this driver that the API server has",
            self.slices.clone(),
        );
        registry.register("published_devices", "Devices in these slices", self.devices.clone());
        let help = "Whether resources wait to be published: 1 while they are written or that fails, 0 otherwise";
        registry.register("publishing_pending", help, self.pending.clone());
    }
}

impl Metrics {
    /// Records the outcome of writing a slice.
    pub(crate) fn slice_write(&self, write: drakkar_slices::SliceWrite, is_success: bool) {
        let write = match write {
            drakkar_slices::SliceWrite::Create => SliceWrite::Create,
            drakkar_slices::SliceWrite::Update => SliceWrite::Update,
            drakkar_slices::SliceWrite::Delete => SliceWrite::Delete,
        };
        let outcome = if is_success { WriteOutcome::Success } else { WriteOutcome::Failed };
        self.0.slices.writes.get((write, outcome)).inc();
    }

    /// Records a problem with publishing.
    pub(crate) fn publish_failed(&self, error: &PublishError) {
        self.0.slices.problems.get(problem(error)).inc();
    }

    /// Sets the source of the state of publishing, which is read at each scrape. Only the first call has an effect.
    pub(crate) fn set_publishing_source(&self, overview: Overview) {
        let _ = self.0.publishing_source.set(overview);
    }

    pub(super) fn update_publishing(&self) {
        if let Some(overview) = self.0.publishing_source.get() {
            self.0.slices.pending.set(overview.is_pending().into());
        }
    }

    /// Sets the number of slices and devices that the API server has.
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
