//! The peers of a driver in these tests: an API server that has claims, a node with directories, a kubelet that calls the
//! driver's sockets, and drivers that do as they are told.

mod api;
mod claim;
mod cluster;
mod driver;
mod embedded;
mod kubelet;
mod node;
mod scene;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drakkar_plugin::Helper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub use self::api::{ApiServer, Fault};
pub use self::claim::TestClaim;
pub use self::cluster::{Cluster, POOL, SHARE};
pub use self::driver::{SlowDriver, TestDriver, news};
pub use self::embedded::{one_gpu, pod_with, read_metadata};
pub use self::kubelet::{Kubelet, Line, cdi_devices, channel, info, notify};
pub use self::node::Node;
pub use self::scene::{ANY_PORT, Scene};
pub use self::wire::{Asked, Times, Trouble, Wire};

/// The driver of most tests.
pub const DRIVER: &str = "gpu.example.com";
/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts what is going on: a number that goes up with each one, and down when that is dropped.
#[derive(Clone, Default)]
pub struct Ongoing(Arc<AtomicUsize>);

/// One of what is going on.
pub struct One(Ongoing);

impl Ongoing {
    pub fn one(&self) -> One {
        self.0.fetch_add(1, Ordering::SeqCst);
        One(self.clone())
    }

    pub async fn wait_for(&self, count: usize) {
        let reached = || (self.0.load(Ordering::SeqCst) == count).then_some(());
        eventually(&format!("{count} going on"), reached).await;
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Numbers that look random and are the same for the same seed.
pub struct Random(pub u64);

impl Random {
    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// Status and body of a page.
pub async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The sum of all series of a metric that begin like this.
pub async fn metric(helper: &Helper, name: &str) -> i64 {
    let (_, metrics) = http_get(helper.http_address().unwrap(), "/metrics").await;
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    lines.map(|rest| rest.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).sum()
}

/// Fails a test that would hang.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}
