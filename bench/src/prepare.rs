//! Preparing and unpreparing claims: how long calls take, how many get done, and what that takes of the machine.
//!
//! Each claim has one request with one device. Claims count when they have been prepared and unprepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::peers::{Driver, Kubelet};
use crate::table::{Better, Table, median, percentile};
use crate::{micros, millis, to_float};

/// How long the slow API server takes for an answer.
pub const LATENCY: Duration = Duration::from_millis(2);

/// How much is done for a figure.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Calls one after the other.
    pub calls: u64,
    /// Batches of claims.
    pub batches: u64,
    /// Claims that are prepared at the same time.
    pub kept: u64,
}

impl Scale {
    /// With an API server that takes its time.
    fn slow(self) -> Self {
        Self { calls: (self.calls / 4).max(1), batches: (self.batches / 2).max(1), ..self }
    }
}

/// The memory of a driver that has done nothing yet, and of one that has prepared claims.
pub async fn memory(scale: Scale, of: &'static str, driver: &Driver, kubelet: &Kubelet, table: &mut Table) {
    table.less(of, "idle memory", "MB", driver.process.memory());
    table.less(of, "idle memory, without pages of files", "MB", driver.process.anonymous_memory());
    for claim in 0..scale.kept {
        kubelet.prepare(claim..claim + 1).await;
    }
    table.less(of, "memory with 1,000 claims prepared", "MB", driver.process.memory());
    for claim in 0..scale.kept {
        kubelet.unprepare(claim..claim + 1).await;
    }
}

/// All that is measured of a driver that runs.
pub async fn measure(
    scale: Scale,
    of: &'static str,
    cluster: &Cluster,
    driver: &Driver,
    kubelet: &Kubelet,
    table: &mut Table,
) {
    // Connections, threads and the allocator's pools are there afterwards.
    in_flight(kubelet, 64, scale.calls).await;
    let mut echoes = Vec::new();
    for _ in 0..scale.calls {
        echoes.push(driver.echo().await);
    }
    table.less(of, "a call that does nothing (GetInfo), p50", "us", micros(median(&mut echoes)));
    work(scale, of, "", driver, kubelet, table).await;
    cluster.slow_down(LATENCY);
    work(scale.slow(), of, ", 2 ms of API latency", driver, kubelet, table).await;
    cluster.slow_down(Duration::ZERO);
}

async fn work(scale: Scale, of: &'static str, how: &str, driver: &Driver, kubelet: &Kubelet, table: &mut Table) {
    let name = |what: &str| format!("{what}{how}");
    let spent = Spent::begin(driver);
    calls(scale, of, ("prepare", "unprepare", how), kubelet, table).await;
    let single = spent.per_claim(scale.calls);
    for (calls, claims) in [(1, scale.calls), (8, 2 * scale.calls), (64, 2 * scale.calls)] {
        let spent = Spent::begin(driver);
        let took = in_flight(kubelet, calls, claims).await;
        let per_second = to_float(claims) / took.as_secs_f64();
        table.add(of, &name(&format!("claims per second, {calls} in flight")), "/s", Better::More, per_second);
        if calls == 64 {
            table.less(of, &name("processor time per claim, one after the other"), "us", single);
            table.less(of, &name("processor time per claim, 64 in flight"), "us", spent.per_claim(claims));
        }
    }
    for size in [16, 64] {
        let spent = Spent::begin(driver);
        let mut took = batches(kubelet, size, scale.batches).await;
        table.less(of, &name(&format!("{size} claims in one call, p50")), "ms", millis(median(&mut took)));
        if size == 64 {
            let claims = size * scale.batches;
            table.less(of, &name("processor time per claim, 64 in one call"), "us", spent.per_claim(claims));
        }
    }
}

/// Prepares and unprepares claims one after the other: what the calls are named, and how.
pub async fn calls(
    scale: Scale,
    of: &'static str,
    (prepare, unprepare, how): (&str, &str, &str),
    kubelet: &Kubelet,
    table: &mut Table,
) {
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    for claim in 0..scale.calls {
        prepares.push(kubelet.prepare(claim..claim + 1).await);
        unprepares.push(kubelet.unprepare(claim..claim + 1).await);
    }
    for (what, mut times) in [(prepare, prepares), (unprepare, unprepares)] {
        for percent in [50, 90, 99] {
            table.less(of, &format!("{what}, p{percent}{how}"), "us", micros(percentile(&mut times, percent)));
        }
    }
}

/// The processor time that a driver has had since.
struct Spent<'a>(&'a Driver, Duration);

impl<'a> Spent<'a> {
    fn begin(driver: &'a Driver) -> Self {
        Self(driver, driver.process.processor_time())
    }

    fn per_claim(self, claims: u64) -> f64 {
        micros(self.0.process.processor_time().saturating_sub(self.1)) / to_float(claims)
    }
}

/// Prepares batches, and tells how long each took.
async fn batches(kubelet: &Kubelet, size: u64, batches: u64) -> Vec<Duration> {
    let mut prepares = Vec::new();
    for _ in 0..batches {
        prepares.push(kubelet.prepare(0..size).await);
        kubelet.unprepare(0..size).await;
    }
    prepares
}

/// Prepares and unprepares claims with so many calls under way, and tells how long all of it took.
async fn in_flight(kubelet: &Kubelet, calls: u64, claims: u64) -> Duration {
    let begin = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..calls)
        .map(|_| {
            let (kubelet, next) = (kubelet.clone(), next.clone());
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
