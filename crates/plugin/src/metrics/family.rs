//! A metric family with a fixed set of labels.
//!
//! Unlike prometheus-client's `Family` it has all its series from the start. So they are exposed at zero, and
//! `increase()` sees the first failure: it cannot see a counter that starts at 1. Recording is indexing: no hashing, no
//! lock, no allocation. And the order of the series is stable.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::labels::LabelSet;

/// The metrics with the same name, by label values.
#[derive(Debug)]
pub(super) struct StaticFamily<L, M> {
    metrics: Arc<[M]>,
    is_exposed: fn(L, &M) -> bool,
}

impl<L: LabelSet, M> StaticFamily<L, M> {
    /// Creates all metrics of the family.
    pub(super) fn new(metric: impl Fn() -> M) -> Self {
        Self { metrics: L::all().map(|_| metric()).collect(), is_exposed: |_, _| true }
    }

    /// Exposes only the metrics for which this returns true.
    pub(super) fn expose_if(self, is_exposed: fn(L, &M) -> bool) -> Self {
        Self { is_exposed, ..self }
    }

    /// Returns the metric with these labels.
    pub(super) fn get(&self, labels: L) -> &M {
        // Cannot fail: there is one metric for each index.
        &self.metrics[labels.index()]
    }
}

impl<L: LabelSet, M: Default> Default for StaticFamily<L, M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

impl<L, M> Clone for StaticFamily<L, M> {
    fn clone(&self) -> Self {
        Self { metrics: Arc::clone(&self.metrics), is_exposed: self.is_exposed }
    }
}

impl<L: LabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for StaticFamily<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        for labels in L::all() {
            let metric = self.get(labels);
            if (self.is_exposed)(labels, metric) {
                metric.encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}
