//! Connections on which nothing was received yet: file descriptors, and nothing else.
//!
//! They have an epoll of their own, which is watched as one. A task, two timers and a place in the runtime's epoll for each would cost
//! more than a connection costs whoever opens it, and then a flood would win.

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

use crate::http_endpoint::watched;

/// The number of connections that are looked at in one go.
const BATCH: usize = 256;

/// All silent connections, in the order in which they came.
pub(super) struct SilentConnections {
    events: AsyncFd<OwnedFd>,
    limit: usize,
    time: Duration,
    next: u64,
    members: BTreeMap<u64, Silent>,
    by_peer: HashMap<IpAddr, usize>,
}

/// A connection on which nothing was received. It is reset at its end, so that the kernel keeps nothing of it.
struct Silent {
    socket: OwnedFd,
    peer: IpAddr,
    deadline: Instant,
}

impl SilentConnections {
    /// For this many connections, each for so long. Must be called in a tokio runtime.
    pub(super) fn new(limit: usize, time: Duration) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { events: watched(events)?, limit, time, next: 0, members: BTreeMap::new(), by_peer: HashMap::new() })
    }

    /// Adds a connection, in the place of the oldest of the address that has most if there are too many.
    pub(super) fn add(&mut self, socket: OwnedFd, peer: IpAddr) -> io::Result<()> {
        if self.members.len() >= self.limit {
            let busiest = self.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
            let oldest = self.members.iter().find(|(_, member)| Some(member.peer) == busiest).map(|(id, _)| *id);
            if let Some(oldest) = oldest.and_then(|oldest| self.remove(oldest)) {
                oldest.reset();
            }
        }
        let id = self.next;
        self.next += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(self.events.get_ref(), &socket, epoll::EventData::new_u64(id), flags)?;
        *self.by_peer.entry(peer).or_default() += 1;
        self.members.insert(id, Silent { socket, peer, deadline: Instant::now() + self.time });
        Ok(())
    }

    /// Waits until something was received on one of them, or the first has been silent for too long.
    pub(super) async fn changed(&self) {
        let readable = self.events.readable();
        match self.members.first_key_value() {
            Some((_, oldest)) => drop(tokio::time::timeout_at(oldest.deadline, readable).await),
            None => drop(readable.await),
        }
    }

    /// Takes some connections out on which something was received.
    pub(super) fn take_received(&mut self) -> Vec<OwnedFd> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(BATCH);
        let looked = self.events.try_io(Interest::READABLE, |epoll| {
            let found = epoll::wait(epoll, spare_capacity(&mut events), Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if found == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match looked {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::warn!(%error, "http endpoint cannot look at its connections");
            }
            _ => {}
        }
        events.iter().filter_map(|event| self.remove(event.data.u64())).map(|silent| silent.socket).collect()
    }

    /// Ends connections that have been silent for too long.
    pub(super) fn end_late(&mut self) {
        let now = Instant::now();
        while let Some((id, oldest)) = self.members.first_key_value()
            && oldest.deadline <= now
        {
            let id = *id;
            if let Some(late) = self.remove(id) {
                late.reset();
            }
        }
    }

    /// Ends all.
    pub(super) fn end_all(&mut self) {
        self.by_peer.clear();
        for member in std::mem::take(&mut self.members).into_values() {
            member.reset();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Silent> {
        let member = self.members.remove(&id)?;
        if let Some(count) = self.by_peer.get_mut(&member.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.peer);
            }
        }
        Some(member)
    }
}

impl Silent {
    fn reset(self) {
        // Without it the connection ends a little later.
        set_socket_linger(&self.socket, Some(Duration::ZERO)).ok();
    }
}
