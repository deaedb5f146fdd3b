//! What stands between a connection and the services: panics become errors, and streams end when the server does.

use std::any::Any;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use http_body::Frame;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, Bytes, Service};

/// Services behind a guard.
///
/// A handler that panics drops what it holds as with any early return, so nothing here is left half-way but what the
/// handler itself shares with others; that is why the unwinding is asserted to be safe.
#[derive(Debug, Clone)]
pub(super) struct Guard<S> {
    services: S,
    draining: CancellationToken,
}

impl<S> Guard<S> {
    /// Guards services of a server that is about to end when the token is cancelled.
    pub(super) fn new(services: S, draining: CancellationToken) -> Self {
        Self { services, draining }
    }
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<GuardedBody>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.services.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri().clone();
        let call = catch_unwind(AssertUnwindSafe(|| self.services.call(request)));
        let draining = self.draining.clone();
        Box::pin(async move {
            let response = match call {
                Ok(call) => AssertUnwindSafe(call).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            let response = match response {
                Ok(Ok(response)) => response,
                Err(panic) => status_of(uri.path(), &*panic).into_http(),
            };
            let method = uri.path().to_owned();
            Ok(response.map(|body| GuardedBody {
                body: Some(body),
                method,
                draining: Box::pin(draining.cancelled_owned()),
            }))
        })
    }
}

/// The body of a response. A unary call's is there at once; one that keeps its reader waiting is a stream.
pub(super) struct GuardedBody {
    /// `None` after the end.
    body: Option<Body>,
    method: String,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl GuardedBody {
    fn end_with(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx))) {
            Ok(Poll::Pending) if self.draining.as_mut().poll(cx).is_ready() => {
                self.end_with(&Status::unavailable("the driver is shutting down"))
            }
            Ok(polled) => polled,
            Err(panic) => {
                let status = status_of(&self.method, &*panic);
                self.end_with(&status)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.as_ref().map_or_else(http_body::SizeHint::default, http_body::Body::size_hint)
    }
}

fn status_of(method: &str, panic: &(dyn Any + Send)) -> Status {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    tracing::error!(method, panic = text, "a handler panicked");
    Status::internal(format!("the driver panicked: {text}"))
}
