//! A metric for each value of a fixed set of labels.
//!
//! Unlike a `Family` it knows all its series from the start. So they are exposed at zero, and the first failure counts:
//! `increase()` cannot see a counter that begins at 1. To record is to index: no hashing, no lock, no allocation. And they are
//! exposed in the same order each time.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::labels::LabelSet;

/// Metrics of one name, by their labels.
#[derive(Debug)]
pub(super) struct Table<L, M> {
    metrics: Arc<[M]>,
    shown: fn(L, &M) -> bool,
}

impl<L: LabelSet, M> Table<L, M> {
    /// Makes all metrics.
    pub(super) fn new(metric: impl Fn() -> M) -> Self {
        Self { metrics: L::all().map(|_| metric()).collect(), shown: |_, _| true }
    }

    /// Exposes only those for which this is true.
    pub(super) fn shown_if(self, shown: fn(L, &M) -> bool) -> Self {
        Self { shown, ..self }
    }

    /// The metric with these labels.
    pub(super) fn of(&self, labels: L) -> &M {
        // There is one for each set of labels, and an index is less than their number.
        &self.metrics[labels.index()]
    }
}

impl<L: LabelSet, M: Default> Default for Table<L, M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

impl<L, M> Clone for Table<L, M> {
    fn clone(&self) -> Self {
        Self { metrics: Arc::clone(&self.metrics), shown: self.shown }
    }
}

impl<L: LabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for Table<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for labels in L::all() {
            let metric = self.of(labels);
            if (self.shown)(labels, metric) {
                metric.encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}
