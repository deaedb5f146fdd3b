//! The bytes of an NRI connection, without any I/O.
//!
//! One Unix stream carries frames; the frames of a logical connection are a byte stream; that stream carries ttrpc messages.
//! [`Demux`] takes the frames apart and [`Decoder`] finds the messages, of which each logical connection has its own.
//! [`encode`] makes the bytes of a message.
//!
//! Both decoders take bytes in pieces of any size, hold at most one message of [`MAX_BODY`] bytes, and never panic.

mod mux;
mod ttrpc;

pub use mux::{Demux, FrameTooLong};
pub use ttrpc::{Decoder, Kind, Message, Received, TooLong, encode};

/// The longest body of a ttrpc message.
pub const MAX_BODY: usize = 4 << 20;
/// The length of a ttrpc header.
pub const MESSAGE_HEADER: usize = 10;
/// The length of the header of a frame.
pub const FRAME_HEADER: usize = 8;
/// The longest payload of a frame: a whole ttrpc message.
pub const MAX_FRAME: usize = MAX_BODY + MESSAGE_HEADER;
/// The logical connection on which the runtime calls the plugin.
pub const PLUGIN_CONNECTION: u32 = 1;
/// The logical connection on which the plugin calls the runtime.
pub const RUNTIME_CONNECTION: u32 = 2;
