//! What publishing costs: time, requests, bytes and memory for few and for many devices.
//!
//! The driver is told over its standard input what to publish, and the API server is the embedded one. A device has eight
//! attributes and two capacities.
//!
//! Counts of requests do not depend on the machine: it fails where they are not as promised. No other goal that is missed
//! makes it fail.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use drakkar_node::api::RequestRecord;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::cluster::Cluster;
use crate::framework::Framework;
use crate::process::Process;
use crate::starting::PER_SLICE;
use crate::table::Table;
use crate::{memory_directory, millis, to_float};

/// How much is done for a figure.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// How many devices are published, the most last.
    pub devices: &'static [u64],
    /// How long nothing is to happen.
    pub quiet: Duration,
}

impl Scale {
    /// For figures.
    pub const FULL: Self = Self { devices: &[1, 100, 2_500, 5_000, 10_000], quiet: Duration::from_secs(3) };
    /// To see that it works.
    pub const TEST: Self = Self { devices: &[1, 300], quiet: Duration::from_millis(300) };
}

/// Starts a driver that only does as it is told.
fn driver(framework: &Framework, cluster: &Cluster) -> Driver {
    let root = tempfile::tempdir_in(memory_directory()).unwrap();
    std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
    std::fs::write(root.path().join("kubeconfig"), cluster.kubeconfig_behind().to_string()).unwrap();
    let mut command = framework.command(root.path(), 0);
    let child = command.arg("--orders").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = Process::new(child.unwrap());
    let (orders, answers) = process.pipes();
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(answers).lines() {
            let took = Duration::from_nanos(line.unwrap().parse().unwrap());
            // Nobody has to wait for the answer.
            sender.send(took).ok();
        }
    });
    Driver { process, orders, answers: receiver, _root: root }
}

/// A driver that publishes what it is told to.
struct Driver {
    process: Process,
    orders: ChildStdin,
    answers: mpsc::UnboundedReceiver<Duration>,
    /// The node's directories.
    _root: TempDir,
}

impl Driver {
    /// Publishes so many devices, and tells how long that took.
    async fn publish(&mut self, count: u64, revision: u64) -> Duration {
        writeln!(self.orders, "{count} {revision}").unwrap();
        self.answers.recv().await.unwrap()
    }

    /// Ends it, and waits until it has ended.
    async fn end(self) {
        // In another thread: the API server is in this one.
        tokio::task::spawn_blocking(move || self.process.end()).await.unwrap();
    }
}

/// All that is measured of publishing.
pub async fn round(scale: Scale, framework: &Framework, table: &mut Table) {
    let of = framework.name;
    let most = *scale.devices.last().unwrap();
    for &count in scale.devices {
        let cluster = Cluster::start(None);
        let mut driver = driver(framework, &cluster);
        let before = driver.process.processor_time();
        let took = driver.publish(count, 0).await;
        let spent = driver.process.processor_time().saturating_sub(before);
        let requests = cluster.take_requests();
        let writes = writes(&requests);
        assert_eq!(writes, count.div_ceil(PER_SLICE), "one write for each slice: {requests:?}");
        let name = |what: &str| format!("publish {}: {what}", devices(count));
        let is_most = count == most;
        table.less(of, &name("time"), "ms", millis(took));
        table.less(of, &name("processor time"), "ms", millis(spent));
        table.less(of, &name("writes"), "", to_float(writes));
        table.less(of, &name("bytes sent"), "kB", sent(&requests));
        table.less(of, &name("memory"), "MB", driver.process.memory());
        table.less(of, &name("not pages of files"), "MB", driver.process.anonymous_memory());
        table.less(of, &name("peak memory"), "MB", driver.process.peak_memory());
        if count >= 1000 {
            let per_device = took.as_secs_f64() * 1e6 / to_float(count);
            table.less(of, &name("time per device"), "us", per_device);
        }
        if is_most {
            one_device(scale, of, &cluster, &mut driver, count, table).await;
        }
        driver.end().await;
        if is_most {
            start_again(framework, &cluster, count, table).await;
        }
    }
}

/// One device of many changes; after that, nothing.
async fn one_device(
    scale: Scale,
    of: &'static str,
    cluster: &Cluster,
    driver: &mut Driver,
    count: u64,
    table: &mut Table,
) {
    let before = driver.process.processor_time();
    let took = driver.publish(count, 1).await;
    let spent = driver.process.processor_time().saturating_sub(before);
    let requests = cluster.take_requests();
    assert_eq!((requests.len(), writes(&requests)), (1, 1), "one changed device is one write: {requests:?}");
    let name = |what: &str| format!("change one of {}: {what}", devices(count));
    table.less(of, &name("time"), "ms", millis(took));
    table.less(of, &name("processor time"), "ms", millis(spent));
    table.less(of, &name("writes"), "", to_float(writes(&requests)));
    table.less(of, &name("bytes sent"), "kB", sent(&requests));
    table.less(of, &name("memory"), "MB", driver.process.memory());
    table.less(of, &name("not pages of files"), "MB", driver.process.anonymous_memory());
    table.less(of, &name("peak memory"), "MB", driver.process.peak_memory());

    let took = driver.publish(count, 1).await;
    table.less(of, &format!("publish the same {}: time", devices(count)), "ms", millis(took));
    let before = driver.process.processor_time();
    tokio::time::sleep(scale.quiet).await;
    let spent = driver.process.processor_time().saturating_sub(before);
    let requests = cluster.take_requests();
    assert_eq!(requests, [], "no request where nothing changes");
    let per_second = millis(spent) / scale.quiet.as_secs_f64();
    table.less(of, "nothing changes: requests", "", to_float(writes(&requests)));
    table.less(of, "nothing changes: processor time per second", "ms", per_second);
}

/// Another process of the driver finds what it wants.
async fn start_again(framework: &Framework, cluster: &Cluster, count: u64, table: &mut Table) {
    let of = framework.name;
    let mut driver = driver(framework, cluster);
    let took = driver.publish(count, 1).await;
    let requests = cluster.take_requests();
    assert_eq!(writes(&requests), 0, "a new process writes nothing: {requests:?}");
    let name = |what: &str| format!("start again with {}: {what}", devices(count));
    table.less(of, &name("time"), "ms", millis(took));
    table.less(of, &name("writes"), "", to_float(writes(&requests)));
    table.less(of, &name("memory"), "MB", driver.process.memory());
    table.less(of, &name("peak memory"), "MB", driver.process.peak_memory());
    driver.end().await;
}

fn writes(requests: &[RequestRecord]) -> u64 {
    requests.iter().filter(|line| line.is_write()).count().try_into().unwrap()
}

/// In kilobytes.
fn sent(requests: &[RequestRecord]) -> f64 {
    to_float(requests.iter().map(|line| line.bytes).sum()) / 1e3
}

fn devices(count: u64) -> String {
    match count {
        1 => "1 device".to_owned(),
        1000.. => format!("{},{:03} devices", count / 1000, count % 1000),
        _ => format!("{count} devices"),
    }
}
