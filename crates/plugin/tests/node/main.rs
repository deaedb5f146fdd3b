//! Tests on the embedded node: drivers on this framework, over real sockets, and processes that read the mounted files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod container_edits;
mod handles;
mod kep;
mod kubelet;
mod leftovers;
mod screenshots;
mod support;
mod usage;
