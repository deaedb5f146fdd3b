//! A driver that does as it is told, and what tests ask of containers.

use std::sync::{Arc, Mutex};

use drakkar_node::{Node, PodHandle};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, PluginBuilder};
use serde_json::Value;

/// The driver of most tests.
pub const DRIVER: &str = "gpu.example.com";

/// A number from the environment: tests that can be large are small in a quick run.
pub fn from_environment(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

type Prepare = dyn Fn(&Claim) -> Vec<Device> + Send + Sync;

/// A driver that prepares as it is told, and remembers its calls.
#[derive(Clone)]
pub struct TestDriver {
    prepare: Arc<Prepare>,
    pub calls: Arc<Mutex<Vec<String>>>,
}

impl TestDriver {
    pub fn new(prepare: impl Fn(&Claim) -> Vec<Device> + Send + Sync + 'static) -> Self {
        Self { prepare: Arc::new(prepare), calls: Arc::default() }
    }

    /// Every allocated device with the metadata that is made for it.
    pub fn with_metadata(
        make: impl Fn(&str) -> Option<drakkar_plugin::DeviceMetadata> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |claim| {
            let device = |result| {
                let device = Device::from(result);
                Device { metadata: make(&device.device_name), ..device }
            };
            claim.results().map(device).collect()
        })
    }
}

impl DraPlugin for TestDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        self.calls.lock().unwrap().push(format!("prepare {}", claim.reference().name));
        Ok((self.prepare)(claim))
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        self.calls.lock().unwrap().push(format!("unprepare {}", claim.name));
        Ok(())
    }
}

/// The KEP's path of a file in a container.
pub fn kep_path(claim: &str, request: &str) -> String {
    format!("/var/run/dra-device-attributes/{claim}/{request}/{DRIVER}-metadata.json")
}

/// What a process in a container reads from a file there; `None` if there is no such file.
pub async fn read(pod: &PodHandle<'_>, container: &str, path: &str) -> Option<Value> {
    let output = pod.exec(container, ["cat", path]).await.unwrap();
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("No such file"), "{message}");
        return None;
    }
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The entries of a directory in a container; none if there is no such directory.
pub async fn entries(pod: &PodHandle<'_>, container: &str, path: &str) -> Vec<String> {
    let output = pod.exec(container, ["ls", path]).await.unwrap();
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("No such file"), "{message}");
    }
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A driver on a node, about to start.
pub fn plugin(node: &Node) -> PluginBuilder {
    PluginBuilder::new(DRIVER).on(node.environment(DRIVER).unwrap())
}

/// Devices on a node, for a driver that does not publish.
pub async fn publish(node: &Node, devices: &[&str]) {
    node.publish(DRIVER, devices).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
}
