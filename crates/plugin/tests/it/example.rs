//! The minimal example, as a process, answering a kubelet.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use drakkar_plugin::proto::dra_v1::dra_plugin_client::DraPluginClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    DRIVER, Kubelet, Node, Registrar, TestClaim, cdi_devices, channel, eventually, http_get, in_time,
};

/// Where the example is. `cargo test` builds it; a run of these tests alone does not, and then it is built here.
fn example() -> PathBuf {
    // target/PROFILE/deps/it-HASH
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let example = profile.join("examples/minimal");
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap();
    if !example.exists() {
        let name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--example=minimal", "--profile", name, "--target-dir"]);
        let built = cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(built.success() && example.exists(), "the example cannot be built");
    }
    example
}

/// The example with nothing in its environment but what a test gives it.
fn command() -> Command {
    let mut command = Command::new(example());
    command.env_clear().env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A real API server, as small as can be: it answers every GET with the claim, or says that there is none.
struct ApiServer {
    address: SocketAddr,
    claims: Arc<Mutex<Vec<Value>>>,
    _task: AbortOnDropHandle<()>,
}

impl ApiServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let claims: Arc<Mutex<Vec<Value>>> = Arc::default();
        let answers = claims.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, answers.clone()));
            }
        });
        Self { address, claims, _task: AbortOnDropHandle::new(task) }
    }

    /// A kubeconfig by which it is found.
    fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let path = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

/// Answers the one request of a connection.
async fn answer(mut stream: TcpStream, claims: Arc<Mutex<Vec<Value>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let found = claims.lock().unwrap().iter().find_map(|claim| {
        let name = claim["metadata"]["name"].as_str().unwrap();
        let expected = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
        (path == expected).then(|| claim.to_string())
    });
    let not_found = || {
        let details = json!({"group": "resource.k8s.io", "kind": "resourceclaims", "name": path.rsplit('/').next()});
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        [status, json!({ "details": details })].map(|part| part.as_object().unwrap().clone()).into_iter().flatten()
    };
    let (status, body) =
        found.map_or_else(|| ("404 Not Found", Value::from_iter(not_found()).to_string()), |claim| ("200 OK", claim));
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// The example, running. It ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// The first line of its log that has this in it.
    async fn log_line(&mut self, text: &'static str) -> String {
        let log = BufReader::new(self.0.stderr.take().unwrap());
        let found = tokio::task::spawn_blocking(move || {
            let mut lines = log.lines().map(Result::unwrap);
            let line = lines.find(|line| line.contains(text));
            // The process must not wait for somebody who reads the rest.
            std::thread::spawn(move || lines.for_each(drop));
            line
        });
        in_time(found).await.unwrap().unwrap_or_else(|| panic!("{text:?} is not in the log"))
    }

    async fn exit(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap()).await
    }

    async fn terminate(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.exit().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process that ends by itself has said.
async fn output(mut command: Command) -> Output {
    let mut process = Process::start(&mut command);
    let status = process.exit().await;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    process.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    process.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout, stderr }
}

/// The whole life of a driver: found, registered, used, ended.
#[rstest::rstest]
#[case::term(Signal::TERM)]
#[case::interrupt(Signal::INT)]
#[tokio::test]
async fn the_example_serves_a_kubelet_from_registration_to_its_end(#[case] signal: Signal) {
    let node = Node::default();
    let api = ApiServer::start().await;
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0");
    api.claims.lock().unwrap().push(claim.object.clone());
    let mut command = command();
    command
        .arg("--enable-device-metadata")
        .arg(format!("--kubelet-root-dir={}", node.root.path().display()))
        .arg(format!("--cdi-dir={}", node.cdi_directory().display()))
        .env("KUBECONFIG", api.kubeconfig(node.root.path()));
    let mut process = Process::start(&mut command);

    let registration = node.root.path().join("plugins_registry/gpu.example.com@reg.sock");
    eventually("the kubelet finds the driver", || {
        assert_eq!(process.0.try_wait().unwrap(), None, "the driver ended");
        registration.exists().then_some(())
    })
    .await;
    let mut registrar = Registrar::at(&registration).await;
    let info = registrar.info().await.unwrap();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);
    registrar.notify(None).await.unwrap();

    let mut kubelet = Kubelet(DraPluginClient::new(channel(Path::new(&info.endpoint)).await));
    let devices = kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(cdi_devices(&devices), ["gpu.example.com/metadata=uid-1_gpu"]);
    assert!(node.is_prepared(&claim));
    let device = &node.metadata(&claim, "gpu")["requests"][0]["devices"][0];
    assert_eq!((&device["name"], &device["attributes"]["model"]["string"]), (&json!("gpu-0"), &json!("minimal")));
    let unknown = kubelet.prepare_one(&TestClaim::new("unknown", "uid-2")).await.unwrap_err();
    assert_eq!(unknown, "get resourceclaim default/unknown (uid uid-2): it does not exist");
    kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!node.is_prepared(&claim));

    assert_eq!(process.terminate(signal).await.code(), Some(0));
    assert_eq!(node.sockets(), [""; 0]);
    assert_eq!(node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
}

