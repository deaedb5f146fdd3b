//! Prepare and unprepare: latency, throughput, processor time and memory.
//!
//! Each claim has one request with one device. A claim counts when it has been prepared and unprepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::peers::{Driver, Kubelet};
use crate::table::{Better, Table, median, percentile};
use crate::{micros, millis, to_float};

/// The latency of the slow API server.
pub const LATENCY: Duration = Duration::from_millis(2);

/// How often things are measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The number of sequential calls.
    pub calls: u64,
    /// The number of batches of claims.
    pub batches: u64,
    /// The number of claims that stay prepared when memory is measured.
    pub kept: u64,
}

impl Scale {
    /// The scale for a slow API server.
    fn slow(self) -> Self {
        Self { calls: (self.calls / 4).max(1), batches: (self.batches / 2).max(1), ..self }
    }
}

/// Measures the memory of a driver that has done nothing yet, and after it has prepared claims.
pub async fn memory(scale: Scale, label: &'static str, driver: &Driver, kubelet: &Kubelet, table: &mut Table) {
    table.add_cost(label, "idle memory", "MB", driver.process.memory());
    table.add_cost(label, "idle memory, without pages of files", "MB", driver.process.anonymous_memory());
    for claim in 0..scale.kept {
        kubelet.prepare(claim..claim + 1).await;
    }
    table.add_cost(label, "memory with 1,000 claims prepared", "MB", driver.process.memory());
    for claim in 0..scale.kept {
        kubelet.unprepare(claim..claim + 1).await;
    }
}

/// Measures the calls of a running driver, with a fast and with a slow API server.
pub async fn measure(
    scale: Scale,
    label: &'static str,
    cluster: &Cluster,
    driver: &Driver,
    kubelet: &Kubelet,
    table: &mut Table,
) {
    // Warms up connections, threads and the allocator.
    in_flight(kubelet, 64, scale.calls).await;
    let mut echoes = Vec::new();
    for _ in 0..scale.calls {
        echoes.push(driver.echo().await);
    }
    table.add_cost(label, "a call that does nothing (GetInfo), p50", "us", micros(median(&mut echoes)));
    work(scale, label, "", driver, kubelet, table).await;
    cluster.set_latency(LATENCY);
    work(scale.slow(), label, ", 2 ms of API latency", driver, kubelet, table).await;
    cluster.set_latency(Duration::ZERO);
}

/// Measures sequential, concurrent and batched calls; `suffix` is appended to the names of the figures.
async fn work(scale: Scale, label: &'static str, suffix: &str, driver: &Driver, kubelet: &Kubelet, table: &mut Table) {
    let name = |figure: &str| format!("{figure}{suffix}");
    let spent = Spent::begin(driver);
    calls(scale, label, ("prepare", "unprepare", suffix), kubelet, table).await;
    let single = spent.per_claim(scale.calls);
    for (calls, claims) in [(1, scale.calls), (8, 2 * scale.calls), (64, 2 * scale.calls)] {
        let spent = Spent::begin(driver);
        let took = in_flight(kubelet, calls, claims).await;
        let per_second = to_float(claims) / took.as_secs_f64();
        table.add(label, &name(&format!("claims per second, {calls} in flight")), "/s", Better::Higher, per_second);
        if calls == 64 {
            table.add_cost(label, &name("processor time per claim, one after the other"), "us", single);
            table.add_cost(label, &name("processor time per claim, 64 in flight"), "us", spent.per_claim(claims));
        }
    }
    for size in [16, 64] {
        let spent = Spent::begin(driver);
        let mut took = batches(kubelet, size, scale.batches).await;
        table.add_cost(label, &name(&format!("{size} claims in one call, p50")), "ms", millis(median(&mut took)));
        if size == 64 {
            let claims = size * scale.batches;
            table.add_cost(label, &name("processor time per claim, 64 in one call"), "us", spent.per_claim(claims));
        }
    }
}

/// Measures sequential prepare and unprepare calls, under the given names and with a suffix.
pub async fn calls(
    scale: Scale,
    label: &'static str,
    (prepare, unprepare, suffix): (&str, &str, &str),
    kubelet: &Kubelet,
    table: &mut Table,
) {
    let mut prepares = Vec::new();
    let mut unprepares = Vec::new();
    for claim in 0..scale.calls {
        prepares.push(kubelet.prepare(claim..claim + 1).await);
        unprepares.push(kubelet.unprepare(claim..claim + 1).await);
    }
    for (name, mut times) in [(prepare, prepares), (unprepare, unprepares)] {
        for percent in [50, 90, 99] {
            table.add_cost(
                label,
                &format!("{name}, p{percent}{suffix}"),
                "us",
                micros(percentile(&mut times, percent)),
            );
        }
    }
}

/// Measures the processor time that a driver uses from now on.
struct Spent<'a>(&'a Driver, Duration);

impl<'a> Spent<'a> {
    fn begin(driver: &'a Driver) -> Self {
        Self(driver, driver.process.processor_time())
    }

    fn per_claim(self, claims: u64) -> f64 {
        micros(self.0.process.processor_time().saturating_sub(self.1)) / to_float(claims)
    }
}

/// Prepares batches, and returns how long each took.
async fn batches(kubelet: &Kubelet, size: u64, batches: u64) -> Vec<Duration> {
    let mut prepares = Vec::new();
    for _ in 0..batches {
        prepares.push(kubelet.prepare(0..size).await);
        kubelet.unprepare(0..size).await;
    }
    prepares
}

/// Prepares and unprepares claims with a number of concurrent calls, and returns how long that took.
async fn in_flight(kubelet: &Kubelet, calls: u64, claims: u64) -> Duration {
    let begin = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..calls)
        .map(|_| {
            let kubelet = kubelet.clone();
            let next = next.clone();
            tokio::spawn(async move {
                loop {
                    let claim = next.fetch_add(1, Ordering::Relaxed);
                    if claim >= claims {
                        break;
                    }
                    kubelet.prepare(claim..claim + 1).await;
                    kubelet.unprepare(claim..claim + 1).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    begin.elapsed()
}
