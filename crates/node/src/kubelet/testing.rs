//! The peers of a kubelet in these tests: plugins, an API server and a container runtime that do as they are told, and one
//! log of what all of them saw, in the order in which it happened.

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
/// Far longer than anything here takes, on a busy machine too.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something is so.
pub(super) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What happened, in order. A clone is the same log.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(super) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// The lines that begin with one of these.
    pub(super) fn of(&self, beginnings: &[&str]) -> Vec<String> {
        let wanted = |line: &String| beginnings.iter().any(|beginning| line.starts_with(beginning));
        self.lines().into_iter().filter(wanted).collect()
    }

    pub(super) fn count(&self, beginning: &str) -> usize {
        self.of(&[beginning]).len()
    }

    pub(super) async fn wait_for(&self, beginning: &str, count: usize) {
        let what = format!("{count} × {beginning:?}");
        eventually(&what, || (self.count(beginning) >= count).then_some(())).await;
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

    /// A plugin of [`DRIVER`] that runs, under a name that every Rust server can be called by.
    pub(super) async fn plugin(&self) -> TestPlugin {
        TestPlugin::start(&self.registry(), DRIVER, "", self.log.clone()).await
    }

    /// A kubelet that has registered a plugin and is connected to it.
    pub(super) async fn with_plugin(&self) -> (Kubelet, TestPlugin) {
        let (kubelet, plugin) = (self.kubelet().await, self.plugin().await);
        connected(&kubelet, 1).await;
        (kubelet, plugin)
    }
}

/// Waits until so many instances are registered and connected.
pub(super) async fn connected(kubelet: &Kubelet, count: usize) {
    let ready = || {
        let registered = kubelet.registered();
        (registered.len() == count && registered.iter().all(|plugin| plugin.connected)).then_some(())
    };
    eventually(&format!("{count} plugins are connected"), ready).await;
}
