//! HTTP/2 frames: a header of nine bytes, and a payload.

use std::fmt;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// The largest payload without negotiation, in both directions.
pub(super) const MAX_PAYLOAD: usize = 16_384;

/// The length of a frame's header.
const HEADER_LENGTH: usize = 9;

/// Frame flags.
pub(super) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    Reset,
    Settings,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// Any other kind, which is ignored.
    Other,
}

impl Kind {
    const KNOWN: [(Self, u8); 8] = [
        (Self::Data, 0),
        (Self::Headers, 1),
        (Self::Reset, 3),
        (Self::Settings, 4),
        (Self::Ping, 6),
        (Self::GoAway, 7),
        (Self::WindowUpdate, 8),
        (Self::Continuation, 9),
    ];

    fn from_wire(number: u8) -> Self {
        Self::KNOWN.iter().find(|(_, known)| *known == number).map_or(Self::Other, |(kind, _)| *kind)
    }

    fn to_wire(self) -> u8 {
        Self::KNOWN.iter().find(|(known, _)| *known == self).map_or(u8::MAX, |(_, number)| *number)
    }
}

/// A frame that was received.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Returns the payload of data or headers, without padding and priority.
    pub(super) fn content(&self) -> io::Result<&[u8]> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a frame is shorter than it says");
        let mut content = self.payload.as_slice();
        let mut padding = 0;
        if self.flags & flag::PADDED != 0 {
            let (length, rest) = content.split_first().ok_or_else(malformed)?;
            content = rest;
            padding = usize::from(*length);
        }
        if self.kind == Kind::Headers && self.flags & flag::PRIORITY != 0 {
            content = content.get(5..).ok_or_else(malformed)?;
        }
        let length = content.len().checked_sub(padding).ok_or_else(malformed)?;
        content.get(..length).ok_or_else(malformed)
    }

    /// Returns the error code at this offset in the payload.
    pub(super) fn error_code(&self, offset: usize) -> ErrorCode {
        ErrorCode(self.number(offset))
    }

    /// Returns the last stream that a server handles before it closes the connection (`GOAWAY`).
    pub(super) fn last_stream(&self) -> u32 {
        self.number(0) & 0x7fff_ffff
    }

    fn number(&self, offset: usize) -> u32 {
        let bytes = self.payload.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes))
    }
}

/// The HTTP/2 error code of a stream or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErrorCode(u32);

impl ErrorCode {
    pub(super) fn is_error(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR"];
        let known = usize::try_from(self.0).ok().and_then(|code| names.get(code));
        match (known, self.0) {
            (Some(name), _) => f.write_str(name),
            (None, 7) => f.write_str("REFUSED_STREAM"),
            (None, 8) => f.write_str("CANCEL"),
            (None, code) => write!(f, "error code {code}"),
        }
    }
}

/// Appends an encoded frame.
pub(super) fn append(bytes: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    debug_assert!(payload.len() <= MAX_PAYLOAD);
    let [.., l0, l1, l2] = payload.len().to_be_bytes();
    bytes.extend([l0, l1, l2, kind.to_wire(), flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

pub(super) async fn write(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await
}

pub(super) async fn read(stream: &mut UnixStream) -> io::Result<Frame> {
    let mut header = [0; HEADER_LENGTH];
    stream.read_exact(&mut header).await?;
    let (length, frame) = parse_header(header);
    if length > MAX_PAYLOAD {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is too long")));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok(Frame { payload, ..frame })
}

/// Parses the first frame, if it is complete; returns it with its length including the header.
pub(super) fn parse(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (header, rest) = bytes.split_first_chunk()?;
    let (length, frame) = parse_header(*header);
    let payload = rest.get(..length)?.to_vec();
    Some((Frame { payload, ..frame }, HEADER_LENGTH + length))
}

/// Parses a header; returns the length of the payload, and the frame without it.
fn parse_header(header: [u8; HEADER_LENGTH]) -> (usize, Frame) {
    let [l0, l1, l2, kind, flags, id @ ..] = header;
    let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
    let stream = u32::from_be_bytes(id) & 0x7fff_ffff;
    (length, Frame { kind: Kind::from_wire(kind), flags, stream, payload: Vec::new() })
}
