//! The network driver: the hook of the runtime, discovery and memory, with few and with many interfaces on the host.
//!
//! The driver runs in its own process. Host and pod are network namespaces, the interfaces are cables (veth), the kubelet and
//! the API server are threads of this process, and the runtime is a process with containerd's own library. What is timed is
//! what a runtime waits for: from `RunPodSandbox` to its answer, in which the driver moves or makes the interface, renames
//! and configures it, and writes the metadata file. Each measurement alternates with the same move by one netlink request and
//! nothing else, so that the share of the kernel is seen.
//!
//! Needs root. The host's namespace and the pod's are the same for all measurements: the kernel would end others in the
//! background, with a lock that each move needs.

mod host;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use drakkar_kubelet_api::dra_v1::Claim;
use drakkar_net::DRIVER_NAME;
use drakkar_net::inventory::Host;
use drakkar_sysfs::{Roots, Sysfs};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use self::host::{CONFIG, MOVED, Machine, SHARED};
use crate::cluster::Cluster;
use crate::memory_directory;
use crate::nri::Runtime;
use crate::peers::{Driver, Kubelet, Node};
use crate::table::{Table, median, percentile};
use crate::{NODE, millis};

/// The name of the driver in tables.
pub const NAME: &str = "drakkar-net";
/// The UID of the pod.
const POD: &str = "6b0d7f5e-3f55-4f0b-9d6c-1c8d3f3f9e21";
/// The time for a driver to publish its interfaces, far longer than it takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How many interfaces are on the host, and how often things are measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The numbers of interfaces.
    pub interfaces: &'static [u64],
    /// The number of pods.
    pub pods: u64,
    /// The number of scans of the host.
    pub scans: u64,
}

impl Scale {
    /// The scale for published figures.
    pub const FULL: Self = Self { interfaces: &[1, 100, 1_000], pods: 300, scans: 20 };
    /// The scale for tests.
    pub const TEST: Self = Self { interfaces: &[1, 10], pods: 3, scans: 1 };
}

/// The programs that are measured.
#[derive(Debug)]
pub struct Programs {
    /// The driver: `bench-net`.
    pub driver: PathBuf,
    /// The runtime's side: the Go program with the tag `nri`.
    pub runtime: PathBuf,
}

/// Measures the driver once with each number of interfaces. The error is the reason why nothing can be measured here.
pub async fn round(scale: Scale, programs: &Programs, cluster: &Cluster, table: &mut Table) -> Result<(), String> {
    for interfaces in scale.interfaces {
        let machine = Machine::new(*interfaces).map_err(|error| {
            format!(
                "the network driver needs network namespaces with interfaces of their own (run it as root): {error}"
            )
        })?;
        measure(scale, *interfaces, machine, programs, cluster, table).await;
    }
    Ok(())
}

async fn measure(
    scale: Scale,
    interfaces: u64,
    mut machine: Machine,
    programs: &Programs,
    cluster: &Cluster,
    table: &mut Table,
) {
    let on_host =
        if interfaces == 1 { "1 interface".to_owned() } else { format!("{} interfaces", thousands(interfaces)) };
    let count = machine.count();
    let mut scans = scan(scale.scans, &machine.host, count);
    table.add_cost(NAME, &format!("{on_host}: read by netlink, p50"), "ms", millis(median(&mut scans)));

    let setup = Setup::start(&machine, interfaces, programs, cluster).await;
    let figure = format!("{on_host}: start to published");
    table.add_cost(NAME, &figure, "ms", millis(setup.published));
    table.add_cost(NAME, &format!("{on_host}: memory"), "MB", setup.driver.process.memory());
    let anonymous = setup.driver.process.anonymous_memory();
    table.add_cost(NAME, &format!("{on_host}: memory without pages of files"), "MB", anonymous);

    let mut pods = Pods { setup, machine: &mut machine, cluster, sandboxes: 0 };
    pods.measure(scale, &on_host, &MOVE, table).await;
    pods.measure(scale, &on_host, &MACVLAN, table).await;
    let setup = pods.setup;
    table.add_cost(NAME, &format!("{on_host}: peak memory"), "MB", setup.driver.process.peak_memory());
    setup.stop().await;
}

