//! Unary calls: one message in, one message out.
//!
//! A call of the kubelet is one small message, and so is its answer. tonic reads and writes streams of messages: each call has two
//! buffers of 8 kB, and several futures and bodies around each other. Here a message is decoded where it was received, and the
//! answer is encoded once. Each mistake of a client has the status that tonic gives it, with one difference: a second message is
//! refused, not ignored.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tonic::codegen::Bytes;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The size of the largest message that is accepted, the default of gRPC libraries.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The size of what precedes a message: a byte that says whether it is compressed, and its length.
const PREFIX: usize = 5;
/// The header that says how messages are compressed.
const ENCODING: &str = "grpc-encoding";

/// A gRPC service whose methods all are unary.
pub(crate) trait UnaryService: Send + Sync + 'static {
    /// The name in the path of a call.
    const NAME: &'static str;
    /// The names of the methods.
    const METHODS: &'static [&'static str];

    /// Handles a call of one of the methods.
    fn call(&self, method: &str, message: Message) -> impl Future<Output = Result<Reply, Status>> + Send;
}

/// An encoded message of a client.
#[derive(Debug)]
pub(crate) struct Message(Bytes);

/// An encoded answer, with its prefix.
#[derive(Debug)]
pub(crate) struct Reply(Bytes);

impl Message {
    /// Decodes the message.
    pub(crate) fn decode<M: prost::Message + Default>(self) -> Result<M, Status> {
        M::decode(self.0).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Reply {
    /// Encodes an answer.
    pub(crate) fn encode(message: &impl prost::Message) -> Result<Self, Status> {
        let length = message.encoded_len();
        let prefix = u32::try_from(length).map_err(|_too_large| {
            Status::out_of_range(format!("the answer has {length} bytes, more than a message may have"))
        })?;
        let mut bytes = Vec::with_capacity(PREFIX + length);
        bytes.push(0);
        bytes.extend_from_slice(&prefix.to_be_bytes());
        message.encode_raw(&mut bytes);
        Ok(Self(bytes.into()))
    }
}

/// The status for a method that a service does not have.
pub(crate) fn unknown_method(method: &str) -> Status {
    Status::unimplemented(format!("unknown method {method}"))
}

/// Reads the message of a request, calls the service, and answers.
pub(super) async fn call<S: UnaryService>(service: &S, request: Request<Incoming>) -> Response<ResponseBody> {
    match reply(service, request).await {
        Ok(Reply(bytes)) => {
            let mut response = Response::new(ResponseBody::Reply(bytes));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            response
        }
        Err(status) => status.into_http(),
    }
}

async fn reply<S: UnaryService>(service: &S, request: Request<Incoming>) -> Result<Reply, Status> {
    let (head, body) = request.into_parts();
    let method = method_of(head.uri.path());
    // Before anything is read: a client of a newer API, whose method may be a stream, is told at once.
    if !S::METHODS.contains(&method) {
        return Err(unknown_method(method));
    }
    check_encoding(&head.headers)?;
    service.call(method, read(body).await?).await
}

/// Returns the method in a gRPC path, `/SERVICE/METHOD`.
fn method_of(path: &str) -> &str {
    path.splitn(3, '/').nth(2).unwrap_or_default()
}

/// Refuses compressed messages, as clients are told that they are not supported.
fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    let encoding = headers.get(ENCODING).map(HeaderValue::as_bytes).filter(|encoding| *encoding != b"identity");
    let Some(encoding) = encoding else { return Ok(()) };
    let encoding = String::from_utf8_lossy(encoding);
    let mut status = Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
    status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static("identity"));
    Err(status)
}

/// Reads the only message of a body.
async fn read(mut body: Incoming) -> Result<Message, Status> {
    // Nearly every message is in one frame, and is not copied.
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| cancelled(Status::from_error(error.into())))?;
        let Some(data) = frame.into_data().ok().filter(|data| !data.is_empty()) else { continue };
        if first.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
        let received = if all.is_empty() { &first[..] } else { &all };
        if expected(received)?.is_some_and(|expected| received.len() > expected) {
            return Err(Status::internal("a request of this method has one message"));
        }
    }
    let bytes = if all.is_empty() { first } else { all.into() };
    match expected(&bytes)? {
        None if bytes.is_empty() => Err(Status::internal("Missing request message.")),
        Some(expected) if expected == bytes.len() => Ok(Message(bytes.slice(PREFIX..))),
        _ => Err(Status::internal("Unexpected EOF decoding stream.")),
    }
}

/// What is not known of a broken request is that its client is gone.
fn cancelled(status: Status) -> Status {
    if status.code() == Code::Unknown { Status::cancelled(status.message()) } else { status }
}

/// Returns the size of a message and its prefix, once the prefix is there.
fn expected(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some(([flag, length @ ..], _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    match flag {
        0 if length <= MAX_MESSAGE => Ok(Some(PREFIX + length)),
        0 => Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {length} bytes, the limit is: {MAX_MESSAGE} bytes"
        ))),
        1 => Err(Status::internal(
            "protocol error: received message with compressed-flag but no grpc-encoding was specified",
        )),
        flag => Err(Status::internal(format!(
            "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1), while \
             sending request"
        ))),
    }
}

/// The body of a response.
#[derive(Debug, Default)]
pub(super) enum ResponseBody {
    /// Nothing, or nothing more. The status is in the headers, or was in the trailers.
    #[default]
    Empty,
    /// An answer, and then the trailers.
    Reply(Bytes),
    /// The trailers of a call that has succeeded.
    Trailers,
    /// A body of tonic's.
    Stream(tonic::body::Body),
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Reply(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Trailers => {
                *self = Self::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Reply(_) | Self::Trailers => false,
            Self::Stream(body) => body.is_end_stream(),
        }
    }
}
