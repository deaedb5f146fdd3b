//! The crate on the kernel of this machine, in network namespaces that each test makes for itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

mod addresses;
mod events;
mod links;
mod moves;
mod namespaces;
mod rdma;
mod routes;
mod support;
