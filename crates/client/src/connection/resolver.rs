//! Name resolution with errors that name the host.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use tower::Service;

use crate::send_error::LookupError;

/// The system's resolver. Its errors say which name was looked up.
#[derive(Debug, Clone)]
pub(super) struct NamingResolver(GaiResolver);

impl NamingResolver {
    pub(super) fn new() -> Self {
        Self(GaiResolver::new())
    }
}

impl Service<Name> for NamingResolver {
    type Response = GaiAddrs;
    type Error = LookupError;
    type Future = Pin<Box<dyn Future<Output = Result<GaiAddrs, LookupError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LookupError>> {
        self.0.poll_ready(context).map_err(|source| LookupError { name: String::new(), source })
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let host = name.as_str().to_owned();
        let addresses = self.0.call(name);
        Box::pin(async move { addresses.await.map_err(|source| LookupError { name: host, source }) })
    }
}
