//! A healthy node to break: the embedded node, a driver as a process of its own, and a prepared claim.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use drakkar_node::api::Config;
use drakkar_node::{
    ClaimSpec, Container, DriverProcess, Isolation, Node, Pod, Timing, assert_eventually, device_class,
};
use serde::Deserialize;
use snapbox::cmd::cargo_bin;

/// The sample driver of GPUs.
pub(crate) const DRIVER: &str = "gpu.example.com";

/// A node with a driver and a prepared claim `default/train`.
pub(crate) struct HealthyNode {
    pub(crate) node: Node,
    driver: Option<DriverProcess>,
    kubeconfig: PathBuf,
}

/// The report of `drakkar doctor -o json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    #[serde(skip)]
    pub(crate) code: i32,
}

/// A finding of the report.
#[derive(Debug, Deserialize)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) status: String,
    pub(crate) id: Option<String>,
    pub(crate) message: String,
    pub(crate) remedy: Option<String>,
}

impl Report {
    /// Returns the ids of all warnings and errors.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.findings.iter().filter_map(|finding| finding.id.clone()).collect()
    }

    pub(crate) fn with_status(&self, status: &str) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.status == status)
    }

    /// Asserts that this is the only problem, and that the finding says what it is about and what to do.
    #[track_caller]
    pub(crate) fn assert_only(&self, id: &str, message: &str) {
        assert_eq!(self.problems(), [id], "{self:#?}");
        let finding = self.findings.iter().find(|finding| finding.id.is_some()).unwrap();
        assert!(finding.message.contains(message), "{message}: {finding:#?}");
        assert!(finding.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()), "{finding:#?}");
        assert_eq!(self.code, i32::from(finding.status == "error"), "{finding:#?}");
    }
}

impl HealthyNode {
    pub(crate) async fn start() -> Self {
        Self::start_with(Config { tls: true, ..Config::default() }, Isolation::ShowOnly).await
    }

    pub(crate) async fn start_with(api: Config, isolation: Isolation) -> Self {
        // A kubelet deletes the slices of a driver that is gone. How soon must not matter to a test that breaks the driver.
        let timing = Timing { slice_grace: Duration::from_secs(3600), ..Timing::fast() };
        let node = Node::builder().api(api).isolation(isolation).timing(timing).start().await.unwrap();
        let mut command = Command::new(cargo_bin!("drakkar"));
        command.args(["sample-driver", "gpu", "--enable-device-metadata"]);
        let driver = node.spawn(DRIVER, command).unwrap();
        node.wait_registered(DRIVER).await.unwrap();
        node.wait_published(DRIVER).await.unwrap();
        node.create(device_class(DRIVER)).await.unwrap();
        node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("train")).await.unwrap();
        let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
        node.create_pod(Pod::new("trainer").claim("gpus", "train").container(main)).await.unwrap();
        assert_eventually!(node.kubelet_claims().await.iter().any(|claim| claim.prepared), "the claim is prepared");
        let node_object: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(node.client());
        assert_eventually!(
            node_object.get(node.name()).await.unwrap().status.is_some_and(|status| status.node_info.is_some()),
            "the kubelet has reported its version"
        );
        let cdi = node.cdi_directory();
        let config = format!(
            "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_cdi = true\ncdi_spec_dirs = [{cdi:?}]\n\
             [plugins.\"io.containerd.nri.v1.nri\"]\nsocket_path = {:?}\n",
            node.directory().join("nri.sock")
        );
        std::fs::write(node.directory().join("config.toml"), config).unwrap();
        let kubeconfig = node.write_admin_kubeconfig().unwrap();
        Self { node, driver: Some(driver), kubeconfig }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.node.directory()
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.node.kubelet_root().join("plugins_registry")
    }

    /// Returns the driver's directory.
    pub(crate) fn plugin(&self) -> PathBuf {
        self.node.kubelet_root().join("plugins").join(DRIVER)
    }

    /// Returns the directory of the claim.
    pub(crate) fn claim(&self) -> PathBuf {
        self.plugin().join("dra-device-metadata/default_train")
    }

    pub(crate) fn metadata(&self) -> PathBuf {
        self.claim().join("gpu/metadata.json")
    }

    /// Returns the only CDI spec.
    pub(crate) fn spec(&self) -> PathBuf {
        let mut files = std::fs::read_dir(self.node.cdi_directory()).unwrap().map(|entry| entry.unwrap().path());
        let file = files.next().unwrap();
        assert!(files.next().is_none());
        file
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.directory().join("config.toml")
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Uses another kubeconfig.
    pub(crate) fn use_kubeconfig(&mut self, content: &str) {
        self.kubeconfig = self.directory().join("other.kubeconfig");
        std::fs::write(&self.kubeconfig, content).unwrap();
    }

    pub(crate) async fn kill_driver(&mut self) {
        self.driver.take().unwrap().kill().await.unwrap();
    }

    /// Makes a socket on which nobody listens any longer.
    pub(crate) fn leave_dead_socket(&self, path: &Path) {
        drop(UnixListener::bind(path).unwrap());
    }

    /// Returns the options with which the command sees this node.
    pub(crate) fn options(&self, command: &[&str]) -> Vec<String> {
        let mut options: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        options.extend(["--kubelet-dir".into(), path(&self.node.kubelet_root())]);
        options.extend(["--cdi-dir".into(), path(&self.node.cdi_directory())]);
        options
    }

    fn doctor(&self, more: &[&str]) -> tokio::process::Command {
        let mut options = self.options(&["doctor"]);
        if !more.contains(&"--containerd-config") {
            options.extend(["--containerd-config".into(), self.config().to_str().unwrap().to_owned()]);
        }
        if !more.contains(&"--no-api") {
            options.extend(["--kubeconfig".into(), self.kubeconfig.to_str().unwrap().to_owned()]);
        }
        if !more.contains(&"--node-name") {
            options.extend(["--node-name".into(), self.node.name().to_owned()]);
        }
        // The port of a kubelet that may run on this machine is not asked.
        if !more.contains(&"--kubelet-healthz") {
            options.extend(["--kubelet-healthz".into(), "127.0.0.1:1".into()]);
        }
        let mut command = command();
        command.args(options).args(more);
        command
    }

    /// Runs the command, and returns its exit code and output.
    pub(crate) async fn text(&self, more: &[&str]) -> (i32, String) {
        run(self.doctor(more)).await
    }

    /// Runs the command, and returns what it found.
    pub(crate) async fn report(&self, more: &[&str]) -> Report {
        let (code, text) = run(self.doctor(&[more, &["-o", "json"]].concat())).await;
        let mut report: Report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        report.code = code;
        report
    }
}

/// Returns the command, independent of the test's environment. The node runs in this process, so its output is awaited.
pub(crate) fn command() -> tokio::process::Command {
    let mut command = tokio::process::Command::new(cargo_bin!("drakkar"));
    for variable in ["CDI_DIR", "DRAKKAR_ROOT", "KUBECONFIG", "KUBELET_ROOT_DIR", "NODE_NAME"] {
        command.env_remove(variable);
    }
    command.env("NO_COLOR", "1");
    command
}

/// Runs a command, and returns its exit code and output: of the two streams, that which is not empty.
pub(crate) async fn run(mut command: tokio::process::Command) -> (i32, String) {
    let output = command.output().await.unwrap();
    let [printed, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code().unwrap(), if printed.is_empty() { errors } else { printed })
}
