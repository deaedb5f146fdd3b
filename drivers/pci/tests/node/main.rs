//! The driver on an embedded node, with a simulated kernel: claims are allocated, containers run, devices come and go.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod changes;
mod example;
mod faults;
mod guide;
mod life;
#[path = "../../../../crates/plugin/tests/it/prometheus/promtool.rs"]
mod promtool;
mod restart;
mod support;
