//! The gRPC services of a server, by name.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;

use super::unary::{self, ResponseBody, UnaryService};

/// Calls a service.
type Call = dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<ResponseBody>> + Send + Sync;

/// The gRPC services of a server. A call of any other service is answered with `UNIMPLEMENTED`.
///
/// A server has at most four, so that a list is searched faster than a router would be.
#[derive(Clone, Default)]
pub(crate) struct Routes(Vec<(&'static str, Arc<Call>)>);

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Routes {
    /// Adds a service with unary methods.
    pub(crate) fn with_unary<S: UnaryService>(mut self, service: Arc<S>) -> Self {
        let call = move |request| {
            let service = service.clone();
            async move { unary::call(&*service, request).await }.boxed()
        };
        self.0.push((S::NAME, Arc::new(call)));
        self
    }

    /// Adds a service that tonic has generated.
    pub(crate) fn with<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let call = move |request| {
            // The services that tonic generates are always ready, and a clone shares the service itself.
            let called = service.clone().call(request);
            async move {
                match called.await {
                    Ok(response) => response.map(ResponseBody::Stream),
                    Err(never) => match never {},
                }
            }
            .boxed()
        };
        self.0.push((S::NAME, Arc::new(call)));
        self
    }

    /// Calls the service that the request's path names.
    pub(super) async fn call(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let service = service_of(request.uri().path());
        match self.0.iter().find(|(name, _)| *name == service) {
            Some((_, call)) => call(request).await,
            None => Status::unimplemented(format!("unknown service {service}")).into_http(),
        }
    }
}

/// Returns the service in a gRPC path, `/SERVICE/METHOD`.
fn service_of(path: &str) -> &str {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).map_or("", |(service, _)| service)
}
