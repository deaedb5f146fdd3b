//! Tests on a real kernel, each in network namespaces of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

mod following;
mod inventory;
mod support;