/// A `DaemonSet` sets variables rather than flags: each does what its flag does.
#[tokio::test]
async fn every_flag_can_be_set_by_its_variable() {
    let node = Node::default();
    let api = ApiServer::start().await;
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0");
    api.claims.lock().unwrap().push(claim.object.clone());
    let mut command = command();
    command
        .env("KUBECONFIG", api.kubeconfig(node.root.path()))
        .env("ENABLE_DEVICE_METADATA", "true")
        .env("METADATA_VERSIONS", "v1beta1,v1alpha1")
        .env("METADATA_LAYOUT", "kubernetes")
        .env("KUBELET_ROOT_DIR", node.root.path())
        .env("CDI_DIR", node.cdi_directory())
        .env("NODE_NAME", "node-7")
        .env("POD_UID", "pod-1")
        .env("HTTP_ENDPOINT", "127.0.0.1:0");
    let mut process = Process::start(&mut command);
    let line = process.log_line("http endpoint serves").await;
    let address: SocketAddr = line.rsplit("address=").next().unwrap().trim().parse().unwrap();
    eventually("the driver is there", || (node.sockets().len() == 2).then_some(())).await;
    assert_eq!(node.sockets(), ["dra@pod-1.sock", "gpu.example.com-pod-1@reg.sock"]);
    let (_, page) = http_get(address, "/statusz").await;
    for expected in ["node-7", "on (v1beta1,v1alpha1; kubernetes)", "as pod pod-1"] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    let mut kubelet = Kubelet(DraPluginClient::new(channel(&node.plugin_directory().join("dra@pod-1.sock")).await));
    kubelet.prepare_one(&claim).await.unwrap();
    let file = std::fs::read(node.metadata_file(&claim, "gpu")).unwrap();
    assert_eq!(serde_json::Deserializer::from_slice(&file).into_iter::<Value>().count(), 2);
    assert_eq!(node.metadata(&claim, "gpu")["apiVersion"], "metadata.resource.k8s.io/v1beta1");
    let spec = std::fs::read_to_string(node.spec_file(&claim, "gpu")).unwrap();
    assert_eq!(spec.matches("containerPath").count(), 1, "{spec}");
    assert_eq!(process.terminate(Signal::TERM).await.code(), Some(0));
    assert_eq!(node.sockets(), [""; 0]);
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
        "--version",
    ] {
        assert!(text.contains(flag), "{flag} in {text}");
    }
}

#[tokio::test]
async fn a_wrong_flag_or_variable_is_an_error_of_usage() {
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

/// What goes wrong at the start is told in words, with what to do, and leaves nothing.
#[tokio::test]
async fn a_start_that_fails_is_told_in_words() {
    let node = Node::default();
    let mut command = command();
    command.arg(format!("--kubelet-root-dir={}", node.root.path().display())).env("HOME", "/nonexistent");
    let no_api_server = output(command).await;
    let text = String::from_utf8(no_api_server.stderr).unwrap();
    assert_eq!(no_api_server.status.code(), Some(1), "{text}");
    assert!(text.contains("find the API server: "), "{text}");
    assert!(text.contains("; in a pod a service account is needed, elsewhere a kubeconfig"), "{text}");
    assert_eq!(node.sockets(), [""; 0]);
}
