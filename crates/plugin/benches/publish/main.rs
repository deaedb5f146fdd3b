//! What publishing costs: time, requests, bytes and memory for few and for many devices.
//!
//! The API server is the embedded one, in this process. The driver runs in a process of its own, so that its processor time
//! and memory are its own; it is this program again, with [`DRIVER_ROOT`] set, and is told over its standard input what to
//! publish. The pages of its program file count as its memory, and some are the API server's code, which no driver has. A
//! device has eight attributes and two capacities.
//!
//! Each figure is measured in several rounds; the table has the median and the best. Counts of requests do not depend on the
//! machine: it fails where they are not as promised. No other goal that is missed makes it fail.
//!
//! `cargo bench -p drakkar-plugin --bench publish`, or with `-- --test` everything once, with fewer devices.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to measure")]

#[path = "../plugin/process.rs"]
mod process;
#[allow(dead_code, reason = "the benchmark of preparing uses the rest")]
#[path = "../plugin/table.rs"]
mod table;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use drakkar_node::api::{Config, RequestLine};
use drakkar_node::{ApiServer, Identity};
use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceAttribute, DraPlugin, DriverResources, Helper, PluginBuilder, Pool,
    PublishStatus, PublishedDevice,
};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use kube::api::PostParams;
use tempfile::TempDir;
use tokio::sync::mpsc;

use process::Process;
use table::{Better, Table};

/// Where the node of a driver is. Who finds it set is the driver.
const DRIVER_ROOT: &str = "DRAKKAR_BENCH_DRIVER_ROOT";
const DRIVER: &str = "gpu.example.com";
const NODE: &str = "node-1";
/// How many devices fit into a slice.
const PER_SLICE: u64 = 128;

/// How much is done for a figure.
struct Scale {
    rounds: usize,
    /// How many devices are published, the most last.
    devices: &'static [u64],
    /// How long nothing is to happen.
    quiet: Duration,
}

impl Scale {
    const FULL: Self = Self { rounds: 5, devices: &[1, 8, 100, 2_500, 5_000, 10_000], quiet: Duration::from_secs(3) };
    const TEST: Self = Self { rounds: 1, devices: &[1, 300], quiet: Duration::from_millis(300) };
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(root) = std::env::var_os(DRIVER_ROOT) {
        return runtime.block_on(drive(Path::new(&root)));
    }
    let is_test = std::env::args().any(|argument| argument == "--test");
    let scale = if is_test { Scale::TEST } else { Scale::FULL };
    let mut table = Table::default();
    for _ in 0..scale.rounds {
        runtime.block_on(round(&scale, &mut table));
    }
    if is_test {
        println!("{} figures can be measured", table.len());
    } else {
        print!("{table}");
    }
}

async fn drive(root: &Path) {
    let builder = PluginBuilder::new(DRIVER).node_name(NODE).kubelet_root(root).cdi_directory(root.join("cdi"));
    let helper = builder.start(Nothing).await.unwrap();
    obey(&helper);
    helper.run_until_signal().await.unwrap();
}

/// A driver that only publishes.
struct Nothing;

impl DraPlugin for Nothing {
    async fn prepare(&self, _: &Claim) -> Result<Vec<Device>, BoxError> {
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Publishes what standard input says, line by line: how many devices, and the revision of the one in the middle.
fn obey(helper: &Helper) {
    let (lines, mut orders) = mpsc::unbounded_channel::<(u64, u64)>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let (count, revision) = line.split_once(' ').unwrap();
            // Who has ended does not publish any more.
            lines.send((count.parse().unwrap(), revision.parse().unwrap())).ok();
        }
    });
    let publisher = helper.resource_publisher();
    tokio::spawn(async move {
        while let Some((count, revision)) = orders.recv().await {
            let pool = Pool::default().devices((0..count).map(|number| {
                let is_changed = number == count / 2;
                device(number, if is_changed { revision } else { 0 })
            }));
            let resources = DriverResources::default().pool(NODE, pool);
            let mut status = publisher.status();
            let begin = Instant::now();
            publisher.publish(resources).unwrap();
            status.wait_for(|status| *status == PublishStatus::Published).await.unwrap();
            println!("{}", begin.elapsed().as_nanos());
        }
    });
}

