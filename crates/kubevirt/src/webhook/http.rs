//! The webhook's HTTP: paths, methods, and the limits of one request.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::review::review;
use super::{BODY_RATE, Options, Policy};
use crate::hook::review_launcher_pod;

/// The size up to which a body needs no place among the large ones: slow clients with small bodies hold up no one. Most
/// reviews are smaller.
const SMALL_BODY: usize = 64 << 10;

type Answer = Response<Full<Bytes>>;

/// Answers requests.
#[derive(Debug, Clone)]
pub(super) struct Service {
    policy: watch::Receiver<Policy>,
    /// Requests with large bodies at a time.
    places: Arc<Semaphore>,
    max_body: usize,
    timeout: Duration,
    body_timeout: Duration,
}

impl Service {
    pub(super) fn new(options: &Options, policy: watch::Receiver<Policy>) -> Self {
        Self {
            policy,
            places: Arc::new(Semaphore::new(options.max_requests)),
            max_body: options.max_body,
            timeout: options.request_timeout,
            body_timeout: options.body_timeout,
        }
    }

    pub(super) async fn respond<B>(&self, request: Request<B>) -> Result<Answer, Infallible>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Ok(match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/healthz" | "/livez" | "/readyz") => text(StatusCode::OK, "ok"),
            (&Method::POST, path @ ("/validate" | "/mutate-pods")) => {
                let is_pod = path == "/mutate-pods";
                match tokio::time::timeout(self.timeout, self.review(request, is_pod)).await {
                    Ok(answer) => answer,
                    Err(_) => {
                        let seconds = self.timeout.as_secs_f32();
                        text(StatusCode::REQUEST_TIMEOUT, format!("the request took more than {seconds} s to arrive"))
                    }
                }
            }
            (_, "/validate" | "/mutate-pods") => with_allow("POST"),
            (_, "/healthz" | "/livez" | "/readyz") => with_allow("GET, HEAD"),
            (_, path) => text(StatusCode::NOT_FOUND, format!("no such path {path:?}: reviews go to /validate")),
        })
    }

    async fn review<B>(&self, request: Request<B>, is_pod: bool) -> Answer
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let content_type = request.headers().get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
        if !content_type.is_some_and(is_json) {
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected an AdmissionReview as application/json");
        }
        let body = request.into_body();
        if body.size_hint().lower() > self.max_body as u64 {
            return self.too_large();
        }
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let policy = *self.policy.borrow();
        let reviewed = if is_pod {
            review_launcher_pod(&body).map_err(|error| error.to_string())
        } else {
            review(&body, &policy).map_err(|error| error.to_string())
        };
        match reviewed {
            Ok(answer) => json(answer),
            Err(error) => {
                tracing::warn!(error, "malformed review");
                text(StatusCode::BAD_REQUEST, error)
            }
        }
    }

    /// Reads a body, or returns the answer to one that is too large or too slow.
    async fn read<B>(&self, body: B) -> Result<Vec<u8>, Answer>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = pin!(body);
        let mut bytes = Vec::new();
        let mut place = None;
        let mut start = Instant::now();
        loop {
            // A client that sends byte by byte keeps its place no longer than one that sends nothing.
            let turns = u32::try_from(bytes.len() / BODY_RATE + 1).unwrap_or(u32::MAX);
            let deadline = start + self.body_timeout.saturating_mul(turns);
            let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
                    return Err(text(StatusCode::BAD_REQUEST, format!("reading the request failed: {error}")));
                }
                Ok(None) => return Ok(bytes),
                Err(_) => {
                    let seconds = self.body_timeout.as_secs_f32();
                    let message =
                        format!("the body arrives too slowly: {BODY_RATE} bytes per {seconds} s are the least");
                    return Err(text(StatusCode::REQUEST_TIMEOUT, message));
                }
            };
            // Trailers are of no interest.
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > self.max_body {
                return Err(self.too_large());
            }
            if place.is_none() && bytes.len() + data.len() > SMALL_BODY {
                let waiting = Instant::now();
                // The semaphore is never closed.
                place = self.places.acquire().await.ok();
                start += waiting.elapsed();
            }
            bytes.extend_from_slice(&data);
        }
    }

    fn too_large(&self) -> Answer {
        let mut answer =
            text(StatusCode::PAYLOAD_TOO_LARGE, format!("an AdmissionReview has at most {} bytes", self.max_body));
        // What is left of the body is not read.
        answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        answer
    }
}

/// Whether a content type is JSON, with or without parameters.
fn is_json(content_type: &[u8]) -> bool {
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

fn with_allow(methods: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("allowed: {methods}"));
    answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(methods));
    answer
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.into())
}

fn json(body: Vec<u8>) -> Answer {
    answer(StatusCode::OK, "application/json", body.into())
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}
