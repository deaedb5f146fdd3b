//! The connections of the endpoint: accepting them, dropping some when there are too many, and their one response.
//!
//! A connection is in one of three stages, and each stage has its own limit:
//!
//! | stage | cost | dropped at the limit |
//! |---|---|---|
//! | [`idle`]: nothing was received yet | a file descriptor | the oldest of the address that has the most |
//! | partial: a part of a request was received | a task, a buffer of some kilobytes | the oldest |
//! | responding | the response | the oldest |
//!
//! A probe sends its request in one piece and is answered directly ([`Pages::probe_response`]), so it never reaches the
//! later stages. It is idle for as long as its client takes from connecting to sending. With a thousand idle connections
//! that may be 75 ms while others open 13,000 connections per second.
//!
//! The kernel queues connections that are not accepted yet, and each waits for all before it. So as little as possible is
//! done for a connection that has sent nothing.

mod idle;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, acceptfrom_with, recv, send};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::idle::IdleConnections;
use super::access::Peer;
use super::{Limits, Pages};

/// The number of connections that are accepted before those that have sent something are served.
const BATCH: usize = 256;
/// The maximum size of requests that are answered directly. Those of probes have a few hundred bytes.
const PROBE_BYTES: usize = 2048;
/// The delay before accepting again when file descriptors or memory are exhausted.
const EXHAUSTED_DELAY: Duration = Duration::from_millis(10);

/// Serves connections until `stopping` is cancelled, then waits for those in progress.
pub(super) async fn serve(
    listener: AsyncFd<TcpListener>,
    pages: Arc<Pages>,
    limits: Limits,
    stopping: CancellationToken,
) -> io::Result<()> {
    let mut idle = IdleConnections::new(limits.idle, limits.header.min(limits.connection))?;
    let mut active = ActiveConnections::new(pages, limits, stopping.clone());
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            ready = listener.readable() => drop(ready?),
            () = idle.changed() => {}
        }
        for _ in 0..BATCH {
            match listener.try_io(Interest::READABLE, accept) {
                Ok((socket, peer)) => {
                    if let Some(socket) = active.serve(socket) {
                        idle.add(socket, peer).unwrap_or_else(|error| warn_exhausted(&error));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The client has already disconnected.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::CONNABORTED | Errno::INTR)) => {}
                Err(error) => {
                    warn_exhausted(&error);
                    // Frees their file descriptors.
                    idle.close_all();
                    sleep(EXHAUSTED_DELAY).await;
                    break;
                }
            }
        }
        for socket in idle.take_readable() {
            // A socket that is readable without data has been closed by its client.
            drop(active.serve(socket));
        }
        idle.close_expired();
        active.reap();
        // Lets the tasks of the active connections run.
        tokio::task::yield_now().await;
    }
    drop(listener);
    idle.close_all();
    active.join().await;
    Ok(())
}

fn warn_exhausted(error: &io::Error) {
    tracing::warn!(%error, "http endpoint: accepting a connection failed, retrying");
}

/// Accepts a connection in one system call.
fn accept(listener: &TcpListener) -> io::Result<(OwnedFd, IpAddr)> {
    let (socket, peer) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((socket, peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())))
}

/// The connections that have sent something.
struct ActiveConnections {
    pages: Arc<Pages>,
    router: Router,
    limits: Limits,
    stopping: CancellationToken,
    table: ConnectionTable,
    tasks: JoinSet<()>,
}

impl ActiveConnections {
    fn new(pages: Arc<Pages>, limits: Limits, stopping: CancellationToken) -> Self {
        let router = pages.router();
        Self { pages, router, limits, stopping, table: ConnectionTable::new(limits), tasks: JoinSet::new() }
    }

