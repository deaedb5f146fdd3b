//! The connections of the endpoint: who is accepted, who is let go when there are too many, and the one answer of each.
//!
//! A connection is in one of three stages, and each stage has its own limit:
//!
//! | stage | what it costs | who goes when there are too many |
//! |---|---|---|
//! | [`silent`]: nothing was received yet | a file descriptor | the oldest of the address that has most of them |
//! | partial: half of a request | a task, a buffer of some kilobytes | the oldest |
//! | answering | the answer | the oldest |
//!
//! A probe sends its request in one piece and is answered on the spot ([`Pages::probe`]), so it never is in the later stages. In the
//! first it is for as long as its client takes from connecting to sending. With a thousand silent connections, that may be 75 ms
//! while others open 13,000 in a second.
//!
//! The kernel has a queue of connections that are not accepted yet, and who is in it waits for all before him. So what is done for
//! a connection before it has sent anything is as little as can be.

mod silent;

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

use self::silent::SilentConnections;
use super::{Limits, Pages};

/// The number of connections that are accepted before those that have sent something are answered.
const BATCH: usize = 256;
/// The size of the requests that are answered on the spot; those of probes have some hundred bytes.
const PROBE_BYTES: usize = 2048;
/// How long to wait before connections are accepted again when there is nothing left to accept them with.
const EXHAUSTED: Duration = Duration::from_millis(10);

/// Accepts connections until told to stop, then waits for those that there are.
pub(super) async fn serve(
    listener: AsyncFd<TcpListener>,
    pages: Arc<Pages>,
    limits: Limits,
    stopping: CancellationToken,
) -> io::Result<()> {
    let mut silent = SilentConnections::new(limits.silent, limits.header.min(limits.connection))?;
    let mut others = Others::new(pages, limits, stopping.clone());
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            ready = listener.readable() => drop(ready?),
            () = silent.changed() => {}
        }
        for _ in 0..BATCH {
            match listener.try_io(Interest::READABLE, accept) {
                Ok((socket, peer)) => {
                    if let Some(socket) = others.probe(socket) {
                        silent.add(socket, peer).unwrap_or_else(|error| exhausted(&error));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The peer has gone already.
                Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::CONNABORTED | Errno::INTR)) => {}
                Err(error) => {
                    exhausted(&error);
                    silent.end_all();
                    sleep(EXHAUSTED).await;
                    break;
                }
            }
        }
        for socket in silent.take_received() {
            // What says that it has received something, and has not, is at its end.
            drop(others.probe(socket));
        }
        silent.end_late();
        // Those that are under way have their turn.
        others.forget_ended();
        tokio::task::yield_now().await;
    }
    drop(listener);
    silent.end_all();
    others.ended().await;
    Ok(())
}

fn exhausted(error: &io::Error) {
    tracing::warn!(%error, "http endpoint cannot accept a connection now, trying again");
}

/// Accepts a connection, in one system call.
fn accept(listener: &TcpListener) -> io::Result<(OwnedFd, IpAddr)> {
    let (socket, peer) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((socket, peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())))
}

/// The connections that have sent something.
struct Others {
    pages: Arc<Pages>,
    router: Router,
    limits: Limits,
    stopping: CancellationToken,
    table: Table,
    tasks: JoinSet<()>,
}

impl Others {
    fn new(pages: Arc<Pages>, limits: Limits, stopping: CancellationToken) -> Self {
        let router = pages.router();
        Self { pages, router, limits, stopping, table: Table::new(limits), tasks: JoinSet::new() }
    }

    /// Answers a probe on the spot, and everything else in a task. Gives back a connection on which nothing was received.
    fn probe(&mut self, socket: OwnedFd) -> Option<OwnedFd> {
        let mut buffer = [0; PROBE_BYTES];
        let received = match recv(&socket, &mut buffer, RecvFlags::PEEK) {
            Ok((length, _)) => buffer.get(..length).unwrap_or_default(),
            Err(Errno::AGAIN) => return Some(socket),
            Err(_gone) => return None,
        };
        let is_http = received.first().is_some_and(|byte| byte.is_ascii_uppercase() || b"\r\n".contains(byte));
        if let Some(answer) = self.pages.probe(received) {
            let length = received.len();
            // What is not read would make the end of the connection a reset, which could overtake the answer. Who does not take the
            // answer has no other.
            let sent = recv(&socket, buffer.get_mut(..length).unwrap_or_default(), RecvFlags::empty())
                .and_then(|_| send(&socket, answer.as_bytes(), SendFlags::NOSIGNAL));
            if let Err(error) = sent {
                tracing::debug!(%error, "http endpoint: a connection failed");
            }
        } else if is_http {
            self.spawn(socket);
        }
        None
    }

    fn spawn(&mut self, socket: OwnedFd) {
        let stream = match TcpStream::from_std(socket.into()) {
            Ok(stream) => stream,
            Err(error) => return exhausted(&error),
        };
        let entry = self.table.entry();
        let id = entry.id;
        let answer = answer(stream, entry, self.router.clone(), self.limits, self.stopping.clone());
        let task = self.tasks.spawn(answer);
        // The task cannot have run yet: there is one thread, and no await in between.
        self.table.lock().enter(id, task, Stage::Partial);
    }

    fn forget_ended(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    async fn ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, entry: Entry, router: Router, limits: Limits, stopping: CancellationToken) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        entry.answers();
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
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

/// How far a connection has come that is not silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Partial,
    Answering,
}

/// A connection's entry in the table, for as long as it lives.
struct Entry {
    id: u64,
    table: Table,
}

impl Entry {
    /// Notes that the request is whole.
    fn answers(&self) {
        let mut stages = self.table.lock();
        if let Some(task) = stages.partial.remove(&self.id) {
            stages.enter(self.id, task, Stage::Answering);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut stages = self.table.lock();
        stages.partial.remove(&self.id);
        stages.answering.remove(&self.id);
    }
}

/// The connections that are not silent, by their stage and in the order in which they came.
#[derive(Clone)]
struct Table(Arc<Mutex<Stages>>);

struct Stages {
    next: u64,
    limits: Limits,
    partial: BTreeMap<u64, AbortHandle>,
    answering: BTreeMap<u64, AbortHandle>,
}

impl Table {
    fn new(limits: Limits) -> Self {
        let stages = Stages { next: 0, limits, partial: BTreeMap::new(), answering: BTreeMap::new() };
        Self(Arc::new(Mutex::new(stages)))
    }

    /// An entry for the next connection.
    fn entry(&self) -> Entry {
        let mut stages = self.lock();
        let id = stages.next;
        stages.next += 1;
        Entry { id, table: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Stages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stages {
    /// Moves a connection to a stage, in the place of the oldest there if that is full.
    fn enter(&mut self, id: u64, task: AbortHandle, stage: Stage) {
        let (members, limit) = match stage {
            Stage::Partial => (&mut self.partial, self.limits.partial),
            Stage::Answering => (&mut self.answering, self.limits.answering),
        };
        if members.len() >= limit
            && let Some((_, oldest)) = members.pop_first()
        {
            oldest.abort();
        }
        members.insert(id, task);
    }
}
