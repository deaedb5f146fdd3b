//! A connection to the kernel's network configuration of one namespace.
//!
//! What can be read and changed is in the modules of links, addresses, routes and rules, each of which extends
//! [`Connection`].

use std::path::Path;
use std::time::Duration;

use netlink_packet_core::Emitable;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::error::Result;
use crate::namespace::Namespace;
use crate::socket::Socket;

/// The time that the kernel has for an answer, unless set otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A netlink route socket in a network namespace.
///
/// The socket stays in the namespace and can be used from any thread. It keeps the namespace alive.
#[derive(Debug)]
pub struct Connection {
    pub(crate) socket: Socket,
}

impl Connection {
    /// Opens a connection inside a namespace.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        Ok(Self { socket: Socket::open(namespace, NETLINK_ROUTE, TIMEOUT)?.strict()? })
    }

    /// Opens the namespace at a path and a connection inside, which costs one visit of the namespace instead of two.
    pub fn open_at(path: impl AsRef<Path>) -> Result<(Namespace, Self)> {
        let (namespace, socket) = Socket::open_at(path.as_ref(), NETLINK_ROUTE, TIMEOUT)?;
        Ok((namespace, Self { socket: socket.strict()? }))
    }

    /// Sets the time that the kernel has for an answer to one request.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.socket.set_timeout(timeout);
    }
}

/// Encodes a message of `netlink-packet-route` without the netlink header.
pub(crate) fn encode(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}
