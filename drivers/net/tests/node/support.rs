//! A node with the driver on it, and a host with interfaces under it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::time::Duration;

use drakkar_net::{DRIVER_NAME, Options, Running};
use drakkar_netlink::{Connection, Link, LinkChange, Namespace, NewAddress, NewLink, NewLinkKind};
use drakkar_node::nri;
use drakkar_node::{ClaimSpec, Container, Node, Pod, PodHandle};
use drakkar_plugin::PluginBuilder;
use drakkar_plugin::attributes::NumaForm;
use drakkar_plugin::k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use drakkar_sysfs::Roots;
use serde_json::{Value, json};

/// The name of the driver as a plugin of the runtime.
pub const PLUGIN: &str = "10-net.drakkar.dev";

/// Rules for the interfaces of the host: cables that move, and one that is shared.
const CONFIG: &str = "
apiVersion: net.drakkar.dev/v1alpha1
kind: DriverConfig
devices:
- {name: fast, match: {names: ['fast*']}}
- {name: shared, match: {names: [shared0]}, share: {kind: macvlan, max: 8}}
";

/// A host: a network namespace with the cables fast0 to fast3 and shared0, whose other ends are in a switch.
pub struct Host {
    namespace: Namespace,
    connection: std::sync::Mutex<Connection>,
}

impl Host {
    fn new() -> Option<Self> {
        let namespace = match Namespace::unshared() {
            Ok(namespace) => namespace,
            Err(error) => {
                skip(&error.to_string());
                return None;
            }
        };
        let mut connection = Connection::open(&namespace).unwrap();
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        connection.create_link(&NewLink { up: true, ..NewLink::new("switch", NewLinkKind::Bridge) }).unwrap();
        let switch = connection.link_by_name("switch").unwrap().unwrap();
        for name in ["fast0", "fast1", "fast2", "fast3", "shared0"] {
            let peer = format!("to-{name}");
            let kind = NewLinkKind::Veth { peer: &peer, peer_namespace: None };
            connection.create_link(&NewLink { up: true, mtu: Some(1450), ..NewLink::new(name, kind) }).unwrap();
            let other = connection.link_by_name(&peer).unwrap().unwrap();
            connection.change_link(&other, &LinkChange { master: Some(switch.index), ..up }).unwrap();
        }
        let host = Self { namespace, connection: std::sync::Mutex::new(connection) };
        let fast0 = host.link("fast0").unwrap();
        let address = NewAddress::new("192.0.2.200/24".parse().unwrap());
        host.connection.lock().unwrap().add_address(&fast0, &address).unwrap();
        Some(host)
    }

    /// The path by which this process finds the namespace.
    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_fd().as_raw_fd()).into()
    }

    pub fn link(&self, name: &str) -> Option<Link> {
        self.connection.lock().unwrap().link_by_name(name).unwrap()
    }

    /// Changes an interface of the host.
    pub fn change(&self, name: &str, change: &LinkChange<'_>) {
        let mut connection = self.connection.lock().unwrap();
        let link = connection.link_by_name(name).unwrap().unwrap();
        connection.change_link(&link, change).unwrap();
    }

    /// Connects a cable to another host, which has an address. Returns the hardware address of that host.
    pub fn connect_host(&self, cable: &str, address: &str) -> String {
        let mut connection = self.connection.lock().unwrap();
        let other = connection.link_by_name(&format!("to-{cable}")).unwrap().unwrap();
        connection.change_link(&other, &LinkChange { master: Some(0), ..LinkChange::default() }).unwrap();
        connection.add_address(&other, &NewAddress::new(address.parse().unwrap())).unwrap();
        other.address.unwrap().to_string()
    }

    /// Returns what a restore must bring back: MTU, hardware address, addresses, state and alias.
    pub fn state(&self, name: &str) -> Option<String> {
        let mut connection = self.connection.lock().unwrap();
        let link = connection.link_by_name(name).unwrap()?;
        let addresses = connection.addresses_of(link.index).unwrap();
        let addresses: Vec<String> = addresses
            .iter()
            .filter(|address| address.address.addr().is_ipv4())
            .map(|address| address.address.to_string())
            .collect();
        Some(format!("{} {:?} {addresses:?} {} {:?}", link.mtu, link.address, link.is_up, link.alias))
    }
}

