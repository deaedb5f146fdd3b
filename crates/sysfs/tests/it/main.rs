//! Tests on trees that look like sysfs, and on the kernel of the machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod blocked_reads;
mod groups;
mod host;
mod in_use;
mod scan;
mod simulated;
mod support;
mod updates;
mod writes;