/// A device as drivers have them: about 460 bytes of JSON.
fn device(number: u64, revision: u64) -> PublishedDevice {
    let address = format!("{:04x}:{:02x}:{:02x}.0", number >> 13, (number >> 5) & 0xff, number & 0x1f);
    PublishedDevice::new(format!("gpu-{number}"))
        .attribute("index", i64::try_from(number).unwrap())
        .attribute("uuid", format!("GPU-5f3c1e0a-77a4-4f0e-8a55-{number:012x}"))
        .attribute("model", "Example Accelerator 9000 PCIe 80GB")
        .attribute("architecture", "example-9")
        .attribute("driverVersion", DeviceAttribute::version(format!("570.{revision}.0")))
        .attribute("numaNode", i64::try_from(number % 8).unwrap())
        .attribute("resource.kubernetes.io/pciBusID", address)
        .attribute("resource.kubernetes.io/pcieRoot", format!("pci{:04x}:{:02x}", number >> 13, (number >> 5) & 0xff))
        .capacity("memory", "80Gi")
        .capacity("multiprocessors", "132")
}

fn identity() -> Identity {
    Identity::Driver { namespace: "kube-system".into(), service_account: "gpu-driver".into(), node_name: NODE.into() }
}

/// A cluster without anything in it but a node.
struct Cluster {
    server: ApiServer,
}

impl Cluster {
    async fn new() -> Self {
        let server = ApiServer::start(Config::default()).await.unwrap();
        let mut node = NodeObject::default();
        node.metadata.name = Some(NODE.into());
        Api::all(server.admin()).create(&PostParams::default(), &node).await.unwrap();
        Self { server }
    }

