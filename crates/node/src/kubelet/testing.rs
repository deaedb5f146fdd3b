//! The peers of a kubelet in these tests: a plugin, an API server and a container runtime under the test's control, and one
//! log of what they saw, in order.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod api;
mod containers;
mod plugin;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

pub(super) use self::api::{TestApi, claim, pod};
pub(super) use self::containers::FakeContainers;
pub(super) use self::plugin::TestPlugin;
use super::{Config, Kubelet, Timing};

/// The driver of most tests.
pub(super) const DRIVER: &str = "gpu.example.com";
/// The node of all tests.
pub(super) const NODE: &str = "node-1";
/// Far longer than anything here takes, even on a loaded machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(180);

/// Polls until there is a value.
pub(super) async fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A log of events, in order. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(super) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the lines that start with one of these prefixes.
    pub(super) fn of(&self, prefixes: &[&str]) -> Vec<String> {
        let matches = |line: &String| prefixes.iter().any(|prefix| line.starts_with(prefix));
        self.lines().into_iter().filter(matches).collect()
    }

    pub(super) fn count(&self, prefix: &str) -> usize {
        self.of(&[prefix]).len()
    }

    pub(super) async fn wait_for(&self, prefix: &str, count: usize) {
        let what = format!("{count} × {prefix:?}");
        eventually(&what, || (self.count(prefix) >= count).then_some(())).await;
    }
}

/// A node for a kubelet.
pub(super) struct TestNode {
    pub(super) root: TempDir,
    pub(super) log: Log,
    pub(super) api: TestApi,
    pub(super) containers: Arc<FakeContainers>,
    pub(super) timing: Timing,
}

impl TestNode {
    pub(super) async fn new() -> Self {
        let log = Log::default();
        Self {
            root: tempfile::tempdir().unwrap(),
            api: TestApi::start(log.clone()).await,
            containers: Arc::new(FakeContainers::new(log.clone())),
            log,
            timing: Timing::fast(),
        }
    }

    pub(super) fn config(&self) -> Config {
        Config {
            timing: self.timing.clone(),
            ..Config::new(self.api.client(), NODE, self.root.path(), self.containers.clone())
        }
    }

    pub(super) async fn kubelet(&self) -> Kubelet {
        Kubelet::start(self.config()).await.unwrap()
    }

    pub(super) fn registry(&self) -> PathBuf {
        let registry = self.root.path().join("plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        registry
    }

    /// Starts a plugin of [`DRIVER`], with a socket name that every Rust server accepts as `:authority`.
    pub(super) async fn plugin(&self) -> TestPlugin {
        TestPlugin::start(&self.registry(), DRIVER, "", self.log.clone()).await
    }

    /// Starts a kubelet and a plugin, and waits until they are connected.
    pub(super) async fn with_plugin(&self) -> (Kubelet, TestPlugin) {
        let kubelet = self.kubelet().await;
        let plugin = self.plugin().await;
        connected(&kubelet, 1).await;
        (kubelet, plugin)
    }
}

/// Waits until this number of instances is registered and connected.
pub(super) async fn connected(kubelet: &Kubelet, count: usize) {
    let ready = || {
        let registered = kubelet.registered();
        (registered.len() == count && registered.iter().all(|plugin| plugin.connected)).then_some(())
    };
    eventually(&format!("{count} plugins are connected"), ready).await;
}
