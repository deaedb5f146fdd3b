//! The connections of the endpoint: who is accepted, who is let go when there are too many, and the one answer of each.
//!
//! A connection is in one of three stages, and each stage has its own limit:
//!
//! | stage | what it costs | who goes when there are too many |
//! |---|---|---|
//! | silent: nothing was received yet | a file descriptor | the oldest of the address that has most of them |
//! | partial: half of a request | a buffer of some kilobytes | the oldest |
//! | answering | the answer | the oldest |
//!
//! A probe sends its request in one piece and its answer is written at once, so it is in the later stages for no time at all: it
//! never is the oldest of them. In the first it is for as long as its client takes from connecting to sending. With a thousand
//! silent connections at once, that may be 75 ms while others open 13,000 in a second.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Limits;

/// How long to wait before connections are accepted again when there is nothing left to accept them with.
const EXHAUSTED: Duration = Duration::from_millis(10);

/// Accepts connections until told to stop, then waits for those that there are.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Limits, stopping: CancellationToken) {
    let table = Table::new(limits);
    let mut tasks = JoinSet::new();
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let entry = table.entry();
                let id = entry.id;
                let task = tasks.spawn(connection(stream, entry, router.clone(), limits, stopping.clone()));
                // The task cannot have run yet: there is one thread, and no await in between.
                table.lock().admit(id, Member { peer: peer.ip(), task });
            }
            Err(error) => match Errno::from_io_error(&error) {
                // The peer has gone already.
                Some(Errno::CONNABORTED | Errno::INTR) => {}
                _ => {
                    tracing::warn!(%error, "http endpoint cannot accept a connection now, trying again");
                    table.lock().close_silent();
                    sleep(EXHAUSTED).await;
                }
            },
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// One connection, from beginning to end.
async fn connection(stream: TcpStream, entry: Entry, router: Router, limits: Limits, stopping: CancellationToken) {
    let served = async {
        let mut silent = Silent(Some(stream));
        let has_sent = tokio::select! {
            sent = timeout(limits.header, silent.has_sent()) => sent.is_ok_and(|sent| sent.is_ok()),
            () = stopping.cancelled() => false,
        };
        if has_sent && let Some(stream) = silent.0.take() {
            entry.enter(Stage::Partial);
            // On the heap: most of what a connection needs, and silent ones do not.
            Box::pin(answer(stream, entry, router, limits, stopping)).await;
        }
    };
    if timeout(limits.connection, served).await.is_err() {
        tracing::debug!("http endpoint: a connection took too long and was closed");
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, entry: Entry, router: Router, limits: Limits, stopping: CancellationToken) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        entry.enter(Stage::Answering);
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let answered = tokio::select! {
        answered = connection.as_mut() => answered,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "http endpoint: a connection failed");
    }
}

/// A connection on which nothing was received. It is reset at its end, so that the kernel keeps nothing of it.
struct Silent(Option<TcpStream>);

impl Silent {
    async fn has_sent(&self) -> io::Result<()> {
        match &self.0 {
            Some(stream) => stream.readable().await,
            None => Ok(()),
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            // Without it the connection ends a little later.
            set_socket_linger(stream, Some(Duration::ZERO)).ok();
        }
    }
}

/// How far a connection has come that is not silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Partial,
    Answering,
}

/// A connection's entry in the table of all, for as long as it lives.
struct Entry {
    id: u64,
    table: Table,
}

impl Entry {
    fn enter(&self, stage: Stage) {
        self.table.lock().enter(self.id, stage);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.lock().remove(self.id);
    }
}

/// All connections, by their stage and in the order in which they came.
#[derive(Clone)]
struct Table(Arc<Mutex<Stages>>);

struct Stages {
    next: u64,
    limits: Limits,
    silent: BTreeMap<u64, Member>,
    partial: BTreeMap<u64, Member>,
    answering: BTreeMap<u64, Member>,
    /// The number of silent connections by address.
    silent_by_peer: HashMap<IpAddr, usize>,
}

/// A connection, to whoever has too many of them.
struct Member {
    peer: IpAddr,
    task: AbortHandle,
}

impl Table {
    fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Stages {
            next: 0,
            limits,
            silent: BTreeMap::new(),
            partial: BTreeMap::new(),
            answering: BTreeMap::new(),
            silent_by_peer: HashMap::new(),
        })))
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
    /// Adds a connection that was just accepted.
    fn admit(&mut self, id: u64, member: Member) {
        if self.silent.len() >= self.limits.silent {
            let busiest = self.silent_by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            let oldest = self.silent.iter().find(|(_, member)| Some(member.peer) == busiest).map(|(id, _)| *id);
            if let Some(member) = oldest.and_then(|oldest| self.remove(oldest)) {
                member.task.abort();
            }
        }
        *self.silent_by_peer.entry(member.peer).or_default() += 1;
        self.silent.insert(id, member);
    }

    /// Moves a connection to a later stage, in the place of the oldest there if that is full.
    fn enter(&mut self, id: u64, stage: Stage) {
        let Some(member) = self.remove(id) else { return };
        let (members, limit) = match stage {
            Stage::Partial => (&mut self.partial, self.limits.partial),
            Stage::Answering => (&mut self.answering, self.limits.answering),
        };
        if members.len() >= limit
            && let Some((_, oldest)) = members.pop_first()
        {
            oldest.task.abort();
        }
        members.insert(id, member);
    }

    fn remove(&mut self, id: u64) -> Option<Member> {
        if let Some(member) = self.silent.remove(&id) {
            if let Some(count) = self.silent_by_peer.get_mut(&member.peer) {
                *count -= 1;
                if *count == 0 {
                    self.silent_by_peer.remove(&member.peer);
                }
            }
            return Some(member);
        }
        self.partial.remove(&id).or_else(|| self.answering.remove(&id))
    }

    /// Lets go of all silent connections.
    fn close_silent(&mut self) {
        self.silent_by_peer.clear();
        for member in std::mem::take(&mut self.silent).into_values() {
            member.task.abort();
        }
    }
}
