//! Errors of requests to the API server, and whether and when to retry.

use std::time::Duration;

use drakkar_metadata::show::Printable;
use http::StatusCode;
use http::header::RETRY_AFTER;
use http::response::Parts;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use crate::backoff::jittered;
use crate::{DraVersion, SendError, Server};

/// The longest `Retry-After` that is honored. A server that needs more time can send it again.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The number of bytes that are quoted of an answer that is not a `Status` object.
const MAX_QUOTED: usize = 200;
/// The reason of the cause in an answer to a request for a resource version that the server does not have.
const RESOURCE_VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";

/// Why the API server gave no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The request could not be sent, or the answer not be received.
    #[error("{0}")]
    Send(#[source] Box<SendError>),
    /// The answer did not arrive in time.
    #[error(
        "no answer from {server} within {} s; check its load, and the network between this node or pod and the server",
        .after.as_secs()
    )]
    Timeout {
        /// The server.
        server: Server,
        /// The time limit.
        after: Duration,
    },
    /// The server does not know the client.
    #[error(
        "{server} answered {}: {}; it does not accept the credentials: check the user's token or certificate in the \
         kubeconfig, or in a pod its service account",
        StatusCode::UNAUTHORIZED,
        Printable::whole(message)
    )]
    Unauthorized {
        /// The server.
        server: Server,
        /// The server's message.
        message: String,
    },
    /// The answer is an error.
    #[error("the API server answered {status}: {}", Printable::whole(message))]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The server's message.
        message: String,
    },
    /// The server does not have the requested resource version: it lags behind, or was restored from a backup.
    #[error("the API server answered {}: {}", StatusCode::GATEWAY_TIMEOUT, Printable::whole(message))]
    ResourceVersionTooLarge {
        /// The message of the server.
        message: String,
    },
    /// The answer is an error with a `Retry-After` header.
    #[error("{error}; retry after {} s", .after.as_secs())]
    RetryAfter {
        /// The error.
        error: Box<ApiError>,
        /// The delay that the server asks for.
        after: Duration,
    },
    /// The server has no version of `resource.k8s.io` that this crate knows.
    #[error("the API server serves none of {}", DraVersion::ALL.map(DraVersion::api_version).join(", "))]
    NoVersion,
    /// The answer could not be decoded.
    #[error("the API server's answer cannot be decoded: {0}")]
    Decode(#[source] serde_json::Error),
}

impl ApiError {
    /// Creates the error for a request that could not be sent, or whose answer could not be received.
    pub fn send(server: &Server, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Send(Box::new(SendError::new(server, error.into())))
    }

    /// Creates the error for an answer with an error status, with the server's message.
    pub fn from_answer(status: StatusCode, body: &[u8]) -> Self {
        let object = serde_json::from_slice::<Status>(body).unwrap_or_default();
        let message = object.message.unwrap_or_else(|| quote(body));
        let mut causes = object.details.and_then(|details| details.causes).into_iter().flatten();
        // A 504 without this cause is an ordinary timeout.
        if status == StatusCode::GATEWAY_TIMEOUT
            && causes.any(|cause| cause.reason.as_deref() == Some(RESOURCE_VERSION_TOO_LARGE))
        {
            return Self::ResourceVersionTooLarge { message };
        }
        Self::Status { status, message }
    }

    /// Creates the error for an answer that asks to retry later; `None` for any other answer.
    pub(crate) fn retry_after(head: &Parts, body: &[u8]) -> Option<Self> {
        // The header may also be a date, but API servers do not send one.
        let seconds = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        let error = Self::from_answer(head.status, body);
        let after = Duration::from_secs(seconds).min(MAX_RETRY_AFTER);
        error.is_transient().then(|| Self::RetryAfter { error: Box::new(error), after })
    }

