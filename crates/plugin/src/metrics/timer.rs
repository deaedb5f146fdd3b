//! Guards that record how long something took, also when it is given up half-way.

use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use tonic::Code as Grpc;

use super::Metrics;
use super::labels::{ApiAnswer, Code, Method, Version};

/// Records the time until it is dropped.
#[derive(Debug)]
#[must_use = "the time ends when this is dropped"]
pub(crate) struct Timer {
    histogram: Histogram,
    started: Instant,
}

impl Timer {
    pub(super) fn new(histogram: &Histogram) -> Self {
        Self { histogram: histogram.clone(), started: Instant::now() }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.histogram.observe(self.started.elapsed().as_secs_f64());
    }
}

/// A gRPC call, or a stream, that is going on.
///
/// Dropped without [`Self::finish`] it counts as cancelled: the kubelet gave up, or the server was stopped. Dropped by a panic
/// it counts as the internal error that the kubelet gets then.
#[derive(Debug)]
#[must_use = "a call that is dropped counts as cancelled"]
pub(crate) struct Call {
    metrics: Metrics,
    method: Method,
    version: Version,
    started: Instant,
    code: Option<Code>,
}

impl Call {
    pub(super) fn start(metrics: &Metrics, method: Method, version: Version) -> Self {
        metrics.in_flight(method).inc();
        Self { metrics: metrics.clone(), method, version, started: Instant::now(), code: None }
    }

    /// The call was answered.
    pub(crate) fn finish(mut self, code: Grpc) {
        self.code = Some(code.into());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let given_up = if std::thread::panicking() { Code::Internal } else { Code::Cancelled };
        let code = self.code.unwrap_or(given_up);
        self.metrics.end_call(self.method, self.version, code, self.started.elapsed());
    }
}

/// A request to the API server that is going on. Dropped without [`Self::finish`] it had no answer.
#[derive(Debug)]
#[must_use = "a request that is dropped counts as not answered"]
pub(crate) struct ApiGet {
    metrics: Metrics,
    started: Instant,
    answer: ApiAnswer,
}

impl ApiGet {
    pub(super) fn start(metrics: &Metrics) -> Self {
        Self { metrics: metrics.clone(), started: Instant::now(), answer: ApiAnswer::None }
    }

    /// The API server answered, or could not be asked.
    pub(crate) fn finish(mut self, answer: ApiAnswer) {
        self.answer = answer;
    }
}

impl Drop for ApiGet {
    fn drop(&mut self) {
        self.metrics.end_api_get(self.answer, self.started.elapsed());
    }
}
