//! A driver on the framework, as a kubelet and an API server see it: real sockets, real files, no cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

#[allow(
    dead_code,
    unreachable_pub,
    clippy::wrong_self_convention,
    reason = "tests that use all of it come one after the other"
)]
mod support;

mod prepare;
