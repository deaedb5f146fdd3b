//! The multiplexer: several byte streams over one Unix socket, in frames, as containerd writes and reads them.
//!
//! Writing: a message of at most 4096 bytes is one frame; a longer one is a frame of 4096 bytes and one with the rest.
//! Reading: every frame is one read of containerd's buffered reader, which has 4096 bytes, or of a body's rest if that is
//! longer. A frame that is longer than what is read at that moment makes containerd fail, and so it does here: a plugin that
//! works on this node must work on a real one.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The stream on which the runtime calls the plugin.
pub(super) const PLUGIN_STREAM: u32 = 1;
/// The stream on which the plugin calls the runtime.
pub(super) const RUNTIME_STREAM: u32 = 2;

/// The most bytes of a body.
pub(super) const MAX_BODY: usize = 4 << 20;
/// The most bytes of a frame: a whole message.
const MAX_FRAME: usize = MAX_BODY + HEADER;
/// The bytes of a message's header.
pub(super) const HEADER: usize = 10;
/// The bytes of a frame's header.
const FRAME_HEADER: usize = 8;
/// The size of containerd's buffers.
const BUFFER: usize = 4096;

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The number of the stream that it belongs to.
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// Reads a frame; `None` at the end of the connection.
pub(super) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut header = [0; FRAME_HEADER];
    if reader.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut header[1..]).await?;
    let [a, b, c, d, e, f, g, h] = header;
    let length = u32::from_be_bytes([e, f, g, h]);
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_FRAME);
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, "a frame is longer than a message can be");
    let mut payload = vec![0; length.ok_or_else(too_long)?];
    reader.read_exact(&mut payload).await?;
    Ok(Some(Frame { stream: u32::from_be_bytes([a, b, c, d]), payload }))
}

/// Returns the frames of a message, as bytes to write.
pub(super) fn frames(stream: u32, header: [u8; HEADER], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + HEADER + 2 * FRAME_HEADER);
    let (first, rest) = body.split_at(body.len().min(BUFFER - HEADER));
    push(&mut bytes, stream, &[&header, first]);
    if !rest.is_empty() {
        push(&mut bytes, stream, &[rest]);
    }
    bytes
}

fn push(bytes: &mut Vec<u8>, stream: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    bytes.extend(stream.to_be_bytes());
    // A body is at most 4 MiB long.
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
}

/// A message of one stream: its header, parsed, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// The id of the call.
    pub call: u32,
    /// 1 for a request, 2 for a response.
    pub kind: u8,
    pub body: Vec<u8>,
}

impl Message {
    pub(super) const REQUEST: u8 = 1;
    pub(super) const RESPONSE: u8 = 2;

    pub(super) fn header(call: u32, kind: u8, length: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        header[4..8].copy_from_slice(&call.to_be_bytes());
        header[8] = kind;
        header
    }
}

/// Why containerd would end the connection.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error(
        "a frame of {length} bytes where containerd reads at most {limit}: send the header of a message in a frame of its own"
    )]
    Frame { length: usize, limit: usize },
    #[error("a message of {0} bytes, more than 4 MiB")]
    Message(usize),
}

/// Joins the frames of one stream to messages.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// What was read and belongs to no complete message.
    bytes: Vec<u8>,
}

impl Assembler {
    /// Takes a frame; returns the messages that are complete now.
    pub(super) fn push(&mut self, payload: &[u8]) -> Result<Vec<Message>, Violation> {
        let limit = self.missing()?.max(BUFFER);
        if payload.len() > limit {
            return Err(Violation::Frame { length: payload.len(), limit });
        }
        self.bytes.extend_from_slice(payload);
        let mut messages = Vec::new();
        while self.missing()? == 0 {
            let rest = self.bytes.split_off(HEADER + self.length().unwrap_or_default());
            let message = std::mem::replace(&mut self.bytes, rest);
            if let [_, _, _, _, a, b, c, d, kind, _flags, body @ ..] = &message[..] {
                messages.push(Message { call: u32::from_be_bytes([*a, *b, *c, *d]), kind: *kind, body: body.to_vec() });
            }
        }
        Ok(messages)
    }

    /// Returns the number of bytes that the message, or its header, still lacks.
    fn missing(&self) -> Result<usize, Violation> {
        match self.length() {
            None => Ok(HEADER - self.bytes.len()),
            Some(length) if length > MAX_BODY => Err(Violation::Message(length)),
            Some(length) => Ok((HEADER + length).saturating_sub(self.bytes.len())),
        }
    }

    /// Returns the length of the body, once the header is complete.
    fn length(&self) -> Option<usize> {
        let header: &[u8; HEADER] = self.bytes.first_chunk()?;
        let [a, b, c, d, ..] = *header;
        usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let [_, _, _, _, a, b, c, d, rest @ ..] = bytes {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            payloads.push(rest[..length].to_vec());
            bytes = &rest[length..];
        }
        payloads
    }

    fn message(length: usize) -> ([u8; HEADER], Vec<u8>) {
        (Message::header(3, Message::REQUEST, length), (0..length).map(|at| at as u8).collect())
    }

    #[test]
    fn a_long_message_is_a_frame_of_4096_bytes_and_the_rest_as_containerd_writes_it() {
        for (length, frames_lengths) in
            [(0, vec![10]), (4086, vec![4096]), (4087, vec![4096, 1]), (100_000, vec![4096, 95_914])]
        {
            let (header, body) = message(length);
            let sent = payloads(&frames(PLUGIN_STREAM, header, &body));
            assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), frames_lengths);
            let mut assembler = Assembler::default();
            let received: Vec<Message> = sent.iter().flat_map(|frame| assembler.push(frame).unwrap()).collect();
            assert_eq!(received, [Message { call: 3, kind: Message::REQUEST, body }]);
        }
    }

    #[test]
    fn a_message_in_tiny_frames_and_several_messages_in_one_frame_are_joined() {
        let (header, body) = message(30);
        let bytes = [&header[..], &body].concat();
        let mut assembler = Assembler::default();
        let received: Vec<Message> = bytes.chunks(7).flat_map(|frame| assembler.push(frame).unwrap()).collect();
        assert_eq!(received.len(), 1);
        assert_eq!(assembler.push(&[&bytes[..], &bytes].concat()).unwrap().len(), 2);
    }

    #[test]
    fn a_frame_that_containerds_reader_cannot_take_is_a_violation() {
        let (header, body) = message(5000);
        let whole = [&header[..], &body].concat();
        let violation = Violation::Frame { length: 5010, limit: 4096 };
        assert_eq!(Assembler::default().push(&whole), Err(violation));
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(&header), Ok(vec![]));
        assert_eq!(assembler.push(&body).unwrap().len(), 1, "the header in a frame of its own is fine");
        let (header, _) = message(MAX_BODY + 1);
        let mut assembler = Assembler::default();
        assembler.push(&header[..9]).unwrap();
        assert_eq!(assembler.push(&header[9..]), Err(Violation::Message(MAX_BODY + 1)));
    }
}
