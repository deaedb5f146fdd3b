//! Tests of the node's container runtime with NRI, by a plugin that is written by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adjustments;
mod events;
mod faults;
mod many;
mod network;
mod sessions;
mod support;
