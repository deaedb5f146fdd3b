//! A driver under the control of the test, and helpers to read files in containers.

use std::sync::{Arc, Mutex};

use drakkar_node::{Node, PodHandle};
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DraPlugin, PluginBuilder};
use serde_json::Value;

/// The driver of most tests.
pub const DRIVER: &str = "gpu.example.com";

/// Returns a number from the environment, or a default that keeps a quick run small.
pub fn from_environment(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

type Prepare = dyn Fn(&Claim) -> Vec<Device> + Send + Sync;

/// A driver that prepares claims with a function of the test, and records its calls.
#[derive(Clone)]
pub struct TestDriver {
    prepare: Arc<Prepare>,
    pub calls: Arc<Mutex<Vec<String>>>,
}

impl TestDriver {
    pub fn new(prepare: impl Fn(&Claim) -> Vec<Device> + Send + Sync + 'static) -> Self {
        Self { prepare: Arc::new(prepare), calls: Arc::default() }
    }

    /// Prepares every allocated device with the metadata that the function returns for its name.
    pub fn with_metadata(
        metadata: impl Fn(&str) -> Option<drakkar_plugin::DeviceMetadata> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |claim| {
            let device = |result| {
                let device = Device::from(result);
                Device { metadata: metadata(&device.device_name), ..device }
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

/// Returns the KEP's path of a metadata file in a container.
pub fn kep_path(claim: &str, request: &str) -> String {
    format!("/var/run/dra-device-attributes/{claim}/{request}/{DRIVER}-metadata.json")
}

/// Reads a file with a process in a container; `None` if it does not exist.
pub async fn read(pod: &PodHandle<'_>, container: &str, path: &str) -> Option<Value> {
    output(pod, container, ["cat", path]).await.map(|file| serde_json::from_slice(&file).unwrap())
}

/// Returns the output of a command in a container; `None` if its file does not exist.
async fn output(pod: &PodHandle<'_>, container: &str, command: [&str; 2]) -> Option<Vec<u8>> {
    let output = pod.exec(container, command).await.unwrap();
    if output.status.success() {
        return Some(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("No such file"), "{message}");
    None
}

/// Lists a directory with a process in a container; empty if it does not exist.
pub async fn entries(pod: &PodHandle<'_>, container: &str, path: &str) -> Vec<String> {
    let listing = output(pod, container, ["ls", path]).await.unwrap_or_default();
    String::from_utf8(listing).unwrap().lines().map(str::to_owned).collect()
}

/// Returns the builder of a driver on a node.
pub fn plugin(node: &Node) -> PluginBuilder {
    PluginBuilder::new(DRIVER).on(node.environment(DRIVER).unwrap())
}

/// Publishes devices for a driver that does not publish, and waits for its registration.
pub async fn publish(node: &Node, devices: &[&str]) {
    node.publish(DRIVER, devices).await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
}
