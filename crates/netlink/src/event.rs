//! Changes in a namespace, as the kernel reports them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::DecodeError;
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use crate::address::{self, Address, RTM_DELADDR, RTM_NEWADDR};
use crate::error::{Error, Result};
use crate::link::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use crate::namespace::Namespace;
use crate::route::{self, RTM_DELROUTE, RTM_NEWROUTE, Route};
use crate::socket::{Operation, datagram, failed};
use crate::wire::{self, Message, u8_at};

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
const GROUPS: [u32; 5] =
    [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE];

/// The size of the kernel's queue: some thousand events.
const QUEUE: usize = 4 * 1024 * 1024;
const BUFFER: usize = 64 * 1024;
/// The events that one call returns at most, or a little more.
const BATCH: usize = 256;

/// A change in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An interface is new or has changed.
    Link(Link),
    /// An interface was deleted or moved to another namespace.
    LinkRemoved(Link),
    /// An address is new or has changed.
    Address(Address),
    /// An address was deleted.
    AddressRemoved(Address),
    /// A route is new.
    Route(Route),
    /// A route was deleted.
    RouteRemoved(Route),
    /// The kernel dropped events because they were not read in time: read everything again.
    Overrun,
}

/// The events of a namespace from the moment at which it was opened.
///
/// Open it before the first look at the tables, so that nothing is missed in between.
#[derive(Debug)]
pub struct Monitor {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Listens to changes of interfaces, addresses and routes of a namespace.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let open = || -> std::io::Result<netlink_sys::Socket> {
            let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
            // More than the system's limit needs CAP_NET_ADMIN; less is no reason to fail.
            if set_socket_recv_buffer_size_force(&socket, QUEUE).is_err() {
                set_socket_recv_buffer_size(&socket, QUEUE)?;
            }
            socket.bind_auto()?;
            for group in GROUPS {
                socket.add_membership(group)?;
            }
            Ok(socket)
        };
        let operation = format_args!("listen to events of {}", namespace.path().display());
        let socket = namespace.run(open)?.map_err(|source| failed(operation, source))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Returns the events that have arrived, up to some hundred. Empty if there are none; never blocks.
    pub fn receive(&mut self) -> Result<Vec<Event>> {
        let operation = format_args!("read events");
        let mut events = Vec::new();
        while events.len() < BATCH {
            match datagram(&self.socket, &mut self.buffer) {
                Ok(Some(length)) => read(operation, self.buffer.get(..length).unwrap_or_default(), &mut events)?,
                Ok(None) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS) => events.push(Event::Overrun),
                Err(errno) => return Err(failed(operation, errno.into())),
            }
        }
        Ok(events)
    }

    /// Waits for events up to a time limit. Empty if none came.
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<Event>> {
        let deadline = Instant::now() + limit;
        loop {
            let events = self.receive()?;
            let remaining = deadline.saturating_duration_since(Instant::now());
            if !events.is_empty() || remaining.is_zero() {
                return Ok(events);
            }
            let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut sockets, Timespec::try_from(remaining).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(format_args!("wait for events"), errno.into())),
            }
        }
    }
}

impl AsFd for Monitor {
    /// The socket, readable when there are events. For `AsyncFd` and the like; [`Monitor::receive`] never blocks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::os::fd::AsRawFd for Monitor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

fn read(operation: Operation<'_>, bytes: &[u8], events: &mut Vec<Event>) -> Result<()> {
    let malformed =
        |error: DecodeError| Error::Malformed { operation: operation.to_string(), detail: error.to_string() };
    for message in wire::messages(bytes) {
        let message = message.map_err(malformed)?;
        events.extend(event(message).map_err(malformed)?);
    }
    Ok(())
}

fn event(message: Message<'_>) -> Result<Option<Event>, DecodeError> {
    let Message { kind, payload, .. } = message;
    Ok(match kind {
        // Messages of a protocol family tell of a part of an interface, such as that it left a bridge: it is still there.
        RTM_NEWLINK | RTM_DELLINK if u8_at(payload, 0)? != 0 => None,
        RTM_NEWLINK => Some(Event::Link(link::decode(payload)?)),
        RTM_DELLINK => Some(Event::LinkRemoved(link::decode(payload)?)),
        RTM_NEWADDR => address::decode(payload)?.map(Event::Address),
        RTM_DELADDR => address::decode(payload)?.map(Event::AddressRemoved),
        RTM_NEWROUTE => route::decode(payload)?.map(Event::Route),
        RTM_DELROUTE => route::decode(payload)?.map(Event::RouteRemoved),
        _ => None,
    })
}