    /// Returns the HTTP status of the answer, if there is one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::ResourceVersionTooLarge { .. } => Some(StatusCode::GATEWAY_TIMEOUT),
            Self::RetryAfter { error, .. } => error.status(),
            Self::Unauthorized { .. } => Some(StatusCode::UNAUTHORIZED),
            Self::Send(_) | Self::Timeout { .. } | Self::NoVersion | Self::Decode(_) => None,
        }
    }

    /// Returns whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Send(_)
            | Self::Timeout { .. }
            | Self::Unauthorized { .. }
            | Self::RetryAfter { .. }
            | Self::ResourceVersionTooLarge { .. } => true,
            Self::Status { status, .. } => is_transient(*status),
            Self::NoVersion | Self::Decode(_) => false,
        }
    }

    /// Returns the delay before the next try: `delay`, or a longer one if the server asked for it. The server asks all clients
    /// for the same delay, so it gets jitter.
    pub fn retry_delay(&self, delay: Duration) -> Duration {
        match self {
            Self::RetryAfter { after, .. } => delay.max(jittered(*after, 1.0..=2.0)),
            _ => delay,
        }
    }
}

/// Returns the message of an answer: that of its `Status` object, or the beginning of anything else.
pub(crate) fn message(body: &[u8]) -> String {
    let object = serde_json::from_slice::<Status>(body).unwrap_or_default();
    object.message.unwrap_or_else(|| quote(body))
}

/// Returns the beginning of an answer that has no `Status` object.
fn quote(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(MAX_QUOTED)]).trim().to_owned()
}

/// Returns whether the same request may succeed later, after an answer with this status.
pub fn is_transient(status: StatusCode) -> bool {
    // 401: the token is being rotated, and the client reads the new one within a minute.
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::UNAUTHORIZED)
        || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn answer(status: u16, after: Option<&str>) -> Option<ApiError> {
        let mut answer = Response::builder().status(status);
        if let Some(after) = after {
            answer = answer.header(RETRY_AFTER, after);
        }
        let (head, ()) = answer.body(()).unwrap().into_parts();
        ApiError::retry_after(&head, b"Too many requests, please try again later.")
    }

    #[test]
    fn a_delay_is_at_least_retry_after_and_has_jitter() {
        let error = answer(429, Some("4")).unwrap();
        assert!(
            error.is_transient() && error.to_string().contains("429") && error.to_string().contains("try again later")
        );
        let seconds = Duration::from_secs;
        let delays: Vec<Duration> = (0..1000).map(|_| error.retry_delay(seconds(1))).collect();
        assert!(delays.iter().all(|delay| (seconds(4)..=seconds(8)).contains(delay)), "{delays:?}");
        let shortest = delays.iter().min().unwrap();
        let longest = delays.iter().max().unwrap();
        assert!(*longest - *shortest > seconds(3), "from {shortest:?} to {longest:?}");
        assert_eq!(error.retry_delay(seconds(30)), seconds(30), "a longer delay stays as it is");
    }

    #[test]
    fn a_resource_version_that_the_server_does_not_have_is_told_from_a_timeout_by_its_cause() {
        let status = StatusCode::GATEWAY_TIMEOUT;
        let message = "Timeout: Too large resource version: 9, current: 3";
        let cause = r#"{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}"#;
        let body = format!(r#"{{"kind":"Status","message":"{message}","details":{{"causes":[{cause}]}}}}"#);
        let error = ApiError::from_answer(status, body.as_bytes());
        assert!(matches!(error, ApiError::ResourceVersionTooLarge { .. }), "{error:?}");
        assert!(error.is_transient() && error.status() == Some(status));
        let timeout = ApiError::from_answer(status, format!(r#"{{"kind":"Status","message":"{message}"}}"#).as_bytes());
        assert!(matches!(timeout, ApiError::Status { .. }), "{timeout:?}");
        assert_eq!(timeout.to_string(), error.to_string());
    }

    #[test]
    fn retry_after_is_bounded_and_only_read_from_transient_errors() {
        let longest = answer(503, Some("86400")).unwrap().retry_delay(Duration::ZERO);
        assert!((MAX_RETRY_AFTER..=2 * MAX_RETRY_AFTER).contains(&longest), "{longest:?}");
        for (status, after) in [(429, None), (429, Some("soon")), (404, Some("1")), (200, Some("1"))] {
            assert!(answer(status, after).is_none(), "{status} {after:?}");
        }
    }
}
