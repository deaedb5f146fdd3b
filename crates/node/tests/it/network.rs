//! The networks of pods.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use drakkar_netlink::{Connection, LinkKind, Namespace};
use drakkar_node::nri::{self, PodNetwork};
use drakkar_node::{Container, Isolation, Node, Pod, PodHandle, assert_eventually};
use rstest::rstest;

use crate::support::plugin::Plugin;
use crate::support::{node_in, skip, sleeper};

/// Set for the process that the last test kills.
const KILLED: &str = "DRAKKAR_NODE_TEST_KILLED";

async fn read(pod: &PodHandle<'_>, container: &str, file: &str) -> String {
    let output = pod.exec(container, ["cat", file]).await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn the_containers_of_a_pod_share_a_network_and_no_two_pods_do(#[case] isolation: Isolation) {
    let Some(node) = node_in(isolation, nri::Config::default()).await else { return };
    let run = |name| {
        let pod = Pod::new(name).container(Container::new("a", ["sleep", "infinity"]));
        node.create_pod(pod.container(Container::new("b", ["sleep", "infinity"])))
    };
    let (first, second) = (run("first").await.unwrap(), run("second").await.unwrap());
    let mut networks = Vec::new();
    for pod in [&first, &second] {
        pod.running().await.unwrap();
        for container in ["a", "b"] {
            let output = pod.exec(container, ["readlink", "/proc/self/ns/net"]).await.unwrap();
            networks.push(String::from_utf8(output.stdout).unwrap());
        }
        let sandbox = pod.sandbox().unwrap();
        let interfaces = read(pod, "a", "/proc/net/dev").await;
        let names: Vec<&str> = interfaces.lines().skip(2).filter_map(|line| line.trim().split(':').next()).collect();
        assert!(names.contains(&"lo") && names.contains(&"eth0"), "{interfaces}");
        let addresses = read(pod, "a", "/proc/net/fib_trie").await;
        assert!(addresses.contains(&format!("|-- {}\n", sandbox.ips[0])), "{addresses}");
        let routes = read(pod, "a", "/proc/net/route").await;
        assert!(routes.lines().any(|line| line.starts_with("eth0\t00000000\t0100550A")), "{routes}");
        let object = pod.object().await.unwrap().unwrap();
        assert_eq!(object.status.unwrap().pod_ip.as_ref(), Some(&sandbox.ips[0]));
    }
    assert!(networks[0] == networks[1] && networks[2] == networks[3] && networks[0] != networks[2], "{networks:?}");
    let host = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(networks[0].trim(), host.to_str().unwrap());
    assert_ne!(first.sandbox().unwrap().ips, second.sandbox().unwrap().ips);
}

#[tokio::test]
async fn pods_reach_each_other_and_the_path_is_what_drivers_open() {
    let Some(node) = node_in(Isolation::Root, nri::Config::default()).await else { return };
    let (first, second) =
        (node.create_pod(sleeper("first")).await.unwrap(), node.create_pod(sleeper("second")).await.unwrap());
    let mut namespaces = Vec::new();
    for pod in [&first, &second] {
        pod.running().await.unwrap();
        namespaces.push(Namespace::open(pod.sandbox().unwrap().network.unwrap()).unwrap());
    }
    let mut links = Connection::open(&namespaces[0]).unwrap();
    let eth0 = links.link_by_name("eth0").unwrap().unwrap();
    assert!(matches!(eth0.kind, LinkKind::Veth), "{eth0:?}");
    let address = first.sandbox().unwrap().ips[0].clone();
    assert_eq!(links.addresses_of(eth0.index).unwrap()[0].address.to_string(), format!("{address}/20"));
    let listener = namespaces[0].run(|| TcpListener::bind((address.as_str(), 7000))).unwrap().unwrap();
    let mut sent = namespaces[1].run(|| TcpStream::connect((address.as_str(), 7000))).unwrap().unwrap();
    sent.write_all(b"hello").unwrap();
    drop(sent);
    let mut received = String::new();
    let (mut connection, peer) = listener.accept().unwrap();
    connection.read_to_string(&mut received).unwrap();
    assert_eq!((received.as_str(), peer.ip().to_string()), ("hello", second.sandbox().unwrap().ips[0].clone()));
}

#[rstest]
#[case(Isolation::Root)]
#[case(Isolation::UserNamespace)]
#[tokio::test]
async fn without_a_bridge_a_pod_has_only_its_loopback_interface_which_is_up(#[case] isolation: Isolation) {
    let config = nri::Config::default().pod_network(PodNetwork::Loopback);
    let Some(node) = node_in(isolation, config).await else { return };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    let interfaces = read(&pod, "main", "/proc/net/dev").await;
    assert!(!interfaces.contains("eth0"), "{interfaces}");
    let addresses = read(&pod, "main", "/proc/net/fib_trie").await;
    assert!(addresses.contains("|-- 127.0.0.1\n"), "the loopback interface is up: {addresses}");
    assert_eq!(pod.sandbox().unwrap().ips, Vec::<String>::new());
}

#[tokio::test]
async fn addresses_of_pods_that_are_gone_are_used_again() {
    let network = PodNetwork::Bridge { gateway: [10, 9, 8, 1].into(), prefix: 30 };
    let Some(node) = node_in(Isolation::Auto, nri::Config::default().pod_network(network)).await else { return };
    for name in ["first", "second"] {
        let pod = node.create_pod(sleeper(name)).await.unwrap();
        pod.running().await.unwrap();
        assert_eq!(pod.sandbox().unwrap().ips, ["10.9.8.2"]);
        pod.delete().await.unwrap();
    }
    let pod = node.create_pod(sleeper("first")).await.unwrap();
    pod.running().await.unwrap();
    let refused = node.create_pod(sleeper("second")).await.unwrap();
    assert_eventually!(!refused.events().await.unwrap().is_empty());
    let events = refused.events().await.unwrap();
    assert!(events[0].ends_with("set up the network: no address is free for the pod"), "{events:?}");
    pod.delete().await.unwrap();
    refused.running().await.unwrap();
}

/// Returns the mounts of this machine below a directory.
fn mounts(directory: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(directory.to_str().unwrap())).map(str::to_owned).collect()
}

