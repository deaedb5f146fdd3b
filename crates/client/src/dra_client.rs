//! Requests about `resource.k8s.io`, in the newest version that the server has.
//!
//! v1 is tried first. Only when the server does not know that version is it asked which versions it serves. So discovery
//! costs no request with current servers, and a claim that does not exist costs one request, not one per version.

#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::response::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower::BoxError;

use crate::connection::kept::{KeptConnections, Streamed};
use crate::error::message;
use crate::{ApiError, DraVersion, Server};

const JSON: &str = "application/json";
/// The largest answer to discovery that is read; real ones are far smaller.
const MAX_GROUP: usize = 1024 * 1024;
/// The time limit of discovery: its answer is small, and all requests in a version that the server does not have wait for it.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The characters to escape: all but the unreserved ones of RFC 3986, section 2.3.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// An answer of the API server: the HTTP status and the body.
pub type Answer = (StatusCode, Bytes);

/// A client for `resource.k8s.io` that discovers which version the server has. Clones share the discovered version.
///
/// A caller sends a request with the current [`version`](Self::version). If the server answers 404, which is also how it
/// answers for a version that it does not have, the caller calls [`rediscover`](Self::rediscover) and repeats the request if
/// that returns another version.
#[derive(Clone)]
pub struct DraClient {
    transport: Transport,
    server: Server,
    /// The index of the version in [`DraVersion::ALL`].
    version: Arc<AtomicU8>,
    discovery: Arc<Mutex<()>>,
}

/// What requests are sent with.
#[derive(Clone)]
enum Transport {
    Kept(Arc<KeptConnections>),
    /// The caller's own client.
    Kube(kube::Client),
}

/// The body of an answer, which is read as it arrives.
pub struct AnswerBody(AnswerSource);

enum AnswerSource {
    Kept(Streamed),
    Kube(Body),
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
}

