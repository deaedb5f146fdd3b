//! What a driver costs: how long a kubelet waits for it, how much it gets done, and what it takes of the node; beside a
//! driver on Kubernetes' Go framework.
//!
//! Three parties, as on a node. A driver runs in a process of its own, so that its processor time and memory are its own
//! ([`framework`]). The kubelet ([`peers`]) calls it over its unix sockets, and an API server on 127.0.0.1 ([`cluster`])
//! answers it; both are threads of this process. All share the processors of the machine.
//!
//! `cargo xtask bench` for everything, `cargo bench --profile dev -p drakkar-bench -- --test` for everything once and little of it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot be set up has nothing to measure")]

pub mod cluster;
pub mod compare;
pub mod files;
pub mod floor;
pub mod framework;
pub mod peers;
pub mod plot;
pub mod prepare;
pub mod process;
pub mod publish;
pub mod starting;
pub mod table;

use std::path::PathBuf;
use std::time::Duration;

/// The driver's name.
pub const DRIVER: &str = "gpu.example.com";
/// The node that drivers run on.
pub const NODE: &str = "worker-0";

/// A directory whose files are in memory, if there is one.
pub fn memory_directory() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub(crate) fn to_float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
