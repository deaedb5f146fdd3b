//! Connections that have sent nothing yet. Each costs only a file descriptor.
//!
//! They have an epoll instance of their own, which is registered with the runtime as one descriptor. A task, two timers
//! and a registration for each connection would cost more than opening one costs a client, and a flood would succeed.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::http_endpoint::register_readable;

/// The number of events that are read at once.
const BATCH: usize = 256;

/// All idle connections, in the order in which they were accepted.
pub(super) struct IdleConnections {
    events: AsyncFd<OwnedFd>,
    limit: usize,
    timeout: Duration,
    next_id: u64,
    connections: BTreeMap<u64, IdleConnection>,
    by_peer: HashMap<IpAddr, usize>,
}

/// A connection that has sent nothing. It is closed with a reset, so that the kernel keeps no state of it.
struct IdleConnection {
    socket: OwnedFd,
    peer: IpAddr,
    deadline: Instant,
}

impl IdleConnections {
    /// Creates a set of at most `limit` connections with an idle timeout. Must be called within a tokio runtime.
    pub(super) fn new(limit: usize, timeout: Duration) -> io::Result<Self> {
        let events = register_readable(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        Ok(Self { events, limit, timeout, next_id: 0, connections: BTreeMap::new(), by_peer: HashMap::new() })
    }

    /// Adds a connection. At the limit it replaces the oldest one of the address that has the most.
    pub(super) fn add(&mut self, socket: OwnedFd, peer: IpAddr) -> io::Result<()> {
        if self.connections.len() >= self.limit {
            let busiest = self.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            let oldest =
                self.connections.iter().find(|(_, connection)| Some(connection.peer) == busiest).map(|(id, _)| *id);
            if let Some(oldest) = oldest.and_then(|oldest| self.remove(oldest)) {
                oldest.reset();
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(self.events.get_ref(), &socket, epoll::EventData::new_u64(id), flags)?;
        *self.by_peer.entry(peer).or_default() += 1;
        self.connections.insert(id, IdleConnection { socket, peer, deadline: Instant::now() + self.timeout });
        Ok(())
    }

    /// Waits until a connection has received something or the oldest one has expired.
    pub(super) async fn changed(&self) {
        let readable = self.events.readable();
        match self.connections.first_key_value() {
            Some((_, oldest)) => drop(tokio::time::timeout_at(oldest.deadline, readable).await),
            None => drop(readable.await),
        }
    }

    /// Removes and returns connections that have received something.
    pub(super) fn take_readable(&mut self) -> Vec<OwnedFd> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(BATCH);
        let polled = self.events.try_io(Interest::READABLE, |epoll| {
            let found = epoll::wait(epoll, spare_capacity(&mut events), Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if found == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if let Err(error) = polled
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::warn!(%error, "http endpoint: polling idle connections failed");
        }
        events.iter().filter_map(|event| self.remove(event.data.u64())).map(|idle| idle.socket).collect()
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn close_expired(&mut self) {
        let now = Instant::now();
        while let Some((id, oldest)) = self.connections.first_key_value()
            && oldest.deadline <= now
        {
            let id = *id;
            if let Some(expired) = self.remove(id) {
                expired.reset();
            }
        }
    }

    /// Closes all connections.
    pub(super) fn close_all(&mut self) {
        self.by_peer.clear();
        for connection in std::mem::take(&mut self.connections).into_values() {
            connection.reset();
        }
    }

    fn remove(&mut self, id: u64) -> Option<IdleConnection> {
        let connection = self.connections.remove(&id)?;
        if let Some(count) = self.by_peer.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&connection.peer);
            }
        }
        Some(connection)
    }
}

impl IdleConnection {
    fn reset(self) {
        // If this fails, dropping the socket closes it without a reset.
        set_socket_linger(&self.socket, Some(Duration::ZERO)).ok();
    }
}