impl From<Body> for AnswerBody {
    fn from(body: Body) -> Self {
        Self(AnswerSource::Kube(body))
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            AnswerSource::Kept(body) => Pin::new(body).poll_frame(context).map_err(BoxError::from),
            AnswerSource::Kube(body) => Pin::new(body).poll_frame(context).map_err(BoxError::from),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            AnswerSource::Kept(body) => body.is_end_stream(),
            AnswerSource::Kube(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            AnswerSource::Kept(body) => body.size_hint(),
            AnswerSource::Kube(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for DraClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraClient").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl DraClient {
    /// Creates a client that assumes v1 until the server says otherwise.
    pub fn new(client: kube::Client) -> Self {
        Self::with_version(client, DraVersion::V1)
    }

    /// Creates a client that assumes this version until the server says otherwise.
    pub fn with_version(client: kube::Client, version: DraVersion) -> Self {
        Self::with_transport(Transport::Kube(client), version)
    }

    /// Creates a client that sends its requests over these connections.
    pub(crate) fn on(kept: KeptConnections) -> Self {
        Self::with_transport(Transport::Kept(Arc::new(kept)), DraVersion::V1)
    }

    fn with_transport(transport: Transport, version: DraVersion) -> Self {
        let version = Arc::new(AtomicU8::new(index(version)));
        Self { transport, server: Server::default(), version, discovery: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn kept_for_tests(&self) -> &KeptConnections {
        match &self.transport {
            Transport::Kept(kept) => kept,
            Transport::Kube(_) => panic!("the client is the caller's own"),
        }
    }

    /// Sets what errors say of the server.
    #[must_use]
    pub fn with_server(self, server: Server) -> Self {
        Self { server, ..self }
    }

    /// Returns the server, whose URL is known if the client was made by [`Self::connect`].
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the version that requests should use.
    pub fn version(&self) -> DraVersion {
        DraVersion::ALL[usize::from(self.version.load(Ordering::Relaxed)) % DraVersion::ALL.len()]
    }

    /// Discovers the version to use after the server did not know the one that was tried: at the first request, or after the
    /// server was replaced.
    ///
    /// Concurrent callers share one request, and get the version that it found. [`ApiError::NoVersion`] means that there is
    /// no other version to try, [`ApiError::Timeout`] that there was no answer within ten seconds.
    pub async fn rediscover(&self, tried: DraVersion) -> Result<DraVersion, ApiError> {
        // Also the limit of those who wait for the request of another caller: each would wait for its own one after it.
        let version = timeout(DISCOVERY_TIMEOUT, self.discover(tried)).await;
        version.unwrap_or_else(|_elapsed| Err(self.timeout(DISCOVERY_TIMEOUT)))
    }

    async fn discover(&self, tried: DraVersion) -> Result<DraVersion, ApiError> {
        let _guard = self.discovery.lock().await;
        let current = self.version();
        if current != tried {
            return Ok(current);
        }
        let request = self.request(Method::GET, "/apis/resource.k8s.io", JSON, Vec::new())?;
        let group: APIGroup = match self.exchange(request, MAX_GROUP).await? {
            (StatusCode::OK, body) => serde_json::from_slice(&body).map_err(ApiError::Decode)?,
            (StatusCode::NOT_FOUND, _) => return Err(ApiError::NoVersion),
            (status, body) => return Err(ApiError::from_answer(status, &body)),
        };
        let newest = DraVersion::newest(|name| group.versions.iter().any(|served| served.version == name));
        // A server that lists the tried version does not have the resource or the object in it.
        let version = newest.filter(|version| *version != tried).ok_or(ApiError::NoVersion)?;
        self.version.store(index(version), Ordering::Relaxed);
        tracing::info!(version = version.name(), "resource.k8s.io version discovered");
        Ok(version)
    }

    /// Builds a request that accepts JSON. `content_type` is that of the body, unless the body is empty.
    ///
    /// A `String` as path is not copied.
    pub fn request<P>(
        &self,
        method: Method,
        path: P,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Request<Body>, ApiError>
    where
        Uri: TryFrom<P, Error: Into<http::Error>>,
    {
        let accept = HeaderValue::from_static(JSON);
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        request.body(Body::from(body)).map_err(|error| ApiError::send(&self.server, error))
    }

    /// Sends a request, and returns when the head of the answer has arrived.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<AnswerBody>, ApiError> {
        let opened: Result<_, BoxError> = match &self.transport {
            Transport::Kept(kept) => {
                kept.open(request).await.map(|answer| answer.map(|body| AnswerBody(AnswerSource::Kept(body))))
            }
            Transport::Kube(client) => {
                client.send(request).await.map(|answer| answer.map(AnswerBody::from)).map_err(BoxError::from)
            }
        };
        opened.map_err(|error| ApiError::send(&self.server, error))
    }

    /// Sends a request and reads the answer, up to `max_bytes`. An answer that asks to retry later or to authenticate is an
    /// error; any other is returned, whatever its status.
    pub async fn exchange(&self, request: Request<Body>, max_bytes: usize) -> Result<Answer, ApiError> {
        let Transport::Kept(kept) = &self.transport else {
            // Boxed, so that the usual future stays small.
            let answer = Box::pin(self.send(request)).await?;
            return self.collect(answer, max_bytes).await;
        };
        let exchanged = kept.exchange(request, max_bytes).await;
        let (head, body) = exchanged.map_err(|error| ApiError::send(&self.server, error))?;
        self.answer(&head, body)
    }

    /// As [`Self::exchange`], but never over a connection that was used before, which may be dead without an error.
    pub async fn exchange_anew(&self, request: Request<Body>, max_bytes: usize) -> Result<Answer, ApiError> {
        let Transport::Kept(kept) = &self.transport else { return self.exchange(request, max_bytes).await };
        let exchanged = kept.exchange_anew(request, max_bytes).await;
        let (head, body) = exchanged.map_err(|error| ApiError::send(&self.server, error))?;
        self.answer(&head, body)
    }

    /// Reads the body of an answer, up to `max_bytes`, with the same errors as [`Self::exchange`].
    pub async fn collect(&self, response: Response<AnswerBody>, max_bytes: usize) -> Result<Answer, ApiError> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, max_bytes).collect().await;
        let body = body.map_err(|error| ApiError::send(&self.server, error))?.to_bytes();
        self.answer(&head, body)
    }

    fn answer(&self, head: &Parts, body: Bytes) -> Result<Answer, ApiError> {
        if let Some(error) = ApiError::retry_after(head, &body) {
            return Err(error);
        }
        if head.status == StatusCode::UNAUTHORIZED {
            return Err(ApiError::Unauthorized { server: self.server.clone(), message: message(&body) });
        }
        Ok((head.status, body))
    }

    /// Creates the error for an answer that did not arrive within a time limit.
    pub fn timeout(&self, after: Duration) -> ApiError {
        ApiError::Timeout { server: self.server.clone(), after }
    }
}

/// Returns the index of a version in [`DraVersion::ALL`].
fn index(version: DraVersion) -> u8 {
    (0u8..).zip(DraVersion::ALL).find(|(_, known)| *known == version).map_or(0, |(index, _)| index)
}

/// Percent-encodes a string for a query parameter or a path segment.
///
/// ```
/// # use drakkar_client::escape;
/// let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector={}", escape("spec.nodeName=node-1"));
/// assert_eq!(path, "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-1");
/// ```
pub fn escape(text: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(text, ESCAPED)
}
