//! Starting a driver: how long until the kubelet has registered it, and until the API server has its devices.

use std::path::Path;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::framework::Framework;
use crate::peers::{Driver, Node};
use crate::prepare::LATENCY;
use crate::table::{Table, median};
use crate::{millis, to_float};

/// How many devices fit into a slice.
pub const PER_SLICE: u64 = 128;
/// How many devices a driver has while other things are measured.
pub const FEW: u64 = 8;
/// How many are published to measure that.
const MANY: u64 = 1000;

/// Starts a driver on a node without slices, and waits until it is registered and has published. Tells how long that took.
pub async fn start(directory: &Path, framework: &Framework, cluster: &Cluster, devices: u64) -> (Driver, Duration) {
    cluster.clear().await;
    let driver = Node::new(directory, cluster).start(framework, devices).await;
    cluster.written(usize::try_from(devices.div_ceil(PER_SLICE)).unwrap()).await;
    let published = driver.started.elapsed();
    (driver, published)
}

/// All that is measured of starts.
pub async fn measure(directory: &Path, framework: &Framework, cluster: &Cluster, starts: usize, table: &mut Table) {
    for (latency, how) in [(Duration::ZERO, ""), (LATENCY, ", 2 ms of API latency")] {
        cluster.slow_down(latency);
        let (mut registered, mut published) = (Vec::new(), Vec::new());
        for _ in 0..starts {
            let (driver, took) = start(directory, framework, cluster, FEW).await;
            registered.push(driver.registered);
            published.push(took);
            driver.end().await;
        }
        let of = framework.name;
        table.less(of, &format!("start to registered{how}"), "ms", millis(median(&mut registered)));
        table.less(of, &format!("start to 8 devices published{how}"), "ms", millis(median(&mut published)));

        let (driver, took) = start(directory, framework, cluster, MANY).await;
        let spent = driver.process.processor_time();
        table.less(of, &format!("start to 1,000 devices published{how}"), "ms", millis(took));
        if latency.is_zero() {
            let sent: u64 = cluster.requests().iter().filter(|line| line.is_write()).map(|line| line.bytes).sum();
            table.less(of, "1,000 devices: processor time", "ms", millis(spent));
            table.less(of, "1,000 devices: bytes of requests", "kB", to_float(sent) / 1e3);
            table.less(of, "1,000 devices: peak memory", "MB", driver.process.peak_memory());
        }
        driver.end().await;
    }
    cluster.slow_down(Duration::ZERO);
}
