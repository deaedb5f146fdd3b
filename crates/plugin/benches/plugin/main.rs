//! What a driver costs: how long a kubelet waits for it, how much it gets done, and what it takes of the node.
//!
//! Three parties, as on a node. The driver runs in a process of its own, so that its processor time and memory are its
//! own; it is this program again, with [`DRIVER_ROOT`] set. The kubelet calls it over its unix sockets, and an API server
//! on 127.0.0.1 answers its GETs with a claim as a real one has it, managed fields included; both are threads of this
//! process. Metadata is on, and each claim has one request with one device. All share the processors of the machine.
//!
//! Each figure is measured in several rounds. The table has the median of the rounds, and the best one: other work on the
//! machine makes the first worse, and the second hardly. Nothing fails when a goal is missed.
//!
//! `cargo bench -p drakkar-plugin`, or with `-- --test` everything once. The size is told if the example is there:
//! `cargo build --release -p drakkar-plugin --example minimal`. `TMPDIR` says where the node's directories are: an ext4
//! without a journal does not use an inode again soon after its removal and searches longer and longer for another, so
//! there the figures are those of the search.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to measure")]

mod peers;
#[allow(dead_code, reason = "the benchmark of publishing uses the rest")]
mod process;
mod table;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceMetadata, DraPlugin, PluginBuilder};

use peers::{ApiServer, DRIVER, DriverProcess, Kubelet, Node};
use table::{Better, Table, median, percentile};

/// Where the node of a driver is. Who finds it set is the driver.
const DRIVER_ROOT: &str = "DRAKKAR_BENCH_DRIVER_ROOT";
/// How long the slow API server takes for an answer.
const LATENCY: Duration = Duration::from_millis(2);
/// How many claims there are in a batch.
const BATCH: u64 = 64;

/// How much is done for a figure.
struct Scale {
    rounds: usize,
    calls: u64,
    batches: u64,
    starts: usize,
    kept: u64,
}

impl Scale {
    const FULL: Self = Self { rounds: 5, calls: 500, batches: 10, starts: 5, kept: 1000 };
    const TEST: Self = Self { rounds: 1, calls: 1, batches: 1, starts: 1, kept: 1 };
}

fn main() {
    if let Some(root) = std::env::var_os(DRIVER_ROOT) {
        return drive(Path::new(&root));
    }
    let is_test = std::env::args().any(|argument| argument == "--test");
    let scale = if is_test { Scale::TEST } else { Scale::FULL };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = runtime.block_on(measure(&scale));
    if is_test {
        println!("{} figures can be measured", table.len());
    } else {
        print!("{table}");
    }
}

/// What the smallest example does.
fn drive(root: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder =
            PluginBuilder::new(DRIVER).kubelet_root(root).cdi_directory(root.join("cdi")).device_metadata(true);
        let helper = builder.start(Minimal).await.unwrap();
        helper.run_until_signal().await.unwrap();
    });
}

struct Minimal;

