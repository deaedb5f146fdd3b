//! The examples of `examples/net-*`, from their YAML files.
//!
//! Those whose kinds of interfaces every kernel has run here, in network namespaces. A dummy and a virtual function need
//! the virtual machine of `cargo xtask vm`; of all of them, the files are checked with the driver's own parsers and the rules of
//! the API server.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use drakkar_net::Config;
use drakkar_net::claim_config::check_document;
use drakkar_netlink::Namespace;
use drakkar_node::{Node, assert_eventually};
use serde_json::{Value, json};

use super::program::{Bench, file, ip, link_in, network_data, text};

const EXAMPLES: [&str; 4] = ["net-dpdk", "net-dummy", "net-shared-macvlan", "net-two-networks"];

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_are_valid() {
    for example in EXAMPLES {
        let config = Config::from_file(&file(example, "config.yaml"));
        config.unwrap_or_else(|error| panic!("{example}: {error}"));
        for name in ["class.yaml", "claim.yaml"] {
            for document in documents(&text(example, name)) {
                let checked = check_document(&document).unwrap();
                assert_eq!(checked.errors, [], "{example}/{name}");
            }
        }
        // As an API server sees them. What is not known to it is refused.
        let node = Node::builder().without_kubelet().start().await.unwrap();
        for name in ["class.yaml", "claim.yaml", "pod.yaml"] {
            let applied = node.apply(&text(example, name)).await;
            applied.unwrap_or_else(|error| panic!("{example}/{name}: {error}"));
        }
        let readme = text(example, "README.md");
        for name in ["config.yaml", "class.yaml", "claim.yaml", "pod.yaml"] {
            assert!(readme.contains(&format!("[{name}]({name})")), "{example}: the README does not name {name}");
        }
    }
}

/// The pods of an example, whose containers have no images here: the commands are those of the host.
fn pods(example: &str) -> Vec<Value> {
    let mut pods = documents(&text(example, "pod.yaml"));
    for pod in &mut pods {
        pod["metadata"]["namespace"] = "default".into();
    }
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_share_a_macvlan_parent() {
    let example = "net-shared-macvlan";
    let interfaces = "ip link add fabric0 type veth peer name switch0\nip link set switch0 up";
    let Some(bench) = Bench::start(&file(example, "config.yaml"), interfaces).await else { return };
    for name in ["class.yaml", "claim.yaml"] {
        bench.node.apply(&text(example, name)).await.unwrap();
    }
    let mut running = Vec::new();
    for pod in pods(example) {
        let pod = bench.node.create_pod(pod).await.unwrap();
        bench.expect(pod.running().await);
        running.push(pod);
    }
    let mut addresses = Vec::new();
    for pod in &running {
        let link = link_in(pod, "fabric");
        let data = network_data(pod, "resourceclaimtemplates/net/link").await;
        let address = &link["addr_info"][0];
        let cidr = format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]);
        assert_eq!(data, json!({"interfaceName": "fabric", "ips": [cidr], "hardwareAddress": link["address"]}));
        let last: u8 = address["local"].as_str().unwrap().rsplit('.').next().unwrap().parse().unwrap();
        assert!((64..=127).contains(&last), "{address}");
        let routes = ip(pod.process("main").unwrap(), &["route", "show", "dev", "fabric"]);
        assert!(
            routes.iter().any(|route| route["dst"] == "203.0.113.0/24" && route["gateway"] == "198.51.100.1"),
            "{routes:?}"
        );
        addresses.push(address["local"].as_str().unwrap().to_owned());
    }
    assert_ne!(addresses[0], addresses[1]);
    ping(&running[0], &addresses[1]).await;
    ping(&running[1], &addresses[0]).await;
    assert!(bench.names().contains(&"fabric0".to_owned()), "the parent stays on the node");
    for pod in running {
        pod.delete().await.unwrap();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_an_interface_of_each_of_two_networks() {
    let example = "net-two-networks";
    let interfaces = "
        ip link add data0 type veth peer name switch0
        ip link set data0 alias rack-7
        ip link set switch0 up
        ip address add 192.0.2.1/24 dev switch0
        ip link add storage0 type veth peer name switch1
        ip link set switch1 up";
    let Some(bench) = Bench::start(&file(example, "config.yaml"), interfaces).await else { return };
    for name in ["class.yaml", "claim.yaml"] {
        bench.node.apply(&text(example, name)).await.unwrap();
    }
    let before = bench.ip(&["link", "show", "dev", "data0"]);
    let [pod] = &pods(example)[..] else { panic!("one pod") };
    let pod = bench.node.create_pod(pod.clone()).await.unwrap();
    bench.expect(pod.running().await);

    let data = network_data(&pod, "resourceclaims/networks/data").await;
    assert_eq!(
        data,
        json!({"interfaceName": "data", "ips": ["192.0.2.10/24"], "hardwareAddress": "02:00:5e:10:00:01"})
    );
    let storage = network_data(&pod, "resourceclaims/networks/storage").await;
    assert_eq!(storage["hardwareAddress"], link_in(&pod, "storage")["address"]);
    let process = pod.process("main").unwrap();
    let table = ip(process, &["route", "show", "table", "100"]);
    assert!(table.iter().any(|route| route["dst"] == "default" && route["gateway"] == "192.0.2.1"), "{table:?}");
    let rules = ip(process, &["rule"]);
    assert!(rules.iter().any(|rule| rule["src"] == "192.0.2.10" && rule["priority"] == 1000), "{rules:?}");
    ping(&pod, "192.0.2.1").await;
    // The second container sees the metadata of its request alone, and both interfaces.
    let files = "find /var/run/kubernetes.io/dra-device-attributes -name '*-metadata.json' | wc -l; ls /sys/class/net >/dev/null";
    let count = async |container: &str| {
        let output = pod.exec(container, ["sh", "-c", files]).await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!((count("main").await.as_str(), count("backup").await.as_str()), ("2", "1"));
    assert!(!bench.names().contains(&"data0".to_owned()), "it is in the pod");
    let claim = &bench.node.claims().await.unwrap()[0];
    let status = serde_json::to_value(claim.status.as_ref().unwrap()).unwrap();
    assert_eq!(status["devices"].as_array().unwrap().len(), 2, "{status}");

    pod.delete().await.unwrap();
    assert_eventually!(bench.names().contains(&"data0".to_owned()));
    let back = bench.ip(&["link", "show", "dev", "data0"]);
    for field in ["ifname", "ifindex", "address", "mtu", "ifalias"] {
        assert_eq!(back[0][field], before[0][field], "{field}");
    }
    bench.stop().await;
}

/// Waits until a pod reaches an address: whoever has it refuses the connection.
async fn ping(pod: &drakkar_node::PodHandle<'_>, address: &str) {
    let path = format!("/proc/{}/ns/net", pod.process("main").unwrap());
    let peer: SocketAddr = format!("{address}:9").parse().unwrap();
    let is_reached = move || {
        let connect = || TcpStream::connect_timeout(&peer, Duration::from_secs(2));
        let connected = Namespace::open(&path).unwrap().run(connect).unwrap();
        connected.map_or_else(|error| error.kind() == ErrorKind::ConnectionRefused, |_| true)
    };
    assert_eventually!(tokio::task::spawn_blocking(is_reached.clone()).await.unwrap());
}