/// Measures how long it takes to read the interfaces of a host with their addresses and routes.
fn scan(scans: u64, namespace: &drakkar_netlink::Namespace, expected: usize) -> Vec<Duration> {
    let mut host = Host::open(namespace, Sysfs::at(Roots::below("/nonexistent"))).unwrap();
    let times = (0..scans).map(|_| {
        let begin = Instant::now();
        let inventory = host.scan().unwrap();
        assert_eq!(inventory.interfaces.len(), expected + 1, "with the loopback interface");
        begin.elapsed()
    });
    times.collect()
}

/// What a pod gets.
struct Kind {
    /// The name in tables.
    name: &'static str,
    /// The name of the same without the driver.
    bare_name: &'static str,
    /// The interface of the host.
    interface: &'static str,
    bare: fn(&mut Machine) -> Duration,
}

const MOVE: Kind =
    Kind { name: "RunPodSandbox", bare_name: "the move alone", interface: MOVED, bare: Machine::bare_move };
const MACVLAN: Kind = Kind {
    name: "RunPodSandbox, macvlan",
    bare_name: "making a macvlan alone",
    interface: SHARED,
    bare: Machine::bare_macvlan,
};

/// A driver with its peers.
struct Setup {
    driver: Driver,
    kubelet: Kubelet,
    runtime: Runtime,
    published: Duration,
    /// The socket and the configuration.
    _directory: tempfile::TempDir,
}

impl Setup {
    async fn start(machine: &Machine, interfaces: u64, programs: &Programs, cluster: &Cluster) -> Self {
        let slices: Api<ResourceSlice> = Api::all(cluster.admin());
        let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER_NAME}"));
        slices.delete_collection(&DeleteParams::default(), &of_driver).await.unwrap();
        let directory = tempfile::tempdir_in(memory_directory()).unwrap();
        let socket = directory.path().join("nri.sock");
        let mut runtime = Runtime::start(&programs.runtime, &socket);
        let node = Node::new(&memory_directory(), cluster);
        let command = command(programs, machine, directory.path(), node.root());
        let driver = node.start_command(NAME, command).await;
        let published = loop {
            let listed = slices.list(&of_driver).await.unwrap();
            let devices = listed.items.iter().map(|slice| slice.spec.devices.iter().flatten().count()).sum::<usize>();
            // With the shared one.
            if u64::try_from(devices).unwrap() == interfaces + 1 {
                break driver.started.elapsed();
            }
            assert!(driver.started.elapsed() < TIMEOUT, "{devices} devices are published");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        runtime.wait(|line| line["plugins"] == 1);
        let kubelet = driver.kubelet().await;
        Self { driver, kubelet, runtime, published, _directory: directory }
    }

    async fn stop(self) {
        let Self { driver, kubelet, .. } = self;
        drop(kubelet);
        driver.stop().await;
    }
}

fn command(programs: &Programs, machine: &Machine, directory: &Path, root: &Path) -> Command {
    let config = directory.join("config.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new(&programs.driver);
    command.arg("--config").arg(config).arg("--host-network-namespace").arg(host::path(&machine.host));
    command.arg("--nri-socket").arg(directory.join("nri.sock")).args(["--node-name", NODE]);
    command.arg("--kubelet-root-dir").arg(root).arg("--cdi-dir").arg(root.join("cdi"));
    command.env("KUBECONFIG", root.join("kubeconfig"));
    command
}

/// The pods of a measurement, one after the other.
struct Pods<'a> {
    setup: Setup,
    machine: &'a mut Machine,
    cluster: &'a Cluster,
    sandboxes: u64,
}

