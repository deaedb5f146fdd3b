//! A node with NRI and the program on it, with a network namespace in the place of the host's.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use drakkar_net::DRIVER_NAME;
use drakkar_node::{DriverProcess, Node, PodHandle, nri};
use serde_json::Value;

/// A node with the driver on it.
pub struct Bench {
    pub node: Node,
    pub driver: DriverProcess,
    host: Host,
}

/// A process in the network namespace that stands for the host's, and so keeps it.
struct Host(Child);

impl Host {
    /// Makes the namespace, and its interfaces with a shell script.
    fn new(interfaces: &str) -> Self {
        let script = format!("set -e\nip link set lo up\n{interfaces}\necho ready\nexec cat");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the script failed");
        Self(process)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its end is the end of its standard input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Bench {
    /// Starts a node, makes the interfaces of its network with a shell script, and starts the driver with a configuration.
    /// `None`: this machine allows no network namespaces, which is printed.
    pub async fn start(config: &Path, interfaces: &str) -> Option<Self> {
        if let Some(problem) = namespaces_problem() {
            assert!(std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_none(), "{problem}");
            eprintln!("skipped: {problem}");
            return None;
        }
        let node = Node::builder().nri(nri::Config::default()).start().await.unwrap();
        let host = Host::new(interfaces);
        let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar-net"));
        command
            .args(["run", "--host-network-namespace", &format!("/proc/{}/ns/net", host.0.id()), "--config"])
            .arg(config);
        let driver = node.spawn(DRIVER_NAME, command).unwrap();
        let bench = Self { node, driver, host };
        bench.expect(bench.node.wait_registered(DRIVER_NAME).await);
        bench.expect(bench.node.wait_published(DRIVER_NAME).await);
        Some(bench)
    }

    /// Returns a value, or panics with the driver's log.
    pub fn expect<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}\n{}", self.driver.log().unwrap_or_default()))
    }

    /// What `ip -json ARGUMENTS` prints in the node's network.
    pub fn ip(&self, arguments: &[&str]) -> Vec<Value> {
        ip(self.host.0.id(), arguments)
    }

    /// The names of the interfaces in the node's network.
    pub fn names(&self) -> Vec<String> {
        self.ip(&["link"]).iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
    }

    /// What is left of claims. The journal's directories are the driver's own.
    pub async fn leftovers(&self) -> Vec<String> {
        let own = ["state", "state.lock", "state/claims", "state/functions"];
        let own = own.map(|name| format!("kubelet/plugins/{DRIVER_NAME}/{name}"));
        let mut leftovers = self.node.leftovers(DRIVER_NAME).await.unwrap();
        leftovers.retain(|path| !own.contains(path));
        leftovers
    }

    /// Terminates the driver, and checks that nothing is left of any claim.
    pub async fn stop(self) {
        assert_eq!(self.leftovers().await, [""; 0]);
        assert!(self.driver.terminate().await.unwrap().success());
    }
}

/// Why this machine cannot have network namespaces with interfaces.
fn namespaces_problem() -> Option<String> {
    let made = Command::new("unshare")
        .args(["--net", "ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1"])
        .output();
    match made {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("no network namespaces here: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Some(format!("no network namespaces here: unshare: {error}")),
    }
}

/// What `ip -json ARGUMENTS` prints in the network of a process.
pub fn ip(process: u32, arguments: &[&str]) -> Vec<Value> {
    let target = format!("--target={process}");
    let output = Command::new("nsenter").args([&target, "--net", "ip", "-json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Nothing at all is an empty list.
    serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text }).unwrap()
}

/// An interface of a pod, as `ip -json address` prints it.
pub fn link_in(pod: &PodHandle<'_>, name: &str) -> Value {
    ip(pod.process("main").unwrap(), &["address", "show", "dev", name]).remove(0)
}

/// The network data in the file of a request, as a container sees it.
pub async fn network_data(pod: &PodHandle<'_>, claim: &str) -> Value {
    let path = format!("/var/run/kubernetes.io/dra-device-attributes/{claim}/{DRIVER_NAME}-metadata.json");
    let output = pod.exec("main", ["cat", &path]).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file: Value = serde_json::from_slice(&output.stdout).unwrap();
    file["requests"][0]["devices"][0]["networkData"].clone()
}

/// The file of an example.
pub fn file(example: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example).join(name)
}

pub fn text(example: &str, name: &str) -> String {
    let path = file(example, name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
