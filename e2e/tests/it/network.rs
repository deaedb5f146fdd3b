//! Network interfaces on a real node: drakkar-net as a `DaemonSet`, with containerd's NRI, a real kernel and CNI's pod network.
//!
//! The driver is deployed by `deploy/manifests/net.yaml`. The interfaces are made by the tests: pairs of veth whose other ends are on a
//! bridge of the node, and one that claims share. There is one such driver on the node, and it is killed, so these tests run one
//! after the other.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use drakkar_e2e::{Component, run};
use drakkar_node::{ClaimSpec, Container, Pod};
use serde_json::{Value, json};

use crate::support::{NET_DRIVER, NetDriver, TestEnv};

/// Thirty sandboxes with a bridge plugin each take a while on two cores.
const MANY_TIMEOUT: Duration = Duration::from_secs(180);

/// A claim for one interface of a rule, with parameters.
pub(crate) fn claim(rule: &str, parameters: &Value) -> ClaimSpec {
    let expression = format!("device.attributes['{NET_DRIVER}'].rule == '{rule}'");
    let mut whole = json!({"apiVersion": format!("{NET_DRIVER}/v1alpha1"), "kind": "ClaimConfig"});
    whole.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
    ClaimSpec::default().request_with("link", NET_DRIVER, 1, &expression).parameters(&["link"], NET_DRIVER, &whole)
}

/// An interface as three sources have it, in one form.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    name: String,
    mac: String,
    addresses: BTreeSet<String>,
}

impl Seen {
    fn of_network_data(data: &Value) -> Self {
        let text = |field: &str| data[field].as_str().unwrap_or_default().to_owned();
        let addresses = data["ips"].as_array().into_iter().flatten().map(|ip| ip.as_str().unwrap().to_owned());
        Self { name: text("interfaceName"), mac: text("hardwareAddress"), addresses: addresses.collect() }
    }

    /// What `ip -j addr` prints in the pod's network namespace.
    fn of_kernel(link: &Value) -> Self {
        let is_global = |address: &&Value| address["scope"] == "global";
        let addresses = link["addr_info"].as_array().into_iter().flatten().filter(is_global);
        let text = |field: &str| link[field].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("ifname"),
            mac: text("address"),
            addresses: addresses
                .map(|address| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]))
                .collect(),
        }
    }
}

/// What `ip -j addr` prints of an interface in the network namespace of a pod's container `main`.
fn link_in_pod(env: &TestEnv, pod: &Value, name: &str) -> Value {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    let tasks = run(env.cluster.ctr().args(["tasks", "list"])).unwrap();
    let task = tasks.lines().find(|line| line.starts_with(id)).unwrap_or_else(|| panic!("no task {id}:\n{tasks}"));
    let process = task.split_whitespace().nth(1).unwrap();
    let target = format!("--target={process}");
    let printed =
        run(env.cluster.command("nsenter").args([&target, "--net", "ip", "-json", "address", "show", "dev", name]));
    let links: Vec<Value> = serde_json::from_str(&printed.unwrap()).unwrap();
    // Older releases of `ip` print an empty object for every other interface.
    links.into_iter().find(|link| link["ifname"] == name).unwrap_or_else(|| panic!("no interface {name}"))
}

/// Checks that the file in the container, the claim's status and the kernel say the same, and returns it.
async fn check(env: &TestEnv, pod: &str, claim: &str, file: &str, name: &str) -> Seen {
    let pod_object = env.running(pod).await;
    let kernel = Seen::of_kernel(&link_in_pod(env, &pod_object, name));
    let file = env.read(pod, "main", file);
    let device = &file["requests"][0]["devices"][0];
    assert_eq!(Seen::of_network_data(&device["networkData"]), kernel, "{pod}: the file is not what the kernel says");
    let status = env
        .eventually(&format!("the status of {claim} has network data"), async || {
            let claim = env.get(&env.claims(&format!("/{claim}"))).await?;
            let device = claim["status"]["devices"].get(0)?.clone();
            device.get("networkData").is_some().then_some(device)
        })
        .await;
    assert_eq!(Seen::of_network_data(&status["networkData"]), kernel, "{pod}: the status is not what the kernel says");
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    assert!(status["conditions"].as_array().is_some_and(|all| all.iter().any(is_ready)), "{status}");
    kernel
}

/// Waits until a pod reaches an address over one of its interfaces. The first packets are lost while the bridge learns.
async fn reaches(env: &TestEnv, pod: &str, interface: &str, address: &str) {
    env.eventually_with(&format!("{pod} reaches {address}"), async |reason| {
        let ping = ["ping", "-c", "1", "-W", "2", "-I", interface, address];
        env.exec(pod, "main", &ping).map_err(|error| *reason = error).ok()
    })
    .await;
}

