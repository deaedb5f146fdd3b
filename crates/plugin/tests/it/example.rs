//! Tests of the minimal example as a process on a node.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;

use drakkar_node::kubelet::Peer;
use drakkar_node::{Node, assert_eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    self, DRIVER, Kubelet, TestClaim, eventually, http_get, in_time, one_gpu, pod_with, read_metadata,
};

/// Returns the path of the example. `cargo test` builds it; `cargo test --test it` does not, so it is built here if it is
/// missing.
fn example() -> PathBuf {
    // target/PROFILE/deps/it-HASH
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let example = profile.join("examples/minimal");
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap();
    if !example.exists() {
        let profile_name = match profile.file_name().unwrap().to_str().unwrap() {
            // The profile `dev` has another name as a directory.
            "debug" => "dev",
            name => name,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--example=minimal", "--profile", profile_name, "--target-dir"]);
        let built = cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(built.success() && example.exists(), "building the example failed");
    }
    example
}

/// Returns a command that runs the example with an empty environment.
pub fn command() -> Command {
    let mut command = Command::new(example());
    command.env_clear().env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running process, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    async fn exit(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end, and returns its output.
pub async fn output(mut command: Command) -> Output {
    let mut process = Process::start(&mut command);
    let status = process.exit().await;
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    process.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    process.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

/// The example is registered, serves a pod, and ends without leftovers on SIGTERM and SIGINT.
#[rstest::rstest]
#[case::term(Signal::TERM)]
#[case::interrupt(Signal::INT)]
#[tokio::test(flavor = "multi_thread")]
async fn the_example_serves_a_kubelet_from_registration_to_its_end(#[case] signal: Signal) {
    let node = Node::start().await.unwrap();
    let mut command = command();
    command.arg("--enable-device-metadata");
    let mut driver = node.spawn(DRIVER, command).unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    let registration = node.kubelet_root().join("plugins_registry/gpu.example.com@reg.sock");
    let info = Peer::get_info(&registration).await.unwrap();
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);

    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    node.create(one_gpu("train")).await.unwrap();
    let pod = node.create_pod(pod_with("pod", "train")).await.unwrap();
    pod.running().await.unwrap();
    let claim = node.claim_ref("train").await.unwrap();
    let known = node.kubelet_claims().await;
    let ids = known[0].drivers[DRIVER].iter().flat_map(|device| &device.cdi_device_ids).collect::<Vec<_>>();
    assert_eq!(ids, [&format!("gpu.example.com/metadata={}_gpu", claim.uid)]);
    let metadata = read_metadata(&pod, "train").await;
    assert_eq!(metadata["metadata"]["uid"], claim.uid.as_str());
    let device = &metadata["requests"][0]["devices"][0];
    assert_eq!((&device["name"], &device["attributes"]["model"]["string"]), (&json!("gpu-0"), &json!("minimal")));

    let kubelet = Kubelet::at(Path::new(&info.endpoint)).await;
    let unknown = kubelet.prepare_one(&TestClaim::new("unknown", "uid-2")).await.unwrap_err();
    assert_eq!(unknown, "get resourceclaim default/unknown (uid uid-2): it does not exist");
    pod.delete().await.unwrap();
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);

    let process = Pid::from_raw(i32::try_from(driver.id().unwrap()).unwrap()).unwrap();
    kill_process(process, signal).unwrap();
    let ended = in_time(driver.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", driver.log().unwrap());
    assert_eq!(node.sockets().unwrap(), [""; 0]);
    assert_eventually!(node.registered().await.is_empty());
}

/// A `DaemonSet` sets variables rather than flags. The embedded node sets those for its directories and its name.
#[tokio::test(flavor = "multi_thread")]
async fn every_flag_can_be_set_by_its_variable() {
    let node = Node::builder().name("node-7").start().await.unwrap();
    let mut command = command();
    command
        .env("ENABLE_DEVICE_METADATA", "true")
        .env("METADATA_VERSIONS", "v1beta1,v1alpha1")
        .env("METADATA_LAYOUT", "kubernetes")
        .env("POD_UID", "pod-1")
        .env("HTTP_ENDPOINT", "127.0.0.1:0");
    let driver = node.spawn(DRIVER, command).unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(
        node.sockets().unwrap(),
        ["kubelet/plugins/gpu.example.com/dra@pod-1.sock", "kubelet/plugins_registry/gpu.example.com-pod-1@reg.sock"],
    );
    let log = driver.log().unwrap();
    let line = log.lines().find(|line| line.contains("http endpoint started")).unwrap_or_else(|| panic!("{log}"));
    let address: SocketAddr = line.rsplit("address=").next().unwrap().trim().parse().unwrap();
    let (_, page) = http_get(address, "/statusz").await;
    for expected in ["node-7", "on (v1beta1,v1alpha1; kubernetes)", "as pod pod-1"] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    node.create(one_gpu("train")).await.unwrap();
    let pod = node.create_pod(pod_with("pod", "train")).await.unwrap();
    pod.running().await.unwrap();
    let plugin = node.kubelet_root().join("plugins").join(DRIVER);
    let file = std::fs::read(plugin.join("dra-device-metadata/default_train/gpu/metadata.json")).unwrap();
    let documents: Vec<Value> =
        serde_json::Deserializer::from_slice(&file).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0]["apiVersion"], "metadata.resource.k8s.io/v1beta1");
    let uid = node.claim_ref("train").await.unwrap().uid;
    let spec = node.cdi_directory().join(format!("{DRIVER}_metadata_{uid}_gpu.json"));
    let spec = std::fs::read_to_string(spec).unwrap();
    assert_eq!(spec.matches("containerPath").count(), 1, "{spec}");
    assert_eq!(in_time(driver.terminate()).await.unwrap().code(), Some(0));
    assert_eq!(node.sockets().unwrap(), [""; 0]);
}

#[tokio::test]
async fn the_help_of_the_example_has_every_flag() {
    let mut help = command();
    help.arg("--help");
    let help = output(help).await;
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).unwrap();
    for flag in [
        "--driver-name",
        "--enable-device-metadata",
        "--metadata-versions",
        "--metadata-layout",
        "--kubelet-root-dir",
        "--cdi-dir",
        "--node-name",
        "--pod-uid",
        "--http-endpoint",
        "--kubeconfig",
        "--verbose",
        "--log-format",
        "--version",
    ] {
        assert!(text.contains(flag), "{flag} in {text}");
    }
}

#[tokio::test]
async fn an_invalid_flag_or_variable_is_a_usage_error() {
    let mut flag = command();
    flag.arg("--enable-device-metdata");
    let mut value = command();
    value.arg("--metadata-versions=v7");
    let mut variable = command();
    variable.env("HTTP_ENDPOINT", "everywhere");
    for (command, expected) in
        [(flag, "'--enable-device-metadata'"), (value, "v7"), (variable, "'everywhere' for '--http-endpoint")]
    {
        let output = output(command).await;
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

/// The error of a failed start says what to do, and no socket is left.
#[tokio::test]
async fn a_failed_start_has_an_error_with_the_remedy() {
    let node = support::Node::default();
    let mut command = command();
    command.arg(format!("--kubelet-root-dir={}", node.root.path().display())).env("HOME", "/nonexistent");
    let no_api_server = output(command).await;
    let text = String::from_utf8(no_api_server.stderr).unwrap();
    assert_eq!(no_api_server.status.code(), Some(1), "{text}");
    assert!(text.contains("find the API server: "), "{text}");
    assert!(text.contains("; in a pod a service account is needed, elsewhere a kubeconfig"), "{text}");
    assert_eq!(node.sockets(), [""; 0]);
}