impl DraPlugin for Minimal {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let devices = claim.results().map(|result| Device {
            metadata: Some(DeviceMetadata::default().attribute("model", "minimal")),
            ..Device::from(result)
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

async fn measure(scale: &Scale) -> Table {
    let api = ApiServer::start();
    let mut table = Table::default();
    for _ in 0..scale.rounds {
        let (driver, start) = Node::new(&api).start().await;
        let mut starts = vec![start];
        for _ in 1..scale.starts {
            let (driver, start) = Node::new(&api).start().await;
            starts.push(start);
            driver.end().await;
        }
        table.add("start to registered", 8.0, "ms", Better::Less, millis(median(&mut starts)));
        table.add("idle memory", 10.0, "MB", Better::Less, driver.process.memory());
        table.add(
            "idle memory without pages of files",
            f64::NAN,
            "MB",
            Better::Less,
            driver.process.anonymous_memory(),
        );
        round(scale, &api, &driver, &mut table).await;
        driver.end().await;
    }
    if let Some(size) = example_size() {
        table.add("binary of examples/minimal, stripped", 12.0, "MB", Better::Less, size);
    }
    table
}

/// All that is measured of a driver that runs.
async fn round(scale: &Scale, api: &ApiServer, driver: &DriverProcess, table: &mut Table) {
    let kubelet = driver.kubelet().await;
    // Connections, threads and the allocator's pools are there afterwards.
    in_flight(&kubelet, 64, scale.calls).await;
    one_after_the_other(&kubelet, scale.calls).await;

    let mut echoes = Vec::new();
    for _ in 0..scale.calls {
        echoes.push(driver.echo().await);
    }
    table.add("a call that does nothing (GetInfo), p50", f64::NAN, "us", Better::Less, micros(median(&mut echoes)));

    let before = driver.process.processor_time();
    let (mut prepares, mut unprepares) = one_after_the_other(&kubelet, scale.calls).await;
    let spent = driver.process.processor_time() - before;
    table.add("prepare, p50", 300.0, "us", Better::Less, micros(median(&mut prepares)));
    table.add("prepare, p99", 800.0, "us", Better::Less, micros(percentile(&mut prepares, 99)));
    table.add("unprepare, p50", 220.0, "us", Better::Less, micros(median(&mut unprepares)));
    table.add("processor time per claim, prepare and unprepare", 350.0, "us", Better::Less, {
        micros(spent) / to_float(scale.calls)
    });

    api.slow_down(LATENCY);
    let (mut prepares, _) = one_after_the_other(&kubelet, (scale.calls / 4).max(1)).await;
    let mut batches = batches(&kubelet, scale.batches).await;
    api.slow_down(Duration::ZERO);
    table.add("prepare with 2 ms of API latency, p50", 2400.0, "us", Better::Less, micros(median(&mut prepares)));
    table.add("64 claims in one call with 2 ms of API latency, p50", 15.0, "ms", Better::Less, {
        millis(median(&mut batches))
    });
    let before = driver.process.processor_time();
    let mut batches = self::batches(&kubelet, scale.batches).await;
    let spent = driver.process.processor_time() - before;
    table.add("64 claims in one call, p50", 10.0, "ms", Better::Less, millis(median(&mut batches)));
    table.add("processor time per claim, 64 in one call", 350.0, "us", Better::Less, {
        micros(spent) / to_float(scale.batches * BATCH)
    });

    for (calls, goal) in [(1, 2000.0), (8, 4000.0), (64, 4000.0)] {
        let name = format!("claims per second, {calls} in flight");
        let before = driver.process.processor_time();
        let took = in_flight(&kubelet, calls, 2 * scale.calls).await;
        let spent = driver.process.processor_time() - before;
        table.add(&name, goal, "/s", Better::More, to_float(2 * scale.calls) / took.as_secs_f64());
        if calls == 64 {
            table.add("processor time per claim, 64 in flight", 350.0, "us", Better::Less, {
                micros(spent) / to_float(2 * scale.calls)
            });
        }
    }

    table.add("memory after the load", f64::NAN, "MB", Better::Less, driver.process.memory());
    let before = driver.process.memory();
    for claim in 0..scale.kept {
        kubelet.prepare(claim..claim + 1).await;
    }
    let more = (driver.process.memory() - before) * 1000.0 / to_float(scale.kept);
    table.add("memory for 1,000 prepared claims", 2.0, "MB", Better::Less, more);
    for claim in 0..scale.kept {
        kubelet.unprepare(claim..claim + 1).await;
    }
}

/// Prepares and unprepares claims, one after the other, and tells how long each call took.
async fn one_after_the_other(kubelet: &Kubelet, claims: u64) -> (Vec<Duration>, Vec<Duration>) {
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    for claim in 0..claims {
        prepares.push(kubelet.prepare(claim..claim + 1).await);
        unprepares.push(kubelet.unprepare(claim..claim + 1).await);
    }
    (prepares, unprepares)
}

/// Prepares batches, and tells how long each took.
async fn batches(kubelet: &Kubelet, batches: u64) -> Vec<Duration> {
    let mut prepares = Vec::new();
    for _ in 0..batches {
        prepares.push(kubelet.prepare(0..BATCH).await);
        kubelet.unprepare(0..BATCH).await;
    }
    prepares
}

/// Prepares and unprepares claims with so many calls under way, and tells how long all of it took.
async fn in_flight(kubelet: &Kubelet, calls: u64, claims: u64) -> Duration {
    let begin = Instant::now();
    let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let callers: Vec<_> = (0..calls)
        .map(|_| {
            let (kubelet, next) = (kubelet.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let claim = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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

/// The size of the example without symbols, if it has been built.
fn example_size() -> Option<f64> {
    let own = std::env::current_exe().unwrap();
    let example = own.parent()?.parent()?.join("examples/minimal");
    let directory = tempfile::tempdir().unwrap();
    let stripped = directory.path().join("minimal");
    let is_stripped = Command::new("strip").arg("-o").arg(&stripped).arg(example).output().is_ok();
    let size = is_stripped.then(|| std::fs::metadata(stripped)).and_then(Result::ok)?.len();
    Some(to_float(size) / 1e6)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn to_float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
