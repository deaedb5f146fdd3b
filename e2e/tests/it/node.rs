//! The node itself: its components, its files, and programs that tests start in it.

use drakkar_e2e::{Cluster, ClusterPaths, Component, run};

fn cluster() -> Cluster {
    Cluster::attach(ClusterPaths::of_checkout().unwrap()).expect("a cluster started by `cargo xtask e2e up`")
}

#[test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
fn components_can_be_killed_and_started_while_pods_keep_running() {
    let cluster = cluster();
    let kubectl = |arguments: &[&str]| run(cluster.kubectl().args(arguments)).unwrap();
    let image = format!("--image={}", Cluster::BUSYBOX_IMAGE);
    // A unique name, so that a leftover of an aborted run does not conflict.
    let name = format!("survivor-{}", std::process::id());
    let pod = format!("pod/{name}");
    kubectl(&["run", &name, &image, "--restart=Never", "--", "sleep", "1000000"]);
    kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"]);

    for component in Component::ALL {
        cluster.kill(component).unwrap();
        assert!(!cluster.is_running(component).unwrap(), "{component}");
        cluster.start(component).unwrap();
        assert!(cluster.is_running(component).unwrap(), "{component}");
    }
    cluster.stop(Component::Kubelet).unwrap();
    cluster.start(Component::Kubelet).unwrap();

    kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"]);
    let restarts = kubectl(&["get", &pod, "--output=jsonpath={.status.containerStatuses[0].restartCount}"]);
    assert_eq!(restarts, "0");
    kubectl(&["delete", &pod, "--grace-period=1"]);
}

#[test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
fn the_node_has_its_own_files_name_and_network() {
    let cluster = cluster();
    let inside = |program: &str, arguments: &[&str]| run(cluster.command(program).args(arguments)).unwrap();
    assert_eq!(inside("uname", &["--nodename"]).trim(), cluster.node());
    assert!(!inside("ip", &["-oneline", "link"]).contains("dke2e"), "the host's end of the link is in the node");

    inside("touch", &["/var/lib/kubelet/visible-on-host"]);
    let outside = cluster.host_path("/var/lib/kubelet/visible-on-host");
    assert!(outside.exists(), "{}", outside.display());
    assert_eq!(outside.parent().unwrap(), cluster.kubelet_root());
    std::fs::remove_file(outside).unwrap();
    assert!(cluster.cdi_directory().is_dir());
    assert!(std::os::unix::net::UnixStream::connect(cluster.containerd_socket()).is_ok(), "containerd does not listen");
}

#[test]
#[ignore = "needs a real cluster: cargo xtask e2e"]
fn a_daemon_in_the_node_is_stopped_alone() {
    let cluster = cluster();
    let sleep = |name: &str| cluster.spawn(name, &["sleep", "1000000"].map(str::to_owned)).unwrap();
    let one = sleep("one");
    let other = sleep("other");
    one.kill().unwrap();
    assert!(!one.is_running().unwrap() && other.is_running().unwrap());
    other.stop().unwrap();
    assert!(!other.is_running().unwrap());
}
