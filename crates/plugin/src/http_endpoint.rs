//! The optional HTTP endpoint (`--http-endpoint`): health, metrics and status for operators and probes.
//!
//! It owns the listener and all [`connections`]; [`pages`] has the routes. It is disabled by default and has no
//! authentication: no page has secrets, and those that name claims are for local clients ([`access`]). Promises:
//! - A probe always gets a response. The endpoint has its own thread and runtime, so it responds while the driver's threads
//!   are busy; the response says whether the driver's runtime still runs tasks ([`runtime_probe`]).
//! - Clients cannot exhaust it: a request must arrive within [`Limits::header`], a connection serves one request within
//!   [`Limits::connection`], and the number of connections is limited in each stage. Connections that have sent a request
//!   are served before any connection is dropped to make space, and the longest idle ones are dropped first.
//! - It only answers GET and HEAD and does not read request bodies.
//! - It ends with its owner; a stop lets responses in progress finish ([`HttpEndpoint::stop`]).

mod access;
mod blocking;
mod connections;
mod page;
mod pages;
mod runtime_probe;
mod scrape;
#[cfg(test)]
mod tests;
mod zpages;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use access::HttpDetails;
pub(crate) use pages::Pages;
pub(crate) use runtime_probe::RuntimeProbe;

/// The number of connections that may wait to be accepted. The kernel has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// A failure of the endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// Listening on the address failed.
    #[error("http endpoint {address}: {source}{}", remedy(.source))]
    Listen { address: SocketAddr, source: io::Error },
    /// The endpoint's thread could not be started.
    #[error("http endpoint {address}: start a thread for it: {source}")]
    Thread { address: SocketAddr, source: io::Error },
    /// Responses were still in progress at the deadline.
    #[error("http endpoint {address}: connections did not end in time and were closed")]
    StopTimeout { address: SocketAddr },
}

/// Returns the remedy for a failure to listen.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            ": something else listens there, perhaps another driver or another instance of this one; choose another port \
             with --http-endpoint"
        }
        io::ErrorKind::AddrNotAvailable => {
            ": this machine or pod does not have that address; use one that it has, or 0.0.0.0 or [::] for all, with \
             --http-endpoint"
        }
        io::ErrorKind::PermissionDenied => {
            ": ports below 1024 need the capability NET_BIND_SERVICE; choose a higher one with --http-endpoint"
        }
        _ => "",
    }
}

/// The resources that clients may use.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The timeout for receiving the head of a request.
    header: Duration,
    /// The timeout for a connection as a whole.
    connection: Duration,
    /// The number of connections that have sent nothing.
    idle: usize,
    /// The number of connections that have sent a part of a request.
    partial: usize,
    /// The number of connections whose response is in progress.
    responding: usize,
    /// The size of a request's head in bytes.
    head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            connection: Duration::from_secs(15),
            idle: idle_limit(),
            partial: 64,
            responding: 64,
            head_bytes: 16 * 1024,
        }
    }
}

/// Returns the limit for idle connections: 1024, or half of the process's file descriptors, which it needs for other work.
fn idle_limit() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 2).map_or(1024, |half| half.clamp(16, 1024))
}

/// The running endpoint.
#[derive(Debug)]
pub(crate) struct HttpEndpoint {
    address: SocketAddr,
    stopping: CancellationToken,
    /// Ends the thread at once, and with it the listener and all connections.
    close: DropGuard,
    ended: oneshot::Receiver<()>,
}

/// A bound address that is not served yet. Binding first reports an unusable address before the kubelet sees a socket.
#[derive(Debug)]
pub(crate) struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpListener {
    /// Listens on an address. Port 0 selects a free port.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, HttpError> {
        let listen = |address: SocketAddr| {
            let listener = TcpListener::bind(address)?;
            // Listen again with a longer queue: the standard library uses 128.
            rustix::net::listen(&listener, BACKLOG)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let listening = match listen(address) {
            // A machine without IPv6: all of its addresses are those of IPv4.
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => listen(any),
            listening => listening,
        };
        listening.map_err(|source| HttpError::Listen { address, source })
    }

    /// Starts serving on a thread of its own.
    pub(crate) fn serve(self, pages: Pages) -> Result<HttpEndpoint, HttpError> {
        self.serve_with(pages, Limits::default())
    }

    fn serve_with(self, pages: Pages, limits: Limits) -> Result<HttpEndpoint, HttpError> {
        let Self { listener, address } = self;
        let stopping = CancellationToken::new();
        let close = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let start = || {
            let (runtime, listener) = runtime_with(listener)?;
            let stopping = stopping.clone();
            let close = close.clone();
            thread::Builder::new().name("drakkar-http".to_owned()).spawn(move || {
                let serving = connections::serve(listener, Arc::new(pages), limits, stopping);
                if let Some(Err(error)) = runtime.block_on(close.run_until_cancelled(serving)) {
                    tracing::error!(%error, "http endpoint failed");
                }
                // Does not wait for a hanging scrape.
                runtime.shutdown_background();
                drop(ending);
            })
        };
        start().map_err(|source| HttpError::Thread { address, source })?;
        tracing::info!(%address, "http endpoint started");
        Ok(HttpEndpoint { address, stopping, close: close.drop_guard(), ended })
    }
}

/// Whether listening on an address of IPv6 failed because there are none.
fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Creates the runtime of the endpoint's thread and registers the listener. Its blocking threads encode the metrics and render
/// the page for people.
fn runtime_with(listener: TcpListener) -> io::Result<(Runtime, AsyncFd<TcpListener>)> {
    let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
    let listener = {
        let _entered = runtime.enter();
        register_readable(listener)?
    };
    Ok((runtime, listener))
}

/// Registers a file descriptor with the runtime for reading.
#[allow(
    deprecated,
    reason = "its replacement is unsafe, for types whose descriptor can change; the types used here own theirs"
)]
fn register_readable<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}

impl HttpEndpoint {
    /// Returns the address on which the endpoint listens, with the selected port.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, closes those without a request, and lets responses finish until the deadline.
    pub(crate) async fn stop(self, deadline: Instant) -> Result<(), HttpError> {
        self.stopping.cancel();
        let Self { address, close, ended, .. } = self;
        let stopped = timeout_at(deadline, ended).await;
        drop(close);
        match stopped {
            // The thread has dropped its sender, at its end or while unwinding from a panic.
            Ok(_ended) => Ok(()),
            Err(_elapsed) => Err(HttpError::StopTimeout { address }),
        }
    }
}