    async fn driver(&self) -> Driver {
        let kubeconfig = self.server.kubeconfig(&identity()).unwrap();
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        // Not used for HTTP, but without one all that the system trusts are loaded, which no driver in a pod does.
        kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] =
            BASE64_STANDARD.encode(include_str!("../plugin/ca.pem")).into();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("plugins_registry")).unwrap();
        std::fs::write(root.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .env(DRIVER_ROOT, root.path())
            .env("KUBECONFIG", root.path().join("kubeconfig"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
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

    /// What the driver asked of the server since the last time.
    fn take_requests(&self) -> Vec<RequestLine> {
        let user = identity().user_name();
        let requests = self.server.requests().into_iter().filter(|line| line.user == user).collect();
        self.server.forget_requests();
        requests
    }
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
async fn round(scale: &Scale, table: &mut Table) {
    let most = *scale.devices.last().unwrap();
    for &count in scale.devices {
        let cluster = Cluster::new().await;
        let mut driver = cluster.driver().await;
        let before = driver.process.processor_time();
        let took = driver.publish(count, 0).await;
        let spent = driver.process.processor_time() - before;
        let requests = cluster.take_requests();
        let writes = writes(&requests);
        assert_eq!(writes, count.div_ceil(PER_SLICE), "one write for each slice: {requests:?}");
        let name = |what: &str| format!("publish {}: {what}", devices(count));
        let is_most = count == most;
        let goal = |goal: f64| if is_most { goal } else { f64::NAN };
        table.add(&name("time"), goal(3000.0), "ms", Better::Less, millis(took));
        table.add(&name("processor time"), f64::NAN, "ms", Better::Less, millis(spent));
        table.add(&name("writes"), f64::NAN, "", Better::Less, to_float(writes));
        table.add(&name("bytes sent"), f64::NAN, "kB", Better::Less, sent(&requests));
        let idle = if count == 8 { 10.0 } else { goal(60.0) };
        table.add(&name("memory"), idle, "MB", Better::Less, driver.process.memory());
        table.add(&name("not pages of files"), f64::NAN, "MB", Better::Less, driver.process.anonymous_memory());
        table.add(&name("peak memory"), goal(60.0), "MB", Better::Less, driver.process.peak_memory());
        if count >= 1000 {
            let per_device = took.as_secs_f64() * 1e6 / to_float(count);
            table.add(&name("time per device"), f64::NAN, "us", Better::Less, per_device);
        }
        if is_most {
            one_device(scale, &cluster, &mut driver, count, table).await;
        }
        driver.end().await;
        if is_most {
            start_again(&cluster, count, table).await;
        }
    }
}

/// One device of many changes; after that, nothing.
async fn one_device(scale: &Scale, cluster: &Cluster, driver: &mut Driver, count: u64, table: &mut Table) {
    let before = driver.process.processor_time();
    let took = driver.publish(count, 1).await;
    let spent = driver.process.processor_time() - before;
    let requests = cluster.take_requests();
    assert_eq!((requests.len(), writes(&requests)), (1, 1), "one changed device is one write: {requests:?}");
    let name = |what: &str| format!("change one of {}: {what}", devices(count));
    table.add(&name("time"), f64::NAN, "ms", Better::Less, millis(took));
    table.add(&name("processor time"), f64::NAN, "ms", Better::Less, millis(spent));
    table.add(&name("writes"), 1.0, "", Better::Less, to_float(writes(&requests)));
    table.add(&name("bytes sent"), f64::NAN, "kB", Better::Less, sent(&requests));
    table.add(&name("memory"), 60.0, "MB", Better::Less, driver.process.memory());
    table.add(&name("not pages of files"), f64::NAN, "MB", Better::Less, driver.process.anonymous_memory());
    table.add(&name("peak memory"), 60.0, "MB", Better::Less, driver.process.peak_memory());

    let took = driver.publish(count, 1).await;
    table.add(&format!("publish the same {}: time", devices(count)), f64::NAN, "ms", Better::Less, millis(took));
    let before = driver.process.processor_time();
    tokio::time::sleep(scale.quiet).await;
    let spent = driver.process.processor_time() - before;
    let requests = cluster.take_requests();
    assert_eq!(requests, [], "no request where nothing changes");
    let per_second = millis(spent) / scale.quiet.as_secs_f64();
    table.add("nothing changes: requests", 0.0, "", Better::Less, to_float(writes(&requests)));
    table.add("nothing changes: processor time per second", f64::NAN, "ms", Better::Less, per_second);
}

/// Another process of the driver finds what it wants.
async fn start_again(cluster: &Cluster, count: u64, table: &mut Table) {
    let mut driver = cluster.driver().await;
    let took = driver.publish(count, 1).await;
    let requests = cluster.take_requests();
    assert_eq!(writes(&requests), 0, "a new process writes nothing: {requests:?}");
    let name = |what: &str| format!("start again with {}: {what}", devices(count));
    table.add(&name("time"), f64::NAN, "ms", Better::Less, millis(took));
    table.add(&name("writes"), 0.0, "", Better::Less, to_float(writes(&requests)));
    table.add(&name("memory"), 60.0, "MB", Better::Less, driver.process.memory());
    table.add(&name("peak memory"), 60.0, "MB", Better::Less, driver.process.peak_memory());
    driver.end().await;
}

fn writes(requests: &[RequestLine]) -> u64 {
    requests.iter().filter(|line| line.is_write()).count().try_into().unwrap()
}

/// In kilobytes.
fn sent(requests: &[RequestLine]) -> f64 {
    to_float(requests.iter().map(|line| line.bytes).sum()) / 1e3
}

fn devices(count: u64) -> String {
    match count {
        1 => "1 device".to_owned(),
        1000.. => format!("{},{:03} devices", count / 1000, count % 1000),
        _ => format!("{count} devices"),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn to_float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