impl Pods<'_> {
    /// Measures pods with a claim, alternating with the same without the driver.
    async fn measure(&mut self, scale: Scale, on_host: &str, kind: &Kind, table: &mut Table) {
        let claim = claim(self.cluster, kind.interface).await;
        // Warms up both.
        self.run(kind, &claim).await;
        let mut starts = Vec::new();
        let mut stops = Vec::new();
        let mut bare = Vec::new();
        for _ in 0..scale.pods {
            bare.push((kind.bare)(self.machine));
            let (start, stop) = self.run(kind, &claim).await;
            starts.push(start);
            stops.push(stop);
        }
        let mut own: Vec<Duration> =
            starts.iter().zip(&bare).map(|(start, bare)| start.saturating_sub(*bare)).collect();
        let Kind { name, bare_name, .. } = kind;
        for percent in [50, 99] {
            let mut add = |what: &str, times: &mut Vec<Duration>| {
                let figure = format!("{on_host}: {what}, p{percent}");
                table.add_cost(NAME, &figure, "ms", millis(percentile(times, percent)));
            };
            add(name, &mut starts);
            add(bare_name, &mut bare);
            add(&format!("{name} without {bare_name}"), &mut own);
            add(&name.replace("Run", "Stop"), &mut stops);
        }
    }

    /// Runs a pod and stops it. Returns how long the runtime waited for each.
    async fn run(&mut self, kind: &Kind, claim: &Claim) -> (Duration, Duration) {
        self.sandboxes += 1;
        let pod = json!({
            "id": format!("sandbox-{}", self.sandboxes), "name": "pod", "uid": POD, "namespace": "default",
            "linux": {"namespaces": [{"type": "network", "path": host::path(&self.machine.pod)}]},
        });
        self.setup.kubelet.prepare_claims(vec![claim.clone()]).await;
        let start = self.setup.runtime.event("RunPodSandbox", &pod);
        assert!(self.machine.is_in_pod(IN_POD), "{} is not in the pod", kind.interface);
        let stop = self.setup.runtime.event("StopPodSandbox", &pod);
        self.setup.runtime.event("RemovePodSandbox", &pod);
        assert!(!self.machine.is_in_pod(IN_POD), "{} is still in the pod", kind.interface);
        self.setup.kubelet.unprepare_claims(vec![claim.clone()]).await;
        (start, stop)
    }
}

/// The name of the claimed interface in the pod.
const IN_POD: &str = "data0";

/// Creates a claim to which an interface is allocated, for the pod.
async fn claim(cluster: &Cluster, interface: &str) -> Claim {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.admin(), "default");
    let name = format!("net-{interface}");
    claims.delete(&name, &DeleteParams::default()).await.ok();
    let opaque = json!({"driver": DRIVER_NAME, "parameters": {
        "apiVersion": "net.drakkar.dev/v1alpha1", "kind": "ClaimConfig",
        "interfaceName": IN_POD, "mtu": 1400, "addresses": ["192.0.2.10/24"],
        "routes": [{"destination": "198.51.100.0/24", "gateway": "192.0.2.1"}],
    }});
    let created: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"devices": {
            "requests": [{"name": "net", "exactly": {"deviceClassName": "net.example.com"}}],
            "config": [{"requests": ["net"], "opaque": opaque}],
        }},
    }))
    .unwrap();
    let created = claims.create(&PostParams::default(), &created).await.unwrap();
    let mut result: Value =
        json!({"request": "net", "driver": DRIVER_NAME, "pool": NODE, "device": format!("if-{interface}")});
    if interface == SHARED {
        result["shareID"] = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".into();
        result["consumedCapacity"] = json!({"shares": "1"});
    }
    let status = json!({"status": {
        "allocation": {"devices": {
            "results": [result], "config": [{"source": "FromClaim", "requests": ["net"], "opaque": opaque}],
        }},
        "reservedFor": [{"resource": "pods", "name": "pod", "uid": POD}],
    }});
    claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    Claim { namespace: "default".to_owned(), name, uid: created.metadata.uid.unwrap() }
}

/// Writes a number with a comma between thousands.
fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}
