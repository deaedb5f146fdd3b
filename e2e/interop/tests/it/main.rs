//! Interoperability with Kubernetes' Go library: each reads the files that the other writes, and a driver on it runs on our
//! embedded node. Without Go the tests are skipped with a message.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod cluster;
mod conformance;
mod files;
mod gaps;
mod nri;
mod nri_messages;
mod nri_node;
mod quantities;
mod readme;
mod schema;
mod support;
mod verdicts;

/// The generator of the property tests of `drakkar-metadata`.
#[path = "../../../../crates/metadata/tests/it/generate.rs"]
mod generate;
