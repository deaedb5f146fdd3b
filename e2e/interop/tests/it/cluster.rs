//! The embedded node with the Go driver, and helpers for tests of both.

use std::path::PathBuf;
use std::process::Command;

use drakkar_node::{ClaimSpec, Container, DriverProcess, Node, Pod, PodHandle, device_class};
use serde_json::Value;

use crate::support::program;

pub const DRIVER: &str = "gpu.example.com";
pub const SLEEP: [&str; 2] = ["sleep", "infinity"];
/// The directory in containers with the metadata of claims that the pod references by name.
pub const CLAIMS: &str = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims";
/// The directory in containers with the metadata of claims from templates.
pub const TEMPLATES: &str = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates";

/// Starts the Go driver on a node.
pub fn spawn(node: &Node, name: &str, arguments: &[&str]) -> DriverProcess {
    let mut command = Command::new(program().expect("the Go program").path());
    command.args(["driver", "--driver-name", name]).args(arguments);
    node.spawn(name, command).unwrap()
}

/// Starts a node with the Go driver, and waits until it is registered and has published its devices. `None` without Go.
pub async fn node_with(arguments: &[&str]) -> Option<(Node, DriverProcess)> {
    program()?;
    let node = Node::start().await.unwrap();
    node.create(device_class(DRIVER)).await.unwrap();
    let driver = spawn(&node, DRIVER, arguments);
    wait_until_up(&node, &driver).await;
    Some((node, driver))
}

/// Starts a node with a driver that writes metadata and has two devices.
pub async fn node_with_metadata() -> Option<(Node, DriverProcess)> {
    node_with(&["--enable-device-metadata"]).await
}

/// Waits until the driver is registered and has published its devices.
pub async fn wait_until_up(node: &Node, driver: &DriverProcess) {
    if let Err(error) = node.wait_registered(DRIVER).await {
        panic!("{error}: {}", driver.log().unwrap());
    }
    if let Err(error) = node.wait_published(DRIVER).await {
        panic!("{error}: {}", driver.log().unwrap());
    }
}

pub fn one_device() -> ClaimSpec {
    ClaimSpec::default().request("gpu", DRIVER, 1)
}

pub fn two_requests() -> ClaimSpec {
    ClaimSpec::default().request("first", DRIVER, 1).request("second", DRIVER, 1)
}

/// A pod with one container `main` that references the whole claim `my-claim`.
pub fn pod(name: &str) -> Pod {
    Pod::new(name).claim("devices", "my-claim").container(Container::new("main", SLEEP).claim("devices"))
}

/// Creates the claim `my-claim` and the pod that references it, and waits until the pod runs.
pub async fn running(node: &Node, claim: ClaimSpec) -> PodHandle<'_> {
    node.create(claim.claim("my-claim")).await.unwrap();
    let pod = node.create_pod(pod("pod")).await.unwrap();
    pod.running().await.unwrap();
    pod
}

/// The path in a container of the file of a request of `my-claim`.
pub fn path(request: &str) -> String {
    format!("{CLAIMS}/my-claim/{request}/{DRIVER}-metadata.json")
}

/// The path on the host of that file.
pub fn host_file(node: &Node, request: &str) -> PathBuf {
    let data = node.kubelet_root().join("plugins").join(DRIVER);
    data.join("dra-device-metadata/default_my-claim").join(request).join("metadata.json")
}

/// The first document of a file; `None` if the file is empty.
pub fn first_document(stream: &[u8]) -> Option<Value> {
    serde_json::Deserializer::from_slice(stream).into_iter().next().map(Result::unwrap)
}

/// Reads the first document of a file in a container; `None` if the file does not exist.
pub async fn read(pod: &PodHandle<'_>, container: &str, path: &str) -> Option<Value> {
    output(pod, container, ["cat", path]).await.and_then(|file| first_document(&file))
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

/// Lists a directory in a container; empty if it does not exist.
pub async fn entries(pod: &PodHandle<'_>, container: &str, path: &str) -> Vec<String> {
    let listing = output(pod, container, ["ls", path]).await.unwrap_or_default();
    String::from_utf8(listing).unwrap().lines().map(str::to_owned).collect()
}

/// The attributes of the first device of a file.
pub fn attributes(file: &Value) -> &Value {
    &file["requests"][0]["devices"][0]["attributes"]
}

/// Makes the driver update the metadata of all devices that it has prepared.
pub fn update_metadata(driver: &DriverProcess) {
    let id = driver.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(id.expect("the driver runs"), rustix::process::Signal::USR1).unwrap();
}

/// Whether a driver is running. A zombie, which still has its pid, is not.
pub fn is_alive(driver: &DriverProcess) -> bool {
    let status = driver.id().map(|id| std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default());
    status.is_some_and(|status| status.contains("\nState:") && !status.contains("\nState:\tZ"))
}
