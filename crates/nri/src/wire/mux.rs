//! Frames: a connection id, a length and a payload, integers in big-endian order.

use super::{FRAME_HEADER, MAX_FRAME};

/// A frame that is longer than any message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes, more than {MAX_FRAME}")]
pub struct FrameTooLong(pub u32);

/// Takes frames apart. Payloads are passed on as they arrive, and never stored.
#[derive(Debug, Default)]
pub struct Demux {
    header: [u8; FRAME_HEADER],
    /// How much of the header is there. All of it while a payload is being read.
    filled: usize,
    /// What is left of the payload.
    left: usize,
}

impl Demux {
    /// Consumes bytes of the input up to the next piece of a payload, and returns that with its connection id. `None` if
    /// the input is used up.
    ///
    /// After an error the rest of the stream has no meaning.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<(u32, &'a [u8])>, FrameTooLong> {
        while self.left == 0 {
            let (taken, rest) = input.split_at(input.len().min(FRAME_HEADER - self.filled));
            if taken.is_empty() {
                return Ok(None);
            }
            *input = rest;
            self.header[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            if self.filled < FRAME_HEADER {
                return Ok(None);
            }
            let length = self.word(4);
            if length as usize > MAX_FRAME {
                return Err(FrameTooLong(length));
            }
            self.left = length as usize;
            self.filled = 0;
        }
        let (piece, rest) = input.split_at(input.len().min(self.left));
        *input = rest;
        self.left -= piece.len();
        Ok(Some((self.word(0), piece)).filter(|_| !piece.is_empty()))
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.header[at..at + 4]);
        u32::from_be_bytes(word)
    }
}

/// Appends the header of a frame.
pub(super) fn put_header(buffer: &mut Vec<u8>, connection: u32, length: u32) {
    buffer.extend(connection.to_be_bytes());
    buffer.extend(length.to_be_bytes());
}
