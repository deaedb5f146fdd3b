//! Faults of the kubelet, of registration and of sockets.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::node::{DRIVER, HealthyNode, Report, command, run};

const OTHER_INSTANCE: &str = "gpu.example.com-0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11@reg.sock";

#[tokio::test]
async fn a_registration_socket_of_a_dead_instance() {
    let node = HealthyNode::start().await;
    node.leave_dead_socket(&node.registry().join(OTHER_INSTANCE));
    let report = node.report(&[]).await;
    report.assert_only("registration-stale", "a dead instance left it");
    let remedy = report.findings.iter().find_map(|finding| finding.remedy.clone()).unwrap();
    assert_eq!(remedy, format!("rm {}", node.registry().join(OTHER_INSTANCE).display()), "a command to copy");
}

#[tokio::test]
async fn no_registration_socket() {
    let node = HealthyNode::start().await;
    fs::remove_file(node.registry().join(format!("{DRIVER}@reg.sock"))).unwrap();
    node.report(&[]).await.assert_only("registration-missing", "has no registration socket");
}

#[tokio::test]
async fn a_driver_that_accepts_and_does_not_answer() {
    let mut node = HealthyNode::start().await;
    node.kill_driver().await;
    let path = node.registry().join(format!("{DRIVER}@reg.sock"));
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    node.report(&[]).await.assert_only("registration-no-answer", "accepts connections, but: ");
}

#[tokio::test]
async fn a_dra_socket_that_does_not_exist() {
    let node = HealthyNode::start().await;
    fs::remove_file(node.plugin().join("dra@kubelet.sock")).unwrap();
    node.report(&[]).await.assert_only("dra-socket-missing", "so no claim can be prepared");
}

#[tokio::test]
async fn a_dra_socket_on_which_nobody_listens() {
    let node = HealthyNode::start().await;
    let path = node.plugin().join("dra@kubelet.sock");
    fs::remove_file(&path).unwrap();
    node.leave_dead_socket(&path);
    node.report(&[]).await.assert_only("dra-socket-dead", "nobody listens on its DRA socket");
}

#[tokio::test]
async fn a_dra_socket_of_a_dead_instance() {
    let node = HealthyNode::start().await;
    node.leave_dead_socket(&node.plugin().join("dra@old.sock"));
    node.report(&[]).await.assert_only("dra-socket-stale", "dra@old.sock: a dead instance left it");
}

#[tokio::test]
async fn a_dead_driver() {
    let mut node = HealthyNode::start().await;
    node.kill_driver().await;
    node.report(&[]).await.assert_only("driver-not-running", "the driver is dead");
}

#[tokio::test]
async fn a_driver_that_is_not_ready() {
    let node = HealthyNode::start().await;
    let address = answering("HTTP/1.1 503 Service Unavailable\r\n\r\n[+]ping ok\n[-]publishing failed: forbidden\n");
    let report = node.report(&["--http-endpoint", &address]).await;
    report.assert_only("driver-not-ready", "/readyz answered 503: [-]publishing failed: forbidden");
}

#[tokio::test]
async fn a_kubelet_that_is_not_healthy() {
    let node = HealthyNode::start().await;
    let address = answering("HTTP/1.1 500 Internal Server Error\r\n\r\nPLEG is not healthy");
    let report = node.report(&["--kubelet-healthz", &address]).await;
    report.assert_only("kubelet-unhealthy", "answered 500: PLEG is not healthy");
}

#[tokio::test]
async fn no_kubelet() {
    let host = tempfile::tempdir().unwrap();
    let mut command = command();
    command.args(["doctor", "--no-api", "--kubelet-healthz", "127.0.0.1:1", "-o", "json"]);
    let (code, text) = run({
        command.arg("--host-root").arg(host.path());
        command
    })
    .await;
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report.problems()), (1, vec!["kubelet-dir-missing".into(), "no-driver".into()]), "{text}");
}

/// Answers the next request with this text.
fn answering(text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(text.as_bytes()).unwrap();
    });
    address
}
