//! Kubernetes' Go library beside ours: files that each writes and the other reads, and a driver that is built on it on our
//! embedded node. Without Go there is nothing to compare, and each test says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod cluster;
mod conformance;
mod files;
mod gaps;
mod quantities;
mod readme;
mod schema;
mod support;
mod verdicts;

/// The generator of the property tests of `drakkar-metadata`.
#[path = "../../../../crates/metadata/tests/it/generate.rs"]
mod generate;
