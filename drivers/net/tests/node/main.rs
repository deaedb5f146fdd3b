//! The driver on an embedded node: claims are allocated, pods get real interfaces through NRI, and everything comes back. The
//! examples and the guide run the program itself.
//!
//! The host is a network namespace of its own, with cables into a switch. Where a machine allows no network namespaces the tests
//! say so; with `DRAKKAR_REQUIRE_NAMESPACES=1` they fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod dashboard;
mod examples;
mod faults;
mod file;
#[path = "../../../../crates/cli/tests/it/soak/growth.rs"]
mod growth;
mod guide;
mod health;
mod life;
mod program;
#[path = "../../../../crates/plugin/tests/it/prometheus/promtool.rs"]
mod promtool;
mod soak;
mod support;
