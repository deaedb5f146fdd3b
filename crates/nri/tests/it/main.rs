//! The client against a runtime that is played by the tests, byte by byte, as Go's implementation reads and writes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod adjustments;
mod deadlines;
mod events;
mod handshake;
mod launched;
mod limits;
mod plugin;
mod reconnect;
mod runtime;
mod stopping;
mod updates;
mod vectors;
mod wire;