fn skip(reason: &str) {
    let is_required = std::env::var_os("DRAKKAR_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
    assert!(!is_required, "{reason}");
    println!("skipped: {reason}");
}

/// A node with the driver on it.
pub struct Bench {
    pub node: Node,
    pub host: Host,
    pub driver: Option<Running>,
    directory: tempfile::TempDir,
}

impl Bench {
    /// Starts a node and the driver. `None` where the machine allows no network namespaces.
    pub async fn start() -> Option<Self> {
        let host = Host::new()?;
        let node = Node::builder().nri(nri::Config::default()).start().await.unwrap();
        if let Some(problem) = node.nri().unwrap().network_problem() {
            skip(&problem);
            return None;
        }
        node.create(drakkar_node::device_class(DRIVER_NAME)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.yaml"), CONFIG).unwrap();
        let mut bench = Self { node, host, driver: None, directory };
        bench.start_driver().await;
        Some(bench)
    }

    pub async fn start_driver(&mut self) {
        let builder = PluginBuilder::new(DRIVER_NAME).on(self.node.environment(DRIVER_NAME).unwrap());
        let builder = builder.http_endpoint("127.0.0.1:0".parse().unwrap());
        self.driver = Some(drakkar_net::start(builder, self.options()).await.unwrap());
        self.node.wait_registered(DRIVER_NAME).await.unwrap();
        self.node.nri().unwrap().wait_plugin(PLUGIN).await.unwrap();
    }

    pub async fn stop_driver(&mut self) {
        self.driver.take().unwrap().stop().await.unwrap();
    }

    fn options(&self) -> Options {
        let below = |name: &str| self.directory.path().join(name);
        Options {
            config: below("config.yaml"),
            host_namespace: self.host.path(),
            roots: Roots { sys: below("sys"), dev: below("dev"), proc: "/proc".into() },
            numa: NumaForm::Number,
            node_addresses: Vec::new(),
            state_directory: below("state"),
            cdi_directory: self.node.cdi_directory().clone(),
            nri_socket: Some(self.node.nri().unwrap().socket().to_owned()),
            nri_index: 10,
        }
    }

    /// Creates a claim for an interface of the host, with parameters.
    pub async fn claim(&self, name: &str, interface: &str, mut parameters: Value) {
        parameters["apiVersion"] = "net.drakkar.dev/v1alpha1".into();
        parameters["kind"] = "ClaimConfig".into();
        let expression = format!("device.attributes['{DRIVER_NAME}'].interfaceName == '{interface}'");
        let mut claim = ClaimSpec::default().request_with("net", DRIVER_NAME, 1, &expression).claim(name);
        claim["spec"]["devices"]["config"] =
            json!([{"requests": ["net"], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]);
        self.node.create(claim).await.unwrap();
    }

    /// Creates a pod with claims that exist.
    pub async fn pod_with(&self, name: &str, claims: &[&str]) -> PodHandle<'_> {
        let mut main = Container::new("main", ["sleep", "infinity"]);
        let mut pod = Pod::new(name);
        for claim in claims {
            main = main.claim(claim);
            pod = pod.claim(claim, claim);
        }
        self.node.create_pod(pod.container(main)).await.unwrap()
    }

    /// Creates a claim and a pod of the same name with it.
    pub async fn pod(&self, name: &str, interface: &str, parameters: Value) -> PodHandle<'_> {
        self.claim(name, interface, parameters).await;
        self.pod_with(name, &[name]).await
    }

    /// Returns the status of a claim's device, once its condition is this.
    pub async fn status(&self, claim: &str, is_ready: bool) -> AllocatedDeviceStatus {
        let wanted = if is_ready { "True" } else { "False" };
        let deadline = drakkar_node::Deadline::of_assertion();
        loop {
            let object = self.node.claim(claim).await.unwrap().unwrap();
            let status = object.status.and_then(|status| status.devices).and_then(|devices| devices.into_iter().next());
            let is_wanted = |status: &AllocatedDeviceStatus| {
                status
                    .conditions
                    .iter()
                    .flatten()
                    .any(|condition| condition.type_ == "Ready" && condition.status == wanted)
            };
            match status {
                Some(status) if is_wanted(&status) => return status,
                status => deadline.pause().await.unwrap_or_else(|_| panic!("claim {claim}: {status:?}")),
            }
        }
    }

    /// Returns a page of the driver's HTTP endpoint.
    pub async fn page(&self, path: &str) -> String {
        let address = self.driver.as_ref().unwrap().helper().http_address().unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let read = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }
}

/// An interface in a pod, as the kernel has it: MTU, hardware address and addresses beyond the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPod {
    pub mtu: u32,
    pub hardware_address: String,
    pub ips: Vec<String>,
}

/// Returns the network namespace of a pod that runs.
pub fn network(pod: &PodHandle<'_>) -> Namespace {
    Namespace::open(pod.sandbox().unwrap().network.unwrap()).unwrap()
}

/// Returns an interface of a pod.
pub fn in_pod(pod: &PodHandle<'_>, name: &str) -> Option<InPod> {
    let mut connection = Connection::open(&network(pod)).unwrap();
    let link = connection.link_by_name(name).unwrap()?;
    let addresses = connection.addresses_of(link.index).unwrap();
    let beyond = addresses.iter().filter(|address| address.scope != drakkar_netlink::AddressScope::Link);
    Some(InPod {
        mtu: link.mtu,
        hardware_address: link.address.map(|address| address.to_string()).unwrap_or_default(),
        ips: beyond.map(|address| address.address.to_string()).collect(),
    })
}

/// Returns the only device in the metadata of a claim, as a container sees it.
pub async fn metadata(pod: &PodHandle<'_>, claim: &str) -> Value {
    let path =
        format!("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}/net/{DRIVER_NAME}-metadata.json");
    let output = pod.exec("main", ["cat", &path]).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file: Value = serde_json::from_slice(&output.stdout).unwrap();
    file["requests"][0]["devices"][0].clone()
}

/// Sends something from one pod to an address of another.
pub async fn talk(from: &PodHandle<'_>, to: &PodHandle<'_>, address: &str) {
    let (from, to) = (network(from), network(to));
    let address = (address.to_owned(), 7000);
    let exchange = move || {
        let listener = to.run(|| TcpListener::bind((address.0.as_str(), address.1))).unwrap().unwrap();
        let mut sent = from.run(|| TcpStream::connect((address.0.as_str(), address.1))).unwrap().unwrap();
        sent.write_all(b"hello").unwrap();
        drop(sent);
        let mut received = String::new();
        listener.accept().unwrap().0.read_to_string(&mut received).unwrap();
        received
    };
    assert_eq!(tokio::task::spawn_blocking(exchange).await.unwrap(), "hello");
}
