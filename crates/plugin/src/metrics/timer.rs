//! Guards that record durations, also when the work is cancelled.

use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use tonic::Code as Grpc;

use super::Metrics;
use super::labels::{ApiAnswer, Code, Method, Version};

/// Records the time until it is dropped.
#[derive(Debug)]
#[must_use = "the timer stops when it is dropped"]
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

/// A gRPC call or stream in progress.
///
/// If it is dropped without [`Self::finish`], it counts as cancelled: the kubelet cancelled the call or the server was
/// stopped. If a panic drops it, it counts as the internal error that the kubelet gets.
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

    /// Records the status of the call.
    pub(crate) fn finish(mut self, code: Grpc) {
        self.code = Some(code.into());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let unfinished = if std::thread::panicking() { Code::Internal } else { Code::Cancelled };
        let code = self.code.unwrap_or(unfinished);
        self.metrics.end_call(self.method, self.version, code, self.started.elapsed());
    }
}

/// A request to the API server in progress. If it is dropped without [`Self::finish`], it counts as unanswered.
#[derive(Debug)]
#[must_use = "a request that is dropped counts as unanswered"]
pub(crate) struct ApiGet {
    metrics: Metrics,
    started: Instant,
    answer: ApiAnswer,
}

impl ApiGet {
    pub(super) fn start(metrics: &Metrics) -> Self {
        Self { metrics: metrics.clone(), started: Instant::now(), answer: ApiAnswer::None }
    }

    /// Records the response of the API server, or that there was none.
    pub(crate) fn finish(mut self, answer: ApiAnswer) {
        self.answer = answer;
    }
}

impl Drop for ApiGet {
    fn drop(&mut self) {
        self.metrics.end_api_get(self.answer, self.started.elapsed());
    }
}
