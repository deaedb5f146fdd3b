//! The optional HTTP endpoint (`--http-endpoint`): health, metrics and status for operators and probes.
//!
//! It owns the listener and all [`connections`]; what is on the pages is in [`pages`]. It is off unless asked for, and has no
//! secrets, but everybody who reaches the address can ask. Promises:
//! - A probe always gets its answer. The endpoint has a thread and a runtime of its own, so it answers while the driver's thread
//!   is busy; whether the driver's runtime still runs is part of the answer ([`pulse`]).
//! - Nobody can use it up: a request has to be there within [`Limits::header`], a connection lasts [`Limits::connection`] at
//!   most and serves one request, and their number is limited, stage by stage. Whoever has sent a request is served before
//!   anybody is let go for lack of space, and those go first who have sent nothing for longest.
//! - It does no work but to answer GET and HEAD; bodies of requests are not read.
//! - It dies with its owner, and at the end lets answers that are under way finish ([`HttpEndpoint::stop`]).

mod connections;
mod pages;
mod pulse;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use pages::Pages;
pub(crate) use pulse::Pulse;

/// The number of connections that the kernel keeps until they are accepted. It has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// What can go wrong with the endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The address cannot be listened on.
    #[error("http endpoint {address}: {source}{}", advice(.source))]
    Listen { address: SocketAddr, source: io::Error },
    /// There is no thread for it.
    #[error("http endpoint {address}: start a thread for it: {source}")]
    Thread { address: SocketAddr, source: io::Error },
    /// Answers were still being written at the deadline.
    #[error("http endpoint {address}: connections did not end in time and were closed")]
    CutOff { address: SocketAddr },
}

/// What an operator can do about an address that cannot be listened on.
fn advice(source: &io::Error) -> &'static str {
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

/// What a peer may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// How long the head of a request may take.
    header: Duration,
    /// How long a connection may take in all.
    connection: Duration,
    /// The number of connections on which nothing was received.
    silent: usize,
    /// The number of connections with half of a request.
    partial: usize,
    /// The number of connections whose answer is being made or sent.
    answering: usize,
    /// The size of a request's head in bytes.
    head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            connection: Duration::from_secs(15),
            silent: silent_limit(),
            partial: 64,
            answering: 64,
            head_bytes: 16 * 1024,
        }
    }
}

/// A thousand, or half of the file descriptors of the process, which needs them for other things.
fn silent_limit() -> usize {
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

/// An address that is ours, before anything is served there: what cannot be had is known before the kubelet sees a socket.
#[derive(Debug)]
pub(crate) struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpListener {
    /// Listens. Port 0 is any free port.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, HttpError> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            // Once more, with a longer queue: the standard library has one of 128.
            rustix::net::listen(&listener, BACKLOG)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        listen().map_err(|source| HttpError::Listen { address, source })
    }

    /// Serves from now on, on a thread of its own.
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
                    tracing::error!(%error, "http endpoint has ended");
                }
                // Does not wait for a scrape that hangs.
                runtime.shutdown_background();
                drop(ending);
            })
        };
        start().map_err(|source| HttpError::Thread { address, source })?;
        tracing::info!(%address, "http endpoint serves");
        Ok(HttpEndpoint { address, stopping, close: close.drop_guard(), ended })
    }
}

/// A runtime for the endpoint's thread, and the listener in it. Its second thread makes metrics, one page at a time.
fn runtime_with(listener: TcpListener) -> io::Result<(Runtime, AsyncFd<TcpListener>)> {
    let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
    let listener = {
        let _entered = runtime.enter();
        watched(listener)?
    };
    Ok((runtime, listener))
}

/// Has the runtime watch a descriptor for reading.
#[allow(
    deprecated,
    reason = "what replaces it is unsafe, for types whose descriptor can change; those here own theirs"
)]
fn watched<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}

impl HttpEndpoint {
    /// Where it listens, with the port that was chosen.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, closes those without a request, and lets answers finish until the deadline.
    pub(crate) async fn stop(self, deadline: Instant) -> Result<(), HttpError> {
        self.stopping.cancel();
        let Self { address, close, ended, .. } = self;
        let stopped = timeout_at(deadline, ended).await;
        drop(close);
        match stopped {
            // The thread has dropped its end, or a panic, which has been reported, has.
            Ok(_ended) => Ok(()),
            Err(_elapsed) => Err(HttpError::CutOff { address }),
        }
    }
}
