//! Sending one request to the API server and reading its whole answer, within a time limit.
//!
//! A slow API server must not fail a prepare for which the kubelet still has time: a request is never given up to be
//! sent again, since a server that needs 12 s for one answer needs them for the next as well. But a request may also be
//! lost, with a connection that is dead without a word. So a GET without an answer after [`HEDGE_AFTER`] is sent a second
//! time, and whichever answers first counts. There is one such second request for each claim, and none while as many
//! requests are on their way as there may be: an overloaded server gets at most twice the load.

use std::pin::{Pin, pin};
use std::time::Duration;

use drakkar_client::{Answer, ApiError, is_transient};
use futures::future::{Either, select};
use http::{Method, Request};
use kube::client::Body;
use tokio::time::{Instant, timeout, timeout_at};

use super::{ClaimSource, FETCH_TIMEOUT};
use crate::metrics::ApiAnswer;

/// How long a GET may be without an answer before another is sent beside it.
const HEDGE_AFTER: Duration = Duration::from_secs(10);
/// The time limit of a request for which no kubelet waits: an API server itself gives a request a minute.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// More than any object that an API server stores.
const MAX_BODY: usize = 8 * 1024 * 1024;

impl ClaimSource {
    /// Sends a GET, and another one beside it when the first stays without an answer.
    pub(super) async fn get_hedged(&self, path: &str, deadline: Instant) -> Result<Answer, ApiError> {
        let mut first = pin!(self.exchange(self.request_get(path)?));
        if let Ok(answer) = timeout(HEDGE_AFTER, &mut first).await {
            return answer;
        }
        // Rare, and large: the usual way does not carry it around.
        Box::pin(async {
            timeout_at(deadline, self.beside(first, path)).await.unwrap_or(Err(ApiError::Timeout(FETCH_TIMEOUT)))
        })
        .await
    }

    /// Waits for a request that is on its way, and for another one of the same path.
    async fn beside<F>(&self, first: Pin<&mut F>, path: &str) -> Result<Answer, ApiError>
    where
        F: Future<Output = Result<Answer, ApiError>>,
    {
        let Ok(_slot) = self.slots.try_acquire() else { return first.await };
        tracing::debug!(path, "no answer from the API server yet, asking a second time");
        let second = pin!(self.exchange(self.request_get(path)?));
        // A failed request says nothing about the other one.
        match select(first, second).await {
            Either::Left((answer, second)) if may_differ(&answer) => second.await,
            Either::Right((answer, first)) if may_differ(&answer) => first.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    /// Sends a GET.
    pub(super) async fn get_path(&self, path: &str) -> Result<Answer, ApiError> {
        self.send(self.request_get(path)?).await
    }

    /// Sends a request.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Answer, ApiError> {
        timeout(BACKGROUND_TIMEOUT, self.exchange(request)).await.unwrap_or(Err(ApiError::Timeout(BACKGROUND_TIMEOUT)))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Answer, ApiError> {
        let get = self.metrics.api_get();
        self.timer.keep();
        let answer = self.client.exchange(request, MAX_BODY).await;
        match &answer {
            Ok((status, _)) => get.finish(ApiAnswer::of_status(status.as_u16())),
            Err(error) => {
                if let Some(status) = error.status() {
                    get.finish(ApiAnswer::of_status(status.as_u16()));
                }
            }
        }
        answer
    }

    fn request_get(&self, path: &str) -> Result<Request<Body>, ApiError> {
        self.client.request(Method::GET, path, "application/json", Vec::new())
    }
}

/// Whether another request may get a better answer.
fn may_differ(answer: &Result<Answer, ApiError>) -> bool {
    match answer {
        Ok((status, _)) => is_transient(*status),
        Err(error) => error.is_transient(),
    }
}

#[cfg(test)]
mod tests;