    /// Answers a probe directly and any other request in a task. Returns the connection if it has sent nothing.
    fn serve(&mut self, socket: OwnedFd) -> Option<OwnedFd> {
        let mut buffer = [0; PROBE_BYTES];
        let received = match recv(&socket, &mut buffer, RecvFlags::PEEK) {
            Ok((length, _)) => buffer.get(..length).unwrap_or_default(),
            Err(Errno::AGAIN) => return Some(socket),
            Err(_disconnected) => return None,
        };
        let is_http = received.first().is_some_and(|byte| byte.is_ascii_uppercase() || b"\r\n".contains(byte));
        if let Some(response) = self.pages.probe_response(received) {
            let length = received.len();
            // Closing a socket with unread data sends a reset, which could overtake the response. A response that does not fit
            // into the send buffer is lost, but no health page is that long.
            let sent = recv(&socket, buffer.get_mut(..length).unwrap_or_default(), RecvFlags::empty())
                .and_then(|_| send(&socket, response.as_bytes(), SendFlags::NOSIGNAL));
            if let Err(error) = sent {
                tracing::debug!(%error, "http endpoint: connection failed");
            }
        } else if is_http {
            self.spawn(socket);
        }
        None
    }

    fn spawn(&mut self, socket: OwnedFd) {
        let stream = match TcpStream::from_std(socket.into()) {
            Ok(stream) => stream,
            Err(error) => return warn_exhausted(&error),
        };
        let entry = self.table.entry();
        let id = entry.id;
        let response = respond(stream, entry, self.router.clone(), self.limits, self.stopping.clone());
        let task = self.tasks.spawn(response);
        // The task cannot have run yet: the runtime has one thread, and there is no await in between.
        self.table.lock().enter(id, task, Stage::Partial);
    }

    /// Removes tasks that have ended.
    fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Waits for all tasks.
    async fn join(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves the one request of a connection.
async fn respond(stream: TcpStream, entry: Entry, router: Router, limits: Limits, stopping: CancellationToken) {
    let peer = stream.peer_addr().ok().map(|peer| Peer(peer.ip()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        entry.mark_responding();
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = async {
        tokio::select! {
            served = connection.as_mut() => served,
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    match timeout(limits.connection, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "http endpoint: connection failed"),
        Err(_elapsed) => tracing::debug!("http endpoint: connection timed out"),
    }
}

/// The stage of an active connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Partial,
    Responding,
}

/// A connection's entry in the table. Dropping it removes the connection.
struct Entry {
    id: u64,
    table: ConnectionTable,
}

impl Entry {
    /// Moves the connection to the next stage: its request is complete.
    fn mark_responding(&self) {
        let mut stages = self.table.lock();
        if let Some(task) = stages.partial.remove(&self.id) {
            stages.enter(self.id, task, Stage::Responding);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut stages = self.table.lock();
        stages.partial.remove(&self.id);
        stages.responding.remove(&self.id);
    }
}

/// The active connections by stage, in the order in which they were accepted.
#[derive(Clone)]
struct ConnectionTable(Arc<Mutex<Stages>>);

struct Stages {
    next_id: u64,
    limits: Limits,
    partial: BTreeMap<u64, AbortHandle>,
    responding: BTreeMap<u64, AbortHandle>,
}

impl ConnectionTable {
    fn new(limits: Limits) -> Self {
        let stages = Stages { next_id: 0, limits, partial: BTreeMap::new(), responding: BTreeMap::new() };
        Self(Arc::new(Mutex::new(stages)))
    }

    /// Creates an entry for the next connection.
    fn entry(&self) -> Entry {
        let mut stages = self.lock();
        let id = stages.next_id;
        stages.next_id += 1;
        Entry { id, table: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Stages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stages {
    /// Moves a connection to a stage. At the limit it replaces the oldest one there.
    fn enter(&mut self, id: u64, task: AbortHandle, stage: Stage) {
        let (members, limit) = match stage {
            Stage::Partial => (&mut self.partial, self.limits.partial),
            Stage::Responding => (&mut self.responding, self.limits.responding),
        };
        if members.len() >= limit
            && let Some((_, oldest)) = members.pop_first()
        {
            oldest.abort();
        }
        members.insert(id, task);
    }
}
