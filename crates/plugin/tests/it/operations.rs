//! What an operator sees of a driver that cannot do its work: readiness, start errors, the log.

use std::path::Path;

use drakkar_node::Node as EmbeddedNode;
use drakkar_plugin::{DriverResources, PluginBuilder, Pool, PublishedDevice};
use http::StatusCode;
use serde_json::Value;

use crate::example::{command, output};
use crate::support::{ANY_PORT, DRIVER, Kubelet, Node, TestClaim, TestDriver, eventually, http_get, in_time, notify};
use crate::support::{one_gpu, pod_with};

fn one_device() -> DriverResources {
    DriverResources::default().pool("node-7", Pool::default().device(PublishedDevice::new("gpu-0")))
}

/// A rollout of a driver with a wrong token must stop: the driver is registered, but not ready.
#[tokio::test]
async fn a_driver_whose_token_is_refused_is_not_ready_and_says_why() {
    let node = Node::default();
    node.api.fail_next(&[StatusCode::UNAUTHORIZED; 1000]);
    let builder = node.builder().node_name("node-7").http_endpoint(ANY_PORT).version("1.2.3");
    let helper = builder
        .start_with(|handles| {
            handles.publish_resources(one_device())?;
            Ok(TestDriver::default())
        })
        .await
        .unwrap();
    notify(&helper, None).await.unwrap();
    let address = helper.http_address().unwrap();
    let reason = in_time(async {
        loop {
            let (status, reason) = http_get(address, "/readyz").await;
            assert_eq!(status, 503, "{reason}");
            if reason.contains("credentials") {
                return reason;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(reason.starts_with("resources are not published after "), "{reason}");
    assert!(reason.ends_with(": the API server does not accept the driver's credentials, see the log\n"), "{reason}");
    assert_eq!(http_get(address, "/livez").await.0, 200, "a restart would not help");
    let (_, metrics) = http_get(address, "/metrics").await;
    assert!(metrics.contains("\ndrakkar_plugin_publishing_pending 1\n"), "{metrics}");
    let build = format!(r#"version="{}",driver="{DRIVER}",driver_version="1.2.3""#, env!("CARGO_PKG_VERSION"));
    assert!(metrics.contains(&build), "{metrics}");
    let (_, page) = http_get(address, "/statusz").await;
    assert!(page.contains("\nBinary version: 1.2.3\n"), "{page}");
    let (_, page) = http_get(address, "/").await;
    assert!(page.contains("publish resources") && page.contains("401"), "the last errors: {page}");
    helper.stop().await.unwrap();
}

/// A driver that publishes nothing is ready when it is registered.
#[tokio::test]
async fn a_driver_without_resources_is_ready() {
    let node = Node::default();
    let helper = node.builder().http_endpoint(ANY_PORT).start(TestDriver::default()).await.unwrap();
    notify(&helper, None).await.unwrap();
    assert_eq!(http_get(helper.http_address().unwrap(), "/readyz").await, (200, "ok".to_owned()));
    helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_directory_of_cdi_specs_that_cannot_be_used_is_refused_at_the_start() {
    let node = Node::default();
    let file = node.root.path().join("file");
    std::fs::write(&file, "").unwrap();
    for metadata in [true, false] {
        let builder = node.builder().device_metadata(metadata).cdi_directory(&file);
        let error = builder.start(TestDriver::default()).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("the directory of CDI specs {}: not a directory", file.display())),
            "{error}"
        );
        assert!(error.contains("; set --cdi-dir to the directory from which the container runtime reads CDI specs"));
    }
    assert_eq!(node.sockets(), [""; 0]);
    let missing = node.root.path().join("new/cdi");
    let helper = node.builder().cdi_directory(&missing).start(TestDriver::default()).await.unwrap();
    assert!(missing.is_dir());
    helper.stop().await.unwrap();
}

/// Writes a kubeconfig for a server that is not there.
fn kubeconfig(directory: &Path) -> std::path::PathBuf {
    let file = directory.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: t}}]\n";
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test]
async fn a_kubeconfig_is_taken_from_the_flag_and_errors_name_its_server() {
    let node = Node::default();
    let builder = PluginBuilder::new(DRIVER).kubelet_root(node.root.path()).cdi_directory(node.cdi_directory());
    let helper = builder.kubeconfig(kubeconfig(node.root.path())).start(TestDriver::default()).await.unwrap();
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0");
    let error = Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap_err();
    let expected = "no answer from the API server https://127.0.0.1:1: connection refused; check that the server runs";
    assert!(error.contains(expected), "{error}");
    helper.stop().await.unwrap();

    let mut missing = command();
    missing.arg(format!("--kubelet-root-dir={}", node.root.path().display())).arg("--kubeconfig=/nonexistent/config");
    let output = output(missing).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: find the API server: kubeconfig /nonexistent/config: "), "{text}");
}

#[tokio::test]
async fn the_version_is_printed() {
    let mut version = command();
    version.arg("--version");
    let output = output(version).await;
    assert_eq!(output.status.code(), Some(0));
    let expected = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// The log at its default level tells the life of a driver, in either form and without colours in a file.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_a_line_for_everything_that_an_operator_looks_for(#[values("text", "json")] format: &str) {
    let node = EmbeddedNode::start().await.unwrap();
    let mut command = command();
    command.arg(format!("--log-format={format}")).env_remove("NO_COLOR");
    let driver = node.spawn(DRIVER, command).unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    node.create(one_gpu("train")).await.unwrap();
    let pod = node.create_pod(pod_with("pod", "train")).await.unwrap();
    pod.running().await.unwrap();
    pod.delete().await.unwrap();
    eventually("the claim is unprepared", || driver.log().unwrap().contains("claim unprepared").then_some(())).await;
    let log = driver.log().unwrap();
    assert!(!log.contains('\u{1b}'), "colours in a file: {log}");
    let line = |message: &str| {
        let found = log.lines().find(|line| line.contains(message)).unwrap_or_else(|| panic!("{message} in {log}"));
        match format {
            "json" => serde_json::from_str::<Value>(found).unwrap().to_string(),
            _ => found.to_owned(),
        }
    };
    let started = line("driver started");
    for part in ["gpu.example.com", env!("CARGO_PKG_VERSION"), "://127.0.0.1:", "dra@kubelet.sock", "@reg.sock", "off"]
    {
        assert!(started.contains(part), "{part} in {started}");
    }
    assert!(line("registered with kubelet").contains("INFO"));
    for message in ["claim prepared", "claim unprepared"] {
        let line = line(message);
        assert!(line.contains("default/train") && line.contains("duration"), "{line}");
    }
}
