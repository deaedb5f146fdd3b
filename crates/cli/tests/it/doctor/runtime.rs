//! Faults of the container runtime: CDI and NRI.

use std::fs;

use super::node::HealthyNode;

/// Replaces a text in the runtime's configuration.
fn configure(node: &HealthyNode, from: &str, to: &str) {
    let config = fs::read_to_string(node.config()).unwrap();
    assert!(config.contains(from), "{config}");
    fs::write(node.config(), config.replace(from, to)).unwrap();
}

#[tokio::test]
async fn cdi_is_off_in_the_runtime() {
    let node = HealthyNode::start().await;
    configure(&node, "enable_cdi = true", "enable_cdi = false");
    let report = node.report(&[]).await;
    report.assert_only("cdi-disabled", "CDI is off in containerd");
    let remedy = report.findings.iter().find_map(|finding| finding.remedy.clone()).unwrap();
    assert!(remedy.contains("set enable_cdi = true in [plugins.\"io.containerd.cri.v1.runtime\"]"), "{remedy}");
}

#[tokio::test]
async fn the_runtime_reads_other_directories_than_the_driver_writes_to() {
    let node = HealthyNode::start().await;
    configure(&node, node.node.cdi_directory().to_str().unwrap(), "/etc/cdi");
    node.report(&[]).await.assert_only("cdi-dir-not-watched", "reads CDI specs from /etc/cdi");
}

#[tokio::test]
async fn a_configuration_that_the_runtime_cannot_parse() {
    let node = HealthyNode::start().await;
    configure(&node, "enable_cdi = true", "enable_cdi true");
    node.report(&[]).await.assert_only("runtime-config-invalid", "config.toml: line 3: ");
}

#[tokio::test]
async fn no_nri_socket_for_a_driver_that_needs_it() {
    let node = HealthyNode::start().await;
    let report = node.report(&["--nri-socket", "/nonexistent/nri.sock"]).await;
    report.assert_only("nri-socket-missing", "/nonexistent/nri.sock: it does not exist, and a driver needs it");
}

#[tokio::test]
async fn nri_is_off_in_the_runtime() {
    let node = HealthyNode::start().await;
    configure(&node, "socket_path", "disable = true\nsocket_path");
    let report = node.report(&["--nri-socket", "/nonexistent/nri.sock"]).await;
    report.assert_only("nri-disabled", "NRI is off in ");
}

/// Of the driver of network interfaces it is known without an option that it needs NRI.
#[tokio::test]
async fn no_nri_for_the_network_driver() {
    let node = HealthyNode::start().await;
    fs::create_dir_all(node.node.kubelet_root().join("plugins/net.drakkar.dev/dra-device-metadata")).unwrap();
    let report = node.report(&[]).await;
    assert!(report.problems().contains(&"nri-socket-missing".to_owned()), "{report:#?}");
    configure(&node, "socket_path", "disable = true\nsocket_path");
    let report = node.report(&[]).await;
    assert!(report.problems().contains(&"nri-disabled".to_owned()), "{report:#?}");
    // Another driver alone does not.
    let report = node.report(&["--driver", super::node::DRIVER]).await;
    assert_eq!(report.problems(), Vec::<String>::new(), "{report:#?}");
}