#[rstest]
#[case(true)]
#[case(false)]
#[tokio::test]
async fn a_node_that_ends_leaves_no_mount_and_no_file(#[case] gracefully: bool) {
    let Some(node) = node_in(Isolation::Auto, nri::Config::default()).await else { return };
    let directory = node.directory().to_owned();
    let _plugin = Plugin::new("10", "demo").connect(node.nri().unwrap().socket()).await;
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    if gracefully {
        node.stop().await.unwrap();
    } else {
        drop(node);
    }
    assert_eventually!(!directory.exists());
    assert_eq!(mounts(&directory), Vec::<String>::new());
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_no_mount() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root's networks are mounted");
        return;
    }
    if node_in(Isolation::Root, nri::Config::default()).await.is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "network::the_process_that_is_killed", "--nocapture"])
        .env(KILLED, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let directory = lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("directory ")?.to_owned()));
    let directory = std::path::PathBuf::from(directory.unwrap());
    assert!(!mounts(&directory).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eventually!(mounts(&directory).is_empty());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Not a test by itself: the process of the test above.
#[tokio::test]
async fn the_process_that_is_killed() {
    if std::env::var_os(KILLED).is_none() {
        return;
    }
    let Some(node): Option<Node> = node_in(Isolation::Root, nri::Config::default()).await else {
        return skip("no node").unwrap_or_default();
    };
    let pod = node.create_pod(sleeper("web")).await.unwrap();
    pod.running().await.unwrap();
    println!("directory {}", node.directory().display());
    std::future::pending::<()>().await;
}
