//! A driver on the framework, as a kubelet and an API server see it: real sockets, real files, no cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test that cannot go on fails, and one that cannot run says so"
)]

mod support;

mod campaign;
mod claims;
mod concurrency;
mod container_edits;
mod documentation;
mod driver_responses;
mod example;
mod ledger;
mod log;
mod metadata;
mod modes;
mod node;
mod operations;
mod prepare;
mod prometheus;
mod recorded;
mod recovery;
mod rolling;
mod slices;
mod start;
mod status;
