//! The few changes of a network that pods need, over a netlink socket that is already in the network's namespace: also in one
//! that this process may configure but not enter.
//!
//! Indices of interfaces are chosen here, so that nothing has to be read back.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// The index of the loopback interface in every network.
pub(super) const LOOPBACK: u32 = 1;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const ERROR: u16 = 2;

const REQUEST_WITH_ACK: u16 = 0x5;
const CREATE_EXCLUSIVELY: u16 = 0x600;

const HEADER: usize = 16;
/// `IFF_UP`.
const UP: u32 = 1;
/// `AF_INET`.
const IPV4: u8 = 2;

// Attributes of interfaces.
const NAME: u16 = 3;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;

/// A netlink socket in a network namespace.
#[derive(Debug)]
pub(super) struct NetworkSocket(OwnedFd);

/// The other end of a virtual cable, in another network.
#[derive(Debug)]
pub(super) struct Peer<'a> {
    pub(super) index: u32,
    pub(super) name: &'a str,
    pub(super) network: BorrowedFd<'a>,
}

impl NetworkSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sets an interface up.
    pub(super) fn set_up(&self, index: u32) -> io::Result<()> {
        self.change(SET_LINK, 0, &link(index, UP), "set up an interface")
    }

    /// Makes a bridge, and sets it up.
    pub(super) fn add_bridge(&self, index: u32, name: &str) -> io::Result<()> {
        let mut message = link(index, UP);
        message.extend(attribute(NAME, &text(name)));
        message.extend(attribute(LINK_INFO, &attribute(INFO_KIND, &text("bridge"))));
        self.change(NEW_LINK, CREATE_EXCLUSIVELY, &message, "create a bridge")
    }

    /// Makes a virtual cable into another network, with this end at a bridge and up.
    pub(super) fn add_cable(&self, index: u32, name: &str, bridge: u32, peer: &Peer<'_>) -> io::Result<()> {
        let mut other_end = link(peer.index, 0);
        other_end.extend(attribute(NAME, &text(peer.name)));
        other_end.extend(attribute(NAMESPACE, &peer.network.as_raw_fd().to_ne_bytes()));
        let data = attribute(VETH_PEER, &other_end);
        let info = [attribute(INFO_KIND, &text("veth")), attribute(INFO_DATA, &data)].concat();
        let mut message = link(index, 0);
        message.extend(attribute(NAME, &text(name)));
        message.extend(attribute(LINK_INFO, &info));
        self.change(NEW_LINK, CREATE_EXCLUSIVELY, &message, "create a virtual cable")?;
        let mut message = link(index, UP);
        message.extend(attribute(MASTER, &bridge.to_ne_bytes()));
        self.change(SET_LINK, 0, &message, "add an interface to a bridge")
    }

    /// Deletes an interface; succeeds if there is none.
    pub(super) fn delete(&self, index: u32) -> io::Result<()> {
        match self.change(DELETE_LINK, 0, &link(index, 0), "delete an interface") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// Adds an address to an interface.
    pub(super) fn add_address(&self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        // Family, prefix length, flags, scope, interface.
        let mut message = vec![IPV4, prefix, 0, 0];
        message.extend(index.to_ne_bytes());
        for kind in [1, 2] {
            message.extend(attribute(kind, &address.octets()));
        }
        self.change(NEW_ADDRESS, CREATE_EXCLUSIVELY, &message, "add an address")
    }

    /// Adds the default route.
    pub(super) fn add_default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        // Family, prefix lengths of destination and source, TOS, main table, protocol "static", scope, type "unicast", flags.
        let mut message = vec![IPV4, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        message.extend(attribute(5, &gateway.octets()));
        message.extend(attribute(4, &index.to_ne_bytes()));
        self.change(NEW_ROUTE, CREATE_EXCLUSIVELY, &message, "add a default route")
    }

    /// Sends a request, and reads the kernel's acknowledgement, which is there when the request is sent.
    fn change(&self, kind: u16, flags: u16, message: &[u8], what: &str) -> io::Result<()> {
        let failed = |errno: Errno| io::Error::new(io::Error::from(errno).kind(), format!("{what}: {errno}"));
        let length = u32::try_from(HEADER + message.len()).unwrap_or(u32::MAX);
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend((flags | REQUEST_WITH_ACK).to_ne_bytes());
        // Sequence and port: every request is acknowledged before the next.
        request.extend([0; 8]);
        request.extend_from_slice(message);
        send(&self.0, &request, SendFlags::empty()).map_err(failed)?;
        let mut answer = [0; 4096];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty()).map_err(failed)?;
        match answer.get(..length).unwrap_or_default() {
            [_, _, _, _, a, b, _, _, _, _, _, _, _, _, _, _, c, d, e, f, ..]
                if u16::from_ne_bytes([*a, *b]) == ERROR =>
            {
                match i32::from_ne_bytes([*c, *d, *e, *f]) {
                    0 => Ok(()),
                    code => Err(failed(Errno::from_raw_os_error(code.wrapping_neg()))),
                }
            }
            _ => Err(io::Error::other(format!("{what}: unexpected answer of the kernel"))),
        }
    }
}

/// Returns the beginning of a message about an interface: family, padding, type, index, flags, and which flags to change.
fn link(index: u32, flags: u32) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message
}

/// Returns an attribute, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}
