//! A netlink socket: one request at a time, and its answers.
//!
//! An answer is accepted only from the kernel and only with the sequence number of the request; leftovers of a request that
//! timed out are skipped. Every wait for an answer has a deadline. The kernel executes most requests while they are sent,
//! though, and a request that waits for a lock of the kernel cannot be given up.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_ALIGNTO,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recvfrom, send};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::wire::{self, Message, align};

/// The pauses before a table is read again that changed while it was read. Each is twice the one before: the addresses of a thousand new
/// interfaces change for seconds, while the kernel looks for duplicates.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The size of the receive buffer. The kernel fills up to 32 KiB of it with a dump.
const BUFFER: usize = 64 * 1024;
/// The kernel's explanation of an error (`NLMSGERR_ATTR_MSG`).
const EXPLANATION: u16 = 1;
const HEADER: usize = 16;

/// What was asked for, as the beginning of an error message.
pub(crate) type Operation<'a> = fmt::Arguments<'a>;

pub(crate) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    timeout: Duration,
    buffer: Vec<u8>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("sequence", &self.sequence)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket of a netlink protocol inside a namespace.
    pub(crate) fn open(namespace: &Namespace, protocol: isize, timeout: Duration) -> Result<Self> {
        Self::new(namespace, namespace.run(|| open(protocol))?, timeout)
    }

    /// Opens a namespace and a socket inside, in one visit.
    pub(crate) fn open_at(path: &Path, protocol: isize, timeout: Duration) -> Result<(Namespace, Self)> {
        let (namespace, socket) = Namespace::open_and_run(path, || open(protocol))?;
        let socket = Self::new(&namespace, socket, timeout)?;
        Ok((namespace, socket))
    }

    fn new(namespace: &Namespace, socket: io::Result<netlink_sys::Socket>, timeout: Duration) -> Result<Self> {
        let socket = socket.map_err(|source| failed(format_args!("open in {}", namespace.path().display()), source))?;
        Ok(Self { socket, sequence: 0, timeout, buffer: vec![0; BUFFER] })
    }

    /// Makes the kernel apply the filters of a dump instead of ignoring them.
    pub(crate) fn strict(self) -> Result<Self> {
        match self.socket.set_netlink_get_strict_chk(true) {
            Ok(()) => Ok(self),
            Err(source) => Err(failed(format_args!("set strict checking"), source)),
        }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Asks for a change, and waits for its acknowledgement.
    pub(crate) fn change(&mut self, operation: Operation<'_>, kind: u16, flags: u16, payload: &[u8]) -> Result<()> {
        let sequence = self.send(operation, kind, flags | NLM_F_ACK, payload)?;
        self.answers(operation, sequence, |_| Ok(()))?;
        Ok(())
    }

    /// Asks for one object, and reads it. `None` if it does not exist.
    pub(crate) fn get<T>(
        &mut self,
        operation: Operation<'_>,
        kind: u16,
        payload: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Option<T>> {
        let sequence = self.send(operation, kind, NLM_F_ACK, payload)?;
        let mut found = None;
        let answered = self.answers(operation, sequence, |message| {
            found = Some(read(message.payload)?);
            Ok(())
        });
        match answered {
            Ok(_) => Ok(found),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a table, again if it changed meanwhile, until the time for an answer is over. The result is one state that the table had.
    pub(crate) fn dump<T>(
        &mut self,
        operation: Operation<'_>,
        kind: u16,
        payload: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>> {
        let deadline = Instant::now() + self.timeout;
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        loop {
            let sequence = self.send(operation, kind, NLM_F_DUMP, payload)?;
            let mut found = Vec::new();
            let is_consistent = self.answers(operation, sequence, |message| {
                found.extend(read(message.payload)?);
                Ok(())
            })?;
            if is_consistent {
                return Ok(found);
            }
            attempts += 1;
            if Instant::now() + pause >= deadline {
                return Err(Error::Interrupted { operation: operation.to_string(), attempts });
            }
            std::thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    fn send(&mut self, operation: Operation<'_>, kind: u16, flags: u16, payload: &[u8]) -> Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + payload.len());
        // A payload is some hundred bytes; a length that does not fit is refused by the kernel.
        message.extend((u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX)).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(payload);
        match rustix::io::retry_on_intr(|| send(&self.socket, &message, SendFlags::empty())) {
            Ok(_) => Ok(self.sequence),
            Err(errno) => Err(failed(operation, errno.into())),
        }
    }

    /// Reads the answers to a request up to the last. Returns whether they are of one state of the table.
    fn answers(
        &mut self,
        operation: Operation<'_>,
        sequence: u32,
        mut read: impl FnMut(Message<'_>) -> Result<(), DecodeError>,
    ) -> Result<bool> {
        let deadline = Instant::now() + self.timeout;
        let malformed =
            |error: DecodeError| Error::Malformed { operation: operation.to_string(), detail: error.to_string() };
        let mut is_consistent = true;
        loop {
            let length = self.receive(operation, deadline)?;
            for message in wire::messages(self.buffer.get(..length).unwrap_or_default()) {
                let message = message.map_err(malformed)?;
                if message.sequence != sequence {
                    tracing::debug!(operation = %operation, sequence = message.sequence, "skipped the late answer to an earlier request");
                    continue;
                }
                is_consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_NOOP => {}
                    NLMSG_OVERRUN => return Err(failed(operation, Errno::NOBUFS.into())),
                    NLMSG_ERROR | NLMSG_DONE => {
                        verdict(operation, message)?;
                        return Ok(is_consistent);
                    }
                    _ => read(message).map_err(malformed)?,
                }
            }
        }
    }

    /// Receives a datagram of the kernel, and returns its length.
    fn receive(&mut self, operation: Operation<'_>, deadline: Instant) -> Result<usize> {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
            let patience = Timespec::try_from(remaining).ok();
            match poll(&mut sockets, patience.as_ref()) {
                Ok(0) => return Err(Error::Timeout { operation: operation.to_string(), timeout: self.timeout }),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(operation, errno.into())),
            }
            match datagram(&self.socket, &mut self.buffer) {
                Ok(Some(length)) => return Ok(length),
                Ok(None) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(failed(operation, errno.into())),
            }
        }
    }
}

/// Opens a socket in the network namespace of the calling thread.
fn open(protocol: isize) -> io::Result<netlink_sys::Socket> {
    let mut socket = netlink_sys::Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    Ok(socket)
}

/// Reads the kernel's verdict on a request: the end of a table, an acknowledgement, or an error.
fn verdict(operation: Operation<'_>, message: Message<'_>) -> Result<()> {
    let Message { kind, flags, payload, .. } = message;
    // The end of a table may come without a code.
    let code = if payload.is_empty() { Ok(0) } else { wire::u32_at(payload, 0).map(u32::cast_signed) };
    let code =
        code.map_err(|error| Error::Malformed { operation: operation.to_string(), detail: error.to_string() })?;
    if code == 0 {
        return Ok(());
    }
    let errno = Errno::from_raw_os_error(code.checked_neg().unwrap_or(i32::MAX));
    let explanation = (flags & NLM_F_ACK_TLVS != 0).then(|| explanation(kind, flags, payload)).flatten();
    Err(Error::Refused { operation: operation.to_string(), errno, message: explanation })
}

/// Finds the kernel's text after the code and, in an error, the header of the request or all of it.
fn explanation(kind: u16, flags: u16, payload: &[u8]) -> Option<String> {
    let request = match kind {
        NLMSG_DONE => 0,
        _ if flags & NLM_F_CAPPED != 0 => HEADER,
        _ => align(wire::u32_at(payload, 4).ok()? as usize, NLMSG_ALIGNTO as usize),
    };
    let mut attributes = wire::attributes(payload, 4 + request).filter_map(std::result::Result::ok);
    attributes.find(|attribute| attribute.kind == EXPLANATION).map(wire::Attribute::text)
}

/// Receives a datagram into a buffer, and returns its length. `None` if it is not of the kernel.
pub(crate) fn datagram(socket: &netlink_sys::Socket, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    let capacity = buffer.len();
    let (_, length, sender) = recvfrom(socket, buffer, RecvFlags::TRUNC | RecvFlags::DONTWAIT)?;
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    match sender {
        Some(sender) if sender.pid() == 0 && length <= capacity => Ok(Some(length)),
        Some(sender) if sender.pid() == 0 => Err(Errno::MSGSIZE),
        _ => Ok(None),
    }
}

pub(crate) fn failed(operation: Operation<'_>, source: io::Error) -> Error {
    Error::Socket { operation: operation.to_string(), source }
}
