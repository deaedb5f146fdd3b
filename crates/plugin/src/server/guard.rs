//! Between connections and services: turns panics into errors, ends calls at their deadline and streams when the server drains,
//! runs the interceptor and counts calls.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use http_body::Frame;
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, Request, Response, Uri};
use tonic::{Code, Status};

use super::Routes;
use super::deadline;
use super::unary::ResponseBody;
use crate::error::Panicked;
use crate::metrics::{Call, Method, Metrics, Version};

/// Services with the guard around them.
///
/// A handler that panics drops its state as with any early return; only state that the handler shares with others can be
/// left inconsistent. That is why asserting unwind safety is sound here.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    services: Arc<Routes>,
    draining: CancellationToken,
    hooks: CallHooks,
}

/// The metrics and the interceptor that see every call of a server.
#[derive(Clone)]
pub(crate) struct CallHooks {
    /// Counts the calls.
    pub(crate) metrics: Metrics,
    /// May refuse calls.
    pub(crate) interceptor: Option<Interceptor>,
}

/// Inspects the method and headers of a call; returning an error refuses it.
pub(crate) type Interceptor = Arc<dyn Fn(&str, &HeaderMap) -> Result<(), Status> + Send + Sync>;

impl std::fmt::Debug for CallHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallHooks").field("intercepts", &self.interceptor.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Default for CallHooks {
    /// Creates hooks for a test: metrics of their own and no interceptor.
    fn default() -> Self {
        Self { metrics: Metrics::new(&"test.example.com".parse().unwrap()), interceptor: None }
    }
}

impl Guard {
    /// Wraps services. Streams end when `draining` is cancelled.
    pub(super) fn new(services: Routes, draining: CancellationToken, hooks: CallHooks) -> Self {
        Self { services: Arc::new(services), draining, hooks }
    }

    /// Handles a call.
    pub(super) fn call(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<GuardedBody>> + Send + use<> {
        let Self { services, draining, hooks } = self.clone();
        async move {
            let uri = request.uri().clone();
            let mut counted = method_of(uri.path()).map(|(method, version)| hooks.metrics.call(method, version));
            let timeout = deadline::timeout(request.headers());
            let call = AssertUnwindSafe(async {
                if let Some(interceptor) = hooks.interceptor
                    && let Err(refused) = interceptor(uri.path(), request.headers())
                {
                    return refused.into_http();
                }
                services.call(request).await
            })
            .catch_unwind();
            let called = match timeout {
                Some(timeout) => tokio::time::timeout(timeout, call).await,
                None => Ok(call.await),
            };
            let response = match called {
                Ok(Ok(response)) => response,
                Ok(Err(panic)) => status_of(uri.path(), &*panic).into_http(),
                Err(_elapsed) => Status::deadline_exceeded("the deadline of the call has passed").into_http(),
            };
            // A response without a body carries its status in the headers.
            count_ended(&mut counted, response.headers());
            response.map(|body| GuardedBody { body: Some(body), uri, draining, drained: None, counted })
        }
    }
}

/// The body of a response. A unary response is ready at once, so a body that is pending is a stream.
pub(super) struct GuardedBody {
    /// `None` after the body has ended.
    body: Option<ResponseBody>,
    uri: Uri,
    draining: CancellationToken,
    /// Waits for `draining`, once the body has been pending.
    drained: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The call, until its status is known and counted.
    counted: Option<Call>,
}

impl GuardedBody {
    fn end_with(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        if let Some(call) = self.counted.take() {
            call.finish(status.code());
        }
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx))) {
            Ok(Poll::Pending) => {
                let Self { draining, drained, .. } = &mut *self;
                let drained = drained.get_or_insert_with(|| Box::pin(draining.clone().cancelled_owned()));
                match drained.as_mut().poll(cx) {
                    Poll::Ready(()) => self.end_with(&Status::unavailable("the driver is shutting down")),
                    Poll::Pending => Poll::Pending,
                }
            }
            Ok(polled) => {
                if let Poll::Ready(Some(Ok(frame))) = &polled
                    && let Some(trailers) = frame.trailers_ref()
                {
                    count_ended(&mut self.counted, trailers);
                }
                polled
            }
            Err(panic) => {
                let status = status_of(self.uri.path(), &*panic);
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

/// Returns the metric labels of a gRPC path, if it is a method that kubelets call.
fn method_of(path: &str) -> Option<(Method, Version)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let version = match service {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin" | "pluginregistration.Registration" | "v1.DRAResourceHealth" => {
            Version::V1
        }
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin" => Version::V1beta1,
        "v1alpha1.DRAResourceHealth" => Version::V1alpha1,
        _ => return None,
    };
    let method = match method {
        "NodePrepareResources" => Method::Prepare,
        "NodeUnprepareResources" => Method::Unprepare,
        "GetInfo" => Method::GetInfo,
        "NotifyRegistrationStatus" => Method::Notify,
        "NodeWatchResources" => Method::WatchHealth,
        _ => return None,
    };
    Some((method, version))
}

/// Counts the call if these headers or trailers have its status.
fn count_ended(counted: &mut Option<Call>, headers: &HeaderMap) {
    if let Some(code) = headers.get(Status::GRPC_STATUS)
        && let Some(call) = counted.take()
    {
        call.finish(Code::from_bytes(code.as_bytes()));
    }
}

fn status_of(method: &str, panic: &(dyn Any + Send)) -> Status {
    let panicked = Panicked::from(panic);
    tracing::error!(method, %panicked, "gRPC handler panicked");
    Status::internal(panicked.to_string())
}
