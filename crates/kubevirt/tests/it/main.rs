//! Tests of the crate from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

mod cases;
mod edit;
mod hook;
mod layout;
mod libvirt;
mod numa;
mod properties;
mod scale;
mod tree;
mod upgrade;
