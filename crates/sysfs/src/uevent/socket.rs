//! The netlink socket on which the kernel sends its messages.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt};

use super::{DeviceEvent, Uevent};

/// The multicast group of the kernel. Group 2 is udev's.
const KERNEL_GROUP: u32 = 1;
/// The size of the receive buffer. A thousand virtual functions at once are about 2 MB of messages with their overhead.
const RECEIVE_BUFFER: usize = 16 * 1024 * 1024;
/// The limit for a message. The kernel's are limited to 2 KiB of properties and a path.
const MAX_MESSAGE: usize = 16 * 1024;

/// A failure of the socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UeventError {
    /// The socket could not be opened.
    #[error("listen to uevents of the kernel: {source}")]
    Open {
        /// The error of the system call.
        source: io::Error,
    },
    /// Nothing could be received.
    #[error("receive a uevent of the kernel: {source}")]
    Receive {
        /// The error of the system call.
        source: io::Error,
    },
}

/// A socket with the kernel's messages about devices. It does not block; give it to an event loop, or call
/// [`UeventSocket::wait`]. Open it before a scan, so that no change is missed between them.
#[derive(Debug)]
pub struct UeventSocket {
    fd: OwnedFd,
}

impl UeventSocket {
    /// Opens the socket. It needs no privileges; with `CAP_NET_ADMIN` its buffer can be larger than the system's limit.
    pub fn open() -> Result<Self, UeventError> {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
            // Best effort: messages that find no place are reported by the kernel.
            if sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
                sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
            }
            bind(&fd, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
            Ok(fd)
        };
        open().map(|fd| Self { fd }).map_err(|error: Errno| UeventError::Open { source: error.into() })
    }

    /// Returns the next message of the kernel, or `None` if there is none now. Messages of other senders are skipped.
    pub fn receive(&self) -> Result<Option<Uevent>, UeventError> {
        let mut buffer = [0; MAX_MESSAGE];
        loop {
            // The length of the whole message, also if it does not fit.
            let (_, length, sender) = match recvfrom(&self.fd, &mut buffer, RecvFlags::TRUNC) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => return Ok(Some(Uevent::Overflow)),
                Err(error) => return Err(UeventError::Receive { source: error.into() }),
            };
            // Only the kernel has port 0: any process with CAP_NET_ADMIN can send to the group.
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender != Some(SocketAddrNetlink::new(0, KERNEL_GROUP)) {
                tracing::debug!(?sender, "uevent of another sender ignored");
                continue;
            }
            let Some(message) = buffer.get(..length) else {
                tracing::warn!(length, "uevent too long, scanning instead");
                return Ok(Some(Uevent::Overflow));
            };
            return Ok(Some(DeviceEvent::parse(message).map_or_else(
                |error| {
                    let message = String::from_utf8_lossy(message);
                    tracing::warn!(%error, ?message, "uevent not understood, scanning instead");
                    Uevent::Overflow
                },
                Uevent::Device,
            )));
        }
    }

    /// Returns the messages that are there, at most `limit`, for [`crate::Inventory::apply_all`].
    pub fn receive_all(&self, limit: usize) -> Result<Vec<Uevent>, UeventError> {
        let mut events = Vec::new();
        while events.len() < limit
            && let Some(event) = self.receive()?
        {
            events.push(event);
        }
        Ok(events)
    }

    /// Waits until there is a message, at most for a time. Returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> Result<bool, UeventError> {
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(UeventError::Receive { source: error.into() }),
        }
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for UeventSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
