//! Starting a driver: the time until the kubelet has registered it, and until its devices are published.

use std::path::Path;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::framework::Framework;
use crate::peers::{Driver, Node};
use crate::prepare::LATENCY;
use crate::table::{Table, median};
use crate::{millis, to_float};

/// The maximum number of devices in a slice.
pub const PER_SLICE: u64 = 128;
/// The number of devices of a driver while other things are measured.
pub const FEW: u64 = 8;
/// The number of devices when publishing is measured.
const MANY: u64 = 1000;

/// Starts a driver on a node without slices, and waits until it is registered and has published its devices. Returns how long
/// that took.
pub async fn start(directory: &Path, framework: &Framework, cluster: &Cluster, devices: u64) -> (Driver, Duration) {
    cluster.clear().await;
    let driver = Node::new(directory, cluster).start(framework, devices).await;
    cluster.wait_for_writes(usize::try_from(devices.div_ceil(PER_SLICE)).unwrap()).await;
    let published = driver.started.elapsed();
    (driver, published)
}

/// Measures starts, with a fast and with a slow API server.
pub async fn measure(directory: &Path, framework: &Framework, cluster: &Cluster, starts: usize, table: &mut Table) {
    for (latency, suffix) in [(Duration::ZERO, ""), (LATENCY, ", 2 ms of API latency")] {
        cluster.set_latency(latency);
        let mut registered = Vec::new();
        let mut published = Vec::new();
        for _ in 0..starts {
            let (driver, took) = start(directory, framework, cluster, FEW).await;
            registered.push(driver.registered);
            published.push(took);
            driver.stop().await;
        }
        let label = framework.name;
        table.add_cost(label, &format!("start to registered{suffix}"), "ms", millis(median(&mut registered)));
        table.add_cost(label, &format!("start to 8 devices published{suffix}"), "ms", millis(median(&mut published)));

        let (driver, took) = start(directory, framework, cluster, MANY).await;
        let spent = driver.process.processor_time();
        table.add_cost(label, &format!("start to 1,000 devices published{suffix}"), "ms", millis(took));
        if latency.is_zero() {
            let sent: u64 = cluster.requests().iter().filter(|line| line.is_write()).map(|line| line.bytes).sum();
            table.add_cost(label, "1,000 devices: processor time", "ms", millis(spent));
            table.add_cost(label, "1,000 devices: bytes of requests", "kB", to_float(sent) / 1e3);
            table.add_cost(label, "1,000 devices: peak memory", "MB", driver.process.peak_memory());
        }
        driver.stop().await;
    }
    cluster.set_latency(Duration::ZERO);
}
