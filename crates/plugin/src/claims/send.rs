//! Sends one request to the API server and reads the whole response, within a time limit.
//!
//! A slow API server must not fail a prepare for which the kubelet still has time: a request is never cancelled and sent again,
//! because a server that takes 12 s for one response takes them for the next one too. But a request may also be lost, on a
//! connection that is dead without an error. So a GET without a response after [`HEDGE_AFTER`] is sent a second time, over a new
//! connection, and the first response counts. There is one such hedged request for each claim, and none while the maximum number of requests is in
//! flight: an overloaded server gets at most twice the load.

use std::pin::{Pin, pin};
use std::time::Duration;

use drakkar_client::{Answer, ApiError, is_transient};
use futures::future::{Either, select};
use http::{Method, Request};
use kube::client::Body;
use tokio::time::{Instant, timeout, timeout_at};

use super::{ClaimSource, FETCH_TIMEOUT};
use crate::metrics::ApiAnswer;

/// The time without a response after which a GET is sent a second time.
const HEDGE_AFTER: Duration = Duration::from_secs(10);
/// The time limit of a request for which no kubelet waits: the API server's own request timeout.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of a response: more than any object that an API server stores.
const MAX_BODY: usize = 8 * 1024 * 1024;

impl ClaimSource {
    /// Sends a GET, and a second one if the first stays without a response.
    pub(super) async fn get_hedged(&self, path: impl Fn() -> String, deadline: Instant) -> Result<Answer, ApiError> {
        let mut first = pin!(self.exchange(self.request_get(path())?));
        if let Ok(answer) = timeout(HEDGE_AFTER, &mut first).await {
            return answer;
        }
        // Boxed because it is rare and large: the usual future stays small.
        Box::pin(async {
            let answer = timeout_at(deadline, self.hedge(first, path())).await;
            answer.unwrap_or_else(|_elapsed| Err(self.client.timeout(FETCH_TIMEOUT)))
        })
        .await
    }

    /// Sends a second request for the same path, and waits for either.
    async fn hedge<F>(&self, first: Pin<&mut F>, path: String) -> Result<Answer, ApiError>
    where
        F: Future<Output = Result<Answer, ApiError>>,
    {
        let Ok(_slot) = self.slots.try_acquire() else { return first.await };
        tracing::debug!(path, "no response from the API server yet, sending a second request");
        let second = self.client.exchange_anew(self.request_get(path)?, MAX_BODY);
        let second = pin!(self.measured(second));
        // A failed request says nothing about the other one.
        match select(first, second).await {
            Either::Left((answer, second)) if may_differ(&answer) => second.await,
            Either::Right((answer, first)) if may_differ(&answer) => first.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    /// Sends a GET.
    pub(super) async fn get_path(&self, path: String) -> Result<Answer, ApiError> {
        self.send(self.request_get(path)?).await
    }

    /// Sends a request.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Answer, ApiError> {
        let answer = timeout(BACKGROUND_TIMEOUT, self.exchange(request)).await;
        answer.unwrap_or_else(|_elapsed| Err(self.client.timeout(BACKGROUND_TIMEOUT)))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Answer, ApiError> {
        self.measured(self.client.exchange(request, MAX_BODY)).await
    }

    async fn measured(&self, exchange: impl Future<Output = Result<Answer, ApiError>>) -> Result<Answer, ApiError> {
        let get = self.metrics.api_get();
        self.timer.ensure_set();
        let answer = exchange.await;
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

    fn request_get(&self, path: String) -> Result<Request<Body>, ApiError> {
        self.client.request(Method::GET, path, "application/json", Vec::new())
    }
}

/// Whether another request may get a better response.
fn may_differ(answer: &Result<Answer, ApiError>) -> bool {
    match answer {
        Ok((status, _)) => is_transient(*status),
        Err(error) => error.is_transient(),
    }
}

#[cfg(test)]
mod tests;
