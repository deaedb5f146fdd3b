//! ttrpc messages: a header of ten bytes and a body, integers in big-endian order.

use prost::bytes::Bytes;

use super::{FRAME_HEADER, MAX_BODY, MESSAGE_HEADER, mux};

/// What a body is reserved before its bytes arrive: a header alone must not take 4 MiB.
const FIRST_RESERVATION: usize = 64 << 10;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request,
    /// The answer to a call.
    Response,
    /// A part of a stream, which NRI has none of.
    Data,
    /// A kind of a later version.
    Other(u8),
}

impl From<u8> for Kind {
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Data,
            other => Self::Other(other),
        }
    }
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Request => 1,
            Kind::Response => 2,
            Kind::Data => 3,
            Kind::Other(other) => other,
        }
    }
}

/// A whole message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The call that it belongs to.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// Flags; 0 in unary calls.
    pub flags: u8,
    /// The encoded protobuf message.
    pub body: Bytes,
}

/// What the decoder found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A message whose body was longer than [`MAX_BODY`], and was skipped.
    Oversized {
        /// The call that it belongs to.
        stream: u32,
        /// What it was.
        kind: Kind,
        /// How long its body was.
        length: u32,
    },
}

/// Finds the messages in the bytes of one logical connection.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; MESSAGE_HEADER],
    filled: usize,
    body: Vec<u8>,
    /// How much of an oversized body was skipped.
    skipped: usize,
}

impl Decoder {
    /// Consumes bytes of the input up to the end of the next message, and returns it. `None` if the input is used up.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Received> {
        if self.filled < MESSAGE_HEADER {
            let (taken, rest) = input.split_at(input.len().min(MESSAGE_HEADER - self.filled));
            *input = rest;
            self.header[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            if self.filled < MESSAGE_HEADER {
                return None;
            }
        }
        let [a, b, c, d, e, f, g, h, kind, flags] = self.header;
        let length = u32::from_be_bytes([a, b, c, d]);
        let stream = u32::from_be_bytes([e, f, g, h]);
        let kind = Kind::from(kind);
        let is_oversized = length as usize > MAX_BODY;
        let got = if is_oversized { self.skipped } else { self.body.len() };
        let (taken, rest) = input.split_at(input.len().min(length as usize - got));
        *input = rest;
        if is_oversized {
            self.skipped += taken.len();
        } else {
            self.store(taken, length as usize);
        }
        if got + taken.len() < length as usize {
            return None;
        }
        self.filled = 0;
        self.skipped = 0;
        if is_oversized {
            return Some(Received::Oversized { stream, kind, length });
        }
        let body = std::mem::take(&mut self.body).into();
        Some(Received::Message(Message { stream, kind, flags, body }))
    }

    fn store(&mut self, taken: &[u8], length: usize) {
        if self.body.len() + taken.len() > self.body.capacity() {
            let needed = length - self.body.len();
            let first = self.body.is_empty() && taken.len() < FIRST_RESERVATION;
            self.body.reserve_exact(if first { needed.min(FIRST_RESERVATION) } else { needed });
        }
        self.body.extend_from_slice(taken);
    }
}

/// A body that is longer than [`MAX_BODY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes, more than {MAX_BODY}")]
pub struct TooLong(pub usize);

/// Encodes a message on a logical connection: the ttrpc header in a frame of its own, and the body, unless it is empty, in a
/// second frame.
///
/// Not in one frame: the other side reads the first frame of a message into a buffer of 4096 bytes, and hangs up if it is
/// longer.
pub fn encode(connection: u32, stream: u32, kind: Kind, body: &impl prost::Message) -> Result<Bytes, TooLong> {
    let length = body.encoded_len();
    let too_long = |_| TooLong(length);
    let word = u32::try_from(length).map_err(too_long)?;
    if length > MAX_BODY {
        return Err(TooLong(length));
    }
    let mut buffer = Vec::with_capacity(2 * FRAME_HEADER + MESSAGE_HEADER + length);
    mux::put_header(&mut buffer, connection, MESSAGE_HEADER as u32);
    buffer.extend(word.to_be_bytes());
    buffer.extend(stream.to_be_bytes());
    buffer.extend([kind.into(), 0]);
    if length > 0 {
        mux::put_header(&mut buffer, connection, word);
        // A vector grows as needed, so this cannot run out of space.
        let _ = body.encode(&mut buffer);
    }
    Ok(buffer.into())
}
