//! Publishing: time, requests, bytes and memory for few and for many devices.
//!
//! The driver reads from its standard input what to publish, and the API server is the embedded one. A device has eight
//! attributes and two capacities.
//!
//! The number of requests does not depend on the host, so the benchmark fails if it is not as promised. It does not fail if
//! another goal is missed.

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
use crate::table::{Table, median};
use crate::{memory_directory, millis, to_float};

/// How much is published, and how long the driver is observed.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The numbers of devices, in ascending order.
    pub devices: &'static [u64],
    /// How often one of the largest number of devices is changed, of which the median is taken.
    pub changes: u64,
    /// How long the driver is observed while nothing changes.
    pub quiet: Duration,
}

impl Scale {
    /// The scale for published figures.
    pub const FULL: Self =
        Self { devices: &[1, 100, 2_500, 5_000, 10_000], changes: 11, quiet: Duration::from_secs(3) };
    /// The scale for tests.
    pub const TEST: Self = Self { devices: &[1, 300], changes: 2, quiet: Duration::from_millis(300) };

    /// The revision of the device that was changed, after all changes: they are made in two ways.
    fn last_revision(self) -> u64 {
        2 * self.changes
    }
}

/// Starts a driver that publishes on demand.
fn driver(framework: &Framework, cluster: &Cluster) -> Driver {
    let root = tempfile::tempdir_in(memory_directory()).unwrap();
    std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
    std::fs::write(root.path().join("kubeconfig"), cluster.embedded_kubeconfig().to_string()).unwrap();
    let mut command = framework.command(root.path(), 0);
    let child = command.arg("--orders").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut process = Process::new(child.unwrap());
    let (orders, answers) = process.pipes();
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(answers).lines() {
            let line = line.unwrap();
            let (made, took) = line.split_once(' ').unwrap();
            let [made, took] = [made, took].map(|nanos| Duration::from_nanos(nanos.parse().unwrap()));
            // The receiver may be gone when the driver is stopped.
            sender.send(Took { made, took }).ok();
        }
    });
    Driver { process, orders, answers: receiver, _root: root }
}

/// How long the driver took.
#[derive(Debug, Clone, Copy)]
struct Took {
    /// To make its devices.
    made: Duration,
    /// To publish them.
    took: Duration,
}

/// A driver that publishes on demand.
struct Driver {
    process: Process,
    orders: ChildStdin,
    answers: mpsc::UnboundedReceiver<Took>,
    /// The node's directories.
    _root: TempDir,
}

impl Driver {
    /// Publishes a number of devices, and returns how long that took.
    async fn publish(&mut self, count: u64, revision: u64) -> Took {
        writeln!(self.orders, "{count} {revision} all").unwrap();
        self.answers.recv().await.unwrap()
    }

    /// Updates the device in the middle of as many, and returns how long that took.
    async fn update(&mut self, count: u64, revision: u64) -> Took {
        writeln!(self.orders, "{count} {revision} one").unwrap();
        self.answers.recv().await.unwrap()
    }

    /// Stops the driver, and waits until it has exited.
    async fn stop(self) {
        // `stop` blocks, which must not block the runtime.
        tokio::task::spawn_blocking(move || self.process.stop()).await.unwrap();
    }
}

/// Measures publishing once, for each number of devices.
pub async fn round(scale: Scale, framework: &Framework, table: &mut Table) {
    let label = framework.name;
    let most = *scale.devices.last().unwrap();
    for &count in scale.devices {
        let cluster = Cluster::start(None);
        let mut driver = driver(framework, &cluster);
        let before = driver.process.processor_time();
        let Took { took, .. } = driver.publish(count, 0).await;
        let spent = driver.process.processor_time().saturating_sub(before);
        let requests = cluster.take_requests();
        let writes = writes(&requests);
        assert_eq!(writes, count.div_ceil(PER_SLICE), "one write for each slice: {requests:?}");
        let name = |what: &str| format!("publish {}: {what}", devices(count));
        let is_most = count == most;
        table.add_cost(label, &name("time"), "ms", millis(took));
        table.add_cost(label, &name("processor time"), "ms", millis(spent));
        table.add_cost(label, &name("writes"), "", to_float(writes));
        table.add_cost(label, &name("bytes sent"), "kB", sent(&requests));
        table.add_cost(label, &name("memory"), "MB", driver.process.memory());
        table.add_cost(label, &name("not pages of files"), "MB", driver.process.anonymous_memory());
        table.add_cost(label, &name("peak memory"), "MB", driver.process.peak_memory());
        if count >= 1000 {
            let per_device = took.as_secs_f64() * 1e6 / to_float(count);
            table.add_cost(label, &name("time per device"), "us", per_device);
        }
        if is_most {
            one_device(scale, label, &cluster, &mut driver, count, table).await;
        }
        driver.stop().await;
        if is_most {
            restart(framework, &cluster, (count, scale.last_revision()), table).await;
        }
    }
}

