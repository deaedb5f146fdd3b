//! Faults of the API server and of the objects in it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use drakkar_node::Isolation;
use drakkar_node::api::{Config, Identity};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::DeviceClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::node::{DRIVER, HealthyNode};

#[tokio::test]
async fn an_api_server_that_cannot_be_reached() {
    let mut node = HealthyNode::start().await;
    // A port that was just free; nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let kubeconfig = std::fs::read_to_string(node.kubeconfig()).unwrap();
    node.use_kubeconfig(&kubeconfig.replace(&node.node.api().url(), &format!("https://{free}")));
    node.report(&[]).await.assert_only("api-unreachable", "connection refused");
}

#[tokio::test]
async fn a_token_that_the_api_server_refuses() {
    let mut node = HealthyNode::start().await;
    let kubeconfig = std::fs::read_to_string(node.kubeconfig()).unwrap();
    // Whatever its quoting.
    let start = kubeconfig.find("token").unwrap();
    let token = kubeconfig[start + "token".len()..].split(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c));
    let token = token.into_iter().find(|word| !word.is_empty()).unwrap();
    node.use_kubeconfig(&kubeconfig.replace(token, "wrong"));
    node.report(&[]).await.assert_only("api-unauthorized", "401 Unauthorized");
}

#[tokio::test]
async fn a_user_without_the_permissions_of_a_driver() {
    let mut node = HealthyNode::start().await;
    let user = Identity::User { name: "nobody".into(), groups: Vec::new() };
    let kubeconfig = node.node.api().kubeconfig(&user).unwrap();
    node.use_kubeconfig(&kubeconfig);
    let report = node.report(&[]).await;
    assert_eq!(report.problems(), ["api-forbidden", "api-forbidden"], "{report:#?}");
    let skipped = report.with_status("skipped").map(|finding| &*finding.message).collect::<Vec<_>>().join("\n");
    assert!(skipped.contains("node node-1: ") && skipped.contains("device classes: "), "{skipped}");
}

#[tokio::test]
async fn a_kubeconfig_that_does_not_exist() {
    let mut node = HealthyNode::start().await;
    node.use_kubeconfig("not a kubeconfig");
    node.report(&[]).await.assert_only("api-config-invalid", "other.kubeconfig");
}

/// Without an option: a variable that names a file is no less explicit.
#[tokio::test]
async fn a_kubeconfig_of_the_environment_that_does_not_exist() {
    let node = HealthyNode::start().await;
    let mut doctor = super::node::command();
    doctor.args(node.options(&["doctor"])).env("KUBECONFIG", "/nonexistent/kubeconfig");
    let (code, text) = super::node::run(doctor).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("✗ api-config-invalid: ") && text.contains("/nonexistent/kubeconfig"), "{text}");
}

/// As the controller manager sets it when a kubelet is dead or cannot reach the API server.
#[tokio::test]
async fn a_node_that_is_not_ready() {
    let node = HealthyNode::start().await;
    node.node.kill_kubelet().await;
    let nodes: Api<Node> = Api::all(node.node.client());
    let message = "Kubelet stopped posting node status.";
    let ready = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": message});
    let status = Patch::Merge(json!({"status": {"conditions": [ready]}}));
    nodes.patch_status(node.node.name(), &PatchParams::default(), &status).await.unwrap();
    let report = node.report(&[]).await;
    report.assert_only("kubelet-unhealthy", "is not ready: NodeStatusUnknown: Kubelet stopped posting node status.");
}

#[tokio::test]
async fn no_device_class_for_the_driver() {
    let node = HealthyNode::start().await;
    let classes: Api<DeviceClass> = Api::all(node.node.client());
    classes.delete(DRIVER, &DeleteParams::default()).await.unwrap();
    node.report(&[]).await.assert_only("device-class-missing", "no DeviceClass names gpu.example.com");
}

/// The driver publishes for another node than the one it runs on.
#[tokio::test]
async fn no_resource_slice_for_the_node() {
    let node = HealthyNode::start().await;
    node.node.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"}})).await.unwrap();
    let report = node.report(&["--node-name", "node-2"]).await;
    report.assert_only("resource-slice-missing", "no ResourceSlice for node node-2");
}

#[tokio::test]
async fn a_node_of_another_name() {
    let node = HealthyNode::start().await;
    let report = node.report(&["--node-name", "localhost"]).await;
    assert_eq!(report.problems(), ["node-not-found", "resource-slice-missing"], "{report:#?}");
}

#[tokio::test]
async fn a_clock_that_is_wrong() {
    let mut node = HealthyNode::start_with(Config::default(), Isolation::ShowOnly).await;
    let server = node.node.api().url();
    let proxy = skewed(server.strip_prefix("http://").unwrap());
    let kubeconfig = std::fs::read_to_string(node.kubeconfig()).unwrap();
    node.use_kubeconfig(&kubeconfig.replace(&server, &format!("http://{proxy}")));
    node.report(&[]).await.assert_only("clock-skew", " s ahead of that of the API server");
}

/// Forwards connections to a server, and sets the dates in its answers back to the year 2001.
fn skewed(server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let upstream = TcpStream::connect(&server).unwrap();
            let ends = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            std::thread::spawn(move || copy(ends.0, ends.1, |_| ()));
            std::thread::spawn(move || copy(upstream, client, set_back));
        }
    });
    address
}

fn copy(mut from: impl Read, mut to: impl Write, change: fn(&mut [u8])) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        change(&mut buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
}

/// The head of an answer is sent at once, so it is in one piece here.
fn set_back(bytes: &mut [u8]) {
    let header = b"\r\ndate: ";
    let found = bytes.windows(header.len()).position(|window| window.eq_ignore_ascii_case(header));
    if let Some(start) = found {
        let date = b"Tue, 11 Sep 2001 12:00:00 GMT";
        let value = start + header.len();
        bytes[value..value + date.len()].copy_from_slice(date);
    }
}
