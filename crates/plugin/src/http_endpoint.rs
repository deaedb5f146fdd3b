//! The optional HTTP endpoint (`--http-endpoint`): health, metrics and status for operators and probes.
//!
//! It owns the listener and all connections; what is on the pages is in [`pages`]. It is off unless asked for, and has no
//! secrets, but everybody who reaches the address can ask. Promises:
//! - Nobody can use it up: a request has to be there within [`Limits::header`], a connection lasts [`Limits::connection`] at
//!   most and serves one request, and there are at most [`Limits::connections`]. One more ends the oldest, which is never a
//!   probe that behaves: a probe always gets its answer.
//! - It does no work but to answer GET and HEAD; bodies of requests are not read.
//! - It dies with its owner, and at the end lets answers that are under way finish ([`HttpEndpoint::stop`]).

mod pages;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

pub(crate) use pages::Pages;

/// How long to wait before connections are accepted again when there is nothing left to accept them with.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What can go wrong with the endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The address cannot be listened on.
    #[error("http endpoint {address}: {source}{}", advice(.source))]
    Listen { address: SocketAddr, source: io::Error },
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
    /// How many connections there may be at once.
    connections: usize,
    /// The size of a request's head in bytes.
    head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            connection: Duration::from_secs(15),
            connections: 64,
            head_bytes: 16 * 1024,
        }
    }
}

/// The running endpoint.
#[derive(Debug)]
pub(crate) struct HttpEndpoint {
    address: SocketAddr,
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

/// An address that is ours, before anything is served there: what cannot be had is known before the kubelet sees a socket.
#[derive(Debug)]
pub(crate) struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpListener {
    /// Listens. Port 0 is any free port. Must be called in a tokio runtime.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, HttpError> {
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        listen().map_err(|source| HttpError::Listen { address, source })
    }

    /// Serves from now on. Must be called in a tokio runtime.
    pub(crate) fn serve(self, pages: Pages) -> HttpEndpoint {
        self.serve_with(pages, Limits::default())
    }

    fn serve_with(self, pages: Pages, limits: Limits) -> HttpEndpoint {
        let Self { listener, address } = self;
        let stopping = CancellationToken::new();
        let task = tokio::spawn(serve(listener, pages.router(), limits, stopping.clone()));
        tracing::info!(%address, "http endpoint serves");
        HttpEndpoint { address, stopping, task }
    }
}

impl HttpEndpoint {
    /// Where it listens, with the port that was chosen.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, closes those without a request, and lets answers finish until the deadline.
    pub(crate) async fn stop(mut self, deadline: Instant) -> Result<(), HttpError> {
        self.stopping.cancel();
        match timeout_at(deadline, &mut self.task).await {
            // A panic of the task has been reported by the runtime, and nothing is left that could be stopped.
            Ok(Ok(()) | Err(_)) => Ok(()),
            Err(_) => {
                self.task.abort();
                Err(HttpError::CutOff { address: self.address })
            }
        }
    }
}

impl Drop for HttpEndpoint {
    /// The task owns the listener and all connections.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections until told to stop, then waits for those that there are.
async fn serve(listener: TcpListener, router: Router, limits: Limits, stopping: CancellationToken) {
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "http endpoint cannot accept a connection now, trying again");
                sleep(EXHAUSTED).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection| !connection.is_finished());
        if oldest_first.len() >= limits.connections
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
        oldest_first.push_back(connections.spawn(answer(stream, router.clone(), limits, stopping.clone())));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, router: Router, limits: Limits, stopping: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let answered = async {
        tokio::select! {
            answered = connection.as_mut() => answered,
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    match timeout(limits.connection, answered).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "http endpoint: a connection failed"),
        Err(_) => tracing::debug!("http endpoint: a connection took too long and was closed"),
    }
}