/// Starts a pod with a claim of its own for an interface of the rule `data`, and checks what it sees.
async fn start(env: &TestEnv, name: &str, address: &str) {
    env.claim(name, claim("data", &json!({"interfaceName": "data0", "addresses": [address]}))).await;
    env.run(env.sleeper(name, name)).await;
    let seen = check(env, name, name, &file_of(name), "data0").await;
    assert_eq!(seen.addresses, BTreeSet::from([address.to_owned()]));
}

/// The path of the file of a claim that the pod references by name.
fn file_of(claim: &str) -> String {
    format!("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}/link/{NET_DRIVER}-metadata.json")
}

/// The path of the file of a claim from a template that the pod calls `net`.
pub(crate) fn file_of_template() -> String {
    format!("/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/net/link/{NET_DRIVER}-metadata.json")
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn two_pods_talk_over_the_interfaces_of_their_claims() {
    let env = TestEnv::new("network").await;
    let driver = NetDriver::deploy(&env, 3).await;
    // Moved interfaces, with everything that a claim can set on this kernel.
    let left = json!({
        "interfaceName": "data0", "mtu": 1400, "macAddress": "02:00:5e:10:00:01",
        "addresses": ["198.18.0.1/24", "2001:db8::1/64"],
        "routes": [
            {"destination": "198.18.1.0/24", "gateway": "198.18.0.2"},
            {"destination": "0.0.0.0/0", "gateway": "198.18.0.2", "table": 100},
        ],
        "rules": [{"from": "198.18.0.1/32", "table": 100}],
        "sysctls": {"net.ipv4.conf.IFNAME.arp_ignore": 1},
    });
    env.claim("left", claim("data", &left)).await;
    env.run(env.sleeper("left", "left")).await;
    start(&env, "right", "198.18.0.2/24").await;
    let seen = check(&env, "left", "left", &file_of("left"), "data0").await;
    assert_eq!(seen.mac, "02:00:5e:10:00:01");
    assert_eq!(seen.addresses, ["198.18.0.1/24", "2001:db8::1/64"].map(str::to_owned).into());
    reaches(&env, "left", "data0", "198.18.0.2").await;
    reaches(&env, "right", "data0", "198.18.0.1").await;
    let inside = |command: &[&str]| env.exec("left", "main", command).unwrap();
    assert_eq!(inside(&["cat", "/sys/class/net/data0/mtu"]).trim(), "1400");
    assert_eq!(inside(&["cat", "/proc/sys/net/ipv4/conf/data0/arp_ignore"]).trim(), "1");
    assert!(inside(&["ip", "route", "show", "table", "100"]).contains("default via 198.18.0.2 dev data0"));
    assert!(inside(&["ip", "rule"]).contains("from 198.18.0.1 lookup 100"));
    // The pod's own network is as it was.
    assert!(inside(&["ip", "route"]).contains("default via 10.244.0.1 dev eth0"));

    // Two more on the interface that claims share, each with an address of a range.
    let range = json!({"interfaceName": "share%d", "addressRanges": [{"subnet": "198.19.0.0/28"}]});
    env.template("shared", claim("shared", &range)).await;
    let mut addresses = BTreeSet::new();
    for name in ["one", "other"] {
        let main = Container::new("main", ["sleep", "1000000"]).claim("net");
        env.run(Pod::new(name).template("net", "shared").container(main)).await;
        let path = file_of_template();
        let claim = env.read(name, "main", &path)["metadata"]["name"].as_str().unwrap().to_owned();
        addresses.extend(check(&env, name, &claim, &path, "share0").await.addresses);
    }
    assert_eq!(addresses.len(), 2, "each has an address of its own");
    for address in &addresses {
        for pod in ["one", "other"] {
            reaches(&env, pod, "share0", address.split('/').next().unwrap()).await;
        }
    }
    for pod in ["left", "right", "one", "other"] {
        env.delete_pod(pod).await;
    }
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn containerd_restarts_while_pods_have_interfaces() {
    let env = TestEnv::new("net-restart").await;
    let driver = NetDriver::deploy(&env, 3).await;
    start(&env, "left", "198.18.0.1/24").await;
    start(&env, "right", "198.18.0.2/24").await;
    env.cluster.kill(Component::Containerd).unwrap();
    env.cluster.start(Component::Containerd).unwrap();
    reaches(&env, "left", "data0", "198.18.0.2").await;
    // The driver has found the new socket: a pod gets its interface.
    start(&env, "after", "198.18.0.3/24").await;
    reaches(&env, "after", "data0", "198.18.0.1").await;
    // containerd has forgotten the pods from before, and does not say when they stop.
    for pod in ["left", "right", "after"] {
        env.delete_pod(pod).await;
    }
    driver.clean_up(&env).await;
    env.clean_up().await;
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn the_driver_is_killed_and_updated_while_pods_have_interfaces() {
    let env = TestEnv::new("net-killed").await;
    let driver = NetDriver::deploy(&env, 4).await;
    start(&env, "left", "198.18.0.1/24").await;
    start(&env, "right", "198.18.0.2/24").await;
    assert_eq!(driver.restarts(&env).await, Some(0));
    kill_driver(&env);
    // While there is no driver, a pod is on its way: it does not start without its interface.
    env.claim("during", claim("data", &json!({"interfaceName": "data0", "addresses": ["198.18.0.3/24"]}))).await;
    env.create_pod(env.sleeper("during", "during")).await;
    env.eventually("the kubelet starts the driver again", async || (driver.restarts(&env).await? == 1).then_some(()))
        .await;
    check(&env, "during", "during", &file_of("during"), "data0").await;
    reaches(&env, "during", "data0", "198.18.0.1").await;
    reaches(&env, "left", "data0", "198.18.0.2").await;
    env.delete_pod("during").await;
    // A pod that stops while there is no driver takes its veth with it: the kernel gives back cards, and destroys virtual interfaces
    // with their namespace.
    driver.on_node(&env, 2).await;

    // Pods that start while the driver is replaced.
    let rolling = driver.apply(&env, "2");
    let pods = async {
        for (name, address) in [("rolling-0", "198.18.0.4"), ("rolling-1", "198.18.0.5")] {
            start(&env, name, &format!("{address}/24")).await;
            reaches(&env, name, "data0", "198.18.0.1").await;
        }
    };
    tokio::join!(rolling, pods);
    for pod in ["rolling-0", "rolling-1"] {
        env.delete_pod(pod).await;
    }
    driver.on_node(&env, 2).await;
    reaches(&env, "left", "data0", "198.18.0.2").await;
    check(&env, "left", "left", &file_of("left"), "data0").await;
    for pod in ["left", "right"] {
        env.delete_pod(pod).await;
    }
    driver.clean_up(&env).await;
    env.clean_up().await;
}

fn kill_driver(env: &TestEnv) {
    let process = rustix::process::Pid::from_raw(network_process(env)).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// Finds the driver's process by its command line and by the node's network, which it shares.
pub(crate) fn network_process(env: &TestEnv) -> i32 {
    let network = run(env.cluster.command("readlink").arg("/proc/self/ns/net")).unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        let is_of_this_node =
            std::fs::read_link(path.join("ns/net")).is_ok_and(|link| link == Path::new(network.trim()));
        if line.starts_with(b"/drakkar-net\0run\0") && is_of_this_node {
            found.push(pid);
        }
    }
    assert_eq!(found.len(), 1, "the driver runs once: {found:?}");
    found[0]
}

#[tokio::test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
async fn thirty_pods_at_once() {
    const PODS: usize = 30;
    let env = TestEnv::new("net-many").await;
    let driver = NetDriver::deploy(&env, PODS).await;
    let range = json!({"interfaceName": "data0", "addressRanges": [{"subnet": "198.18.0.0/24"}]});
    env.template("data", claim("data", &range)).await;
    // Prints what the kernel has and what the file says, each on a line.
    let path = file_of_template();
    let script = format!("ip -4 -o address show dev data0 && tr -d '\\n' <{path} && echo && exec sleep 1000000");
    let started = std::time::Instant::now();
    for number in 0..PODS {
        let main = Container::new("main", ["sh", "-c", &script]).claim("net");
        env.create_pod(Pod::new(&format!("pod-{number}")).template("net", "data").container(main)).await;
    }
    let pods = format!("/api/v1/namespaces/{}/pods", env.namespace);
    env.eventually_within(MANY_TIMEOUT, "all pods run", async || {
        let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
        env.list(&pods).await.iter().all(is_running).then_some(())
    })
    .await;
    eprintln!("{PODS} pods with an interface each run after {:.1?}", started.elapsed());
    let mut addresses = BTreeSet::new();
    let mut devices = BTreeSet::new();
    for number in 0..PODS {
        let log = env.log(&format!("pod-{number}"), "main");
        let mut lines = log.lines();
        let kernel = lines.next().unwrap().split_whitespace().nth(3).unwrap();
        let file: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let device = &file["requests"][0]["devices"][0];
        assert_eq!(device["networkData"]["ips"], json!([kernel]), "{log}");
        assert_eq!(device["networkData"]["interfaceName"], "data0");
        addresses.insert(kernel.to_owned());
        devices.insert(device["name"].as_str().unwrap().to_owned());
    }
    assert_eq!((addresses.len(), devices.len()), (PODS, PODS), "each has an address and a device of its own");
    env.delete(&pods).await;
    env.eventually_within(MANY_TIMEOUT, "all pods are gone", async || env.list(&pods).await.is_empty().then_some(()))
        .await;
    driver.clean_up(&env).await;
    env.clean_up().await;
}
