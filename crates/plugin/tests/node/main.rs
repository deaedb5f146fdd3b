//! The embedded node as its users have it: real drivers, real sockets, real processes that read real mounts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod kep;
mod kit;
mod kubelet;
mod left;
mod support;
