//! Benchmarks of a driver's latency, throughput, processor time and memory, compared with a driver on Kubernetes' Go
//! framework.
//!
//! A driver ([`framework`]) runs in its own process, so that its processor time and memory can be measured. The kubelet
//! ([`peers`]) calls it over its unix sockets, and an API server on 127.0.0.1 ([`cluster`]) answers it; both are threads of
//! this process. All share the processors of the host. An NRI plugin ([`nri`]) and the network driver ([`net`]) are measured
//! with the runtime's side of containerd's own library. The cost of a GET for a real kube-apiserver is measured by
//! [`api_server`].
//!
//! `cargo xtask bench` measures everything; `cargo bench --profile dev -p drakkar-bench -- --test` runs everything once on a
//! small scale.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot be set up has nothing to measure")]

pub mod api_server;
pub mod cluster;
pub mod compare;
pub mod counts;
pub mod files;
pub mod floor;
pub mod framework;
pub mod net;
pub mod nri;
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

/// A directory whose files are in memory; the directory for temporary files if there is none.
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