/// Measures changes of one device of many, and then a time in which nothing changes.
async fn one_device(
    scale: Scale,
    label: &'static str,
    cluster: &Cluster,
    driver: &mut Driver,
    count: u64,
    table: &mut Table,
) {
    let mut revisions = 1..;
    for (what, is_whole) in [("update", false), ("change", true)] {
        let (mut times_made, mut times, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        let before = driver.process.processor_time();
        for revision in revisions.by_ref().take(usize::try_from(scale.changes).unwrap()) {
            let Took { made, took } =
                if is_whole { driver.publish(count, revision).await } else { driver.update(count, revision).await };
            requests = cluster.take_requests();
            assert_eq!((requests.len(), writes(&requests)), (1, 1), "one changed device is one write: {requests:?}");
            times_made.push(made);
            times.push(took);
        }
        let spent = driver.process.processor_time().saturating_sub(before);
        let name = |figure: &str| format!("{what} one of {}: {figure}", devices(count));
        table.add_cost(label, &name("time"), "ms", millis(median(&mut times)));
        if is_whole {
            table.add_cost(label, &name("time to make the devices"), "ms", millis(median(&mut times_made)));
        }
        table.add_cost(label, &name("processor time"), "ms", millis(spent) / to_float(scale.changes));
        table.add_cost(label, &name("writes"), "", to_float(writes(&requests)));
        table.add_cost(label, &name("bytes sent"), "kB", sent(&requests));
        table.add_cost(label, &name("memory"), "MB", driver.process.memory());
        table.add_cost(label, &name("not pages of files"), "MB", driver.process.anonymous_memory());
        table.add_cost(label, &name("peak memory"), "MB", driver.process.peak_memory());
    }

    let Took { took, .. } = driver.publish(count, scale.last_revision()).await;
    table.add_cost(label, &format!("publish the same {}: time", devices(count)), "ms", millis(took));
    let before = driver.process.processor_time();
    tokio::time::sleep(scale.quiet).await;
    let spent = driver.process.processor_time().saturating_sub(before);
    let requests = cluster.take_requests();
    assert_eq!(requests, [], "no request while nothing changes");
    let per_second = millis(spent) / scale.quiet.as_secs_f64();
    table.add_cost(label, "nothing changes: requests", "", to_float(writes(&requests)));
    table.add_cost(label, "nothing changes: processor time per second", "ms", per_second);
}

/// Measures the start of a new process whose devices are already published.
async fn restart(framework: &Framework, cluster: &Cluster, (count, revision): (u64, u64), table: &mut Table) {
    let label = framework.name;
    let mut driver = driver(framework, cluster);
    let Took { took, .. } = driver.publish(count, revision).await;
    let requests = cluster.take_requests();
    assert_eq!(writes(&requests), 0, "a new process must write nothing: {requests:?}");
    let name = |what: &str| format!("start again with {}: {what}", devices(count));
    table.add_cost(label, &name("time"), "ms", millis(took));
    table.add_cost(label, &name("writes"), "", to_float(writes(&requests)));
    table.add_cost(label, &name("memory"), "MB", driver.process.memory());
    table.add_cost(label, &name("peak memory"), "MB", driver.process.peak_memory());
    driver.stop().await;
}

fn writes(requests: &[RequestRecord]) -> u64 {
    requests.iter().filter(|line| line.is_write()).count().try_into().unwrap()
}

/// The bytes of requests, in kilobytes.
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
