//! Test doubles for everything that a driver talks to: API server, node directories and kubelet; and configurable drivers.

mod api;
mod claim;
mod cluster;
mod driver;
mod embedded;
mod fixture;
mod kubelet;
mod node;
mod proxy;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_plugin::Helper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub use self::api::{ApiServer, ClaimFault};
pub use self::claim::TestClaim;
pub use self::cluster::{Cluster, POOL, SHARE};
pub use self::driver::{SlowDriver, TestDriver, numbered_device};
pub use self::embedded::{one_gpu, pod_with, read_metadata};
pub use self::fixture::Fixture;
pub use self::kubelet::{Kubelet, SocketProxy, cdi_devices, channel, info, notify};
pub use self::node::Node;
pub use self::proxy::{ApiProxy, Fault, RecordedRequest, Times};

/// The driver name of most tests.
pub const DRIVER: &str = "gpu.example.com";
/// The limit for every wait in these tests, far longer than anything here takes.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// A loopback address whose port the system chooses.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Polls until there is a value, and returns it.
pub async fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts calls in flight: each call holds a guard while it runs.
#[derive(Clone, Default)]
pub struct InFlight(Arc<AtomicUsize>);

/// A call in flight, which ends when this is dropped.
pub struct InFlightGuard(InFlight);

impl InFlight {
    pub fn enter(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::SeqCst);
        InFlightGuard(self.clone())
    }

    /// Waits until exactly this many calls are in flight.
    pub async fn wait_for(&self, count: usize) {
        let reached = || (self.0.load(Ordering::SeqCst) == count).then_some(());
        eventually(&format!("{count} in flight"), reached).await;
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pseudorandom number generator with a fixed seed.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// Returns the status and body of a page.
pub async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Returns the sum of all series of a metric that start with `name`.
pub async fn metric(helper: &Helper, name: &str) -> i64 {
    let (_, metrics) = http_get(helper.http_address().unwrap(), "/metrics").await;
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    lines.map(|rest| rest.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum()
}

/// Waits for a future, and fails the test after [`TIMEOUT`].
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("timed out")
}
