//! Tests of what driver authors do with a node in their tests.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use drakkar_node::api::Filter;
use drakkar_node::{ClaimSpec, Container, Node, NodeError, Pod, assert_eventually};
use drakkar_plugin::DeviceMetadata;
use futures::future::join_all;

use crate::support::{DRIVER, TestDriver, from_environment, kep_path, plugin, publish, read};

/// Returns an OCI runtime of this machine; prints a message if there is none.
pub fn oci_runtime() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let found = find("crun").or_else(|| find("runc")).filter(|_| is_root);
    if found.is_none() {
        eprintln!("skipped: needs crun or runc, and root");
    }
    found
}

fn driver() -> TestDriver {
    TestDriver::with_metadata(|name| Some(DeviceMetadata::default().attribute("model", name)))
}

fn claim() -> serde_json::Value {
    ClaimSpec::default().request("gpu", DRIVER, 1).claim("my-claim")
}

fn pod(name: &str) -> Pod {
    Pod::new(name).claim("gpus", "my-claim").container(Container::new("main", ["sleep", "infinity"]).claim("gpus"))
}

/// Nodes share nothing: no port, no directory, no name. `DRAKKAR_CHAOS_NODES` sets the number of nodes.
#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_in_one_process() {
    let count = from_environment("DRAKKAR_CHAOS_NODES", 20);
    let nodes = join_all((0..count).map(|_| async {
        let node = Node::start().await.unwrap();
        let helper = plugin(&node).device_metadata(true).start(driver()).await.unwrap();
        publish(&node, &["gpu-0"]).await;
        node.create(claim()).await.unwrap();
        node.create_pod(pod("pod")).await.unwrap();
        (node, helper)
    }))
    .await;
    let directories: Vec<_> = nodes.iter().map(|(node, _)| node.directory().to_owned()).collect();
    for (node, _) in &nodes {
        let pod = node.pod("default", "pod").await.unwrap();
        pod.running().await.unwrap();
        assert!(read(&pod, "main", &kep_path("my-claim", "gpu")).await.is_some());
    }
    for (node, helper) in nodes {
        node.pod("default", "pod").await.unwrap().delete().await.unwrap();
        helper.stop().await.unwrap();
        node.stop().await.unwrap();
    }
    assert!(directories.iter().all(|directory| !directory.exists()));
}

/// Objects can be created from YAML, and errors name the problem.
#[tokio::test(flavor = "multi_thread")]
async fn objects_from_yaml() {
    let node = Node::start().await.unwrap();
    let created = node
        .apply(
            "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\nspec: {}\n---\n---\n\
             apiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n",
        )
        .await
        .unwrap();
    assert_eq!(created.len(), 2);
    for (yaml, message) in [
        ("kind: Pod", "apiVersion or kind is missing"),
        ("{", "YAML"),
        ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: UPPER}\nspec: {}", "UPPER"),
    ] {
        let error = node.apply(yaml).await.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The kubelet may be restarted at any time: containers keep running, and claims are prepared again for new pods.
#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_restarts() {
    let node = Node::start().await.unwrap();
    let driver = driver();
    let _helper = plugin(&node).device_metadata(true).start(driver.clone()).await.unwrap();
    publish(&node, &["gpu-0"]).await;
    node.create(claim()).await.unwrap();
    let first = node.create_pod(pod("first")).await.unwrap();
    first.running().await.unwrap();
    let process = first.process("main");

    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(first.process("main"), process, "the container keeps running");
    let second = node.create_pod(pod("second")).await.unwrap();
    second.running().await.unwrap();
    assert_eq!(*driver.calls.lock().unwrap(), ["prepare my-claim", "prepare my-claim"]);
    first.delete().await.unwrap();
    assert!(read(&second, "main", &kep_path("my-claim", "gpu")).await.is_some(), "the claim is still in use");
    second.delete().await.unwrap();
    assert_eq!(driver.calls.lock().unwrap().last().unwrap(), "unprepare my-claim");
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty());
}

/// A kubelet deletes all slices of its node when it starts, but none that is published after that.
#[tokio::test(flavor = "multi_thread")]
async fn slices_published_after_the_start_of_a_kubelet_stay() {
    let node = Node::start().await.unwrap();
    node.publish(DRIVER, &["gpu-0"]).await.unwrap();
    node.stop_kubelet().await;
    node.api().clear_requests();
    node.api().faults().delay(Filter::any().verb("deletecollection"), Duration::from_millis(200));
    node.start_kubelet().await.unwrap();
    node.publish(DRIVER, &["gpu-1"]).await.unwrap();
    assert_eventually!(node.api().requests().iter().any(|request| request.verb == "deletecollection"));
    let slices = node.slices(DRIVER).await.unwrap();
    let devices: Vec<_> = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).collect();
    assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["gpu-1"]);
}

/// A reboot removes the CDI specs; pods are started again, and have their metadata.
#[tokio::test(flavor = "multi_thread")]
async fn the_machine_reboots() {
    let node = Node::start().await.unwrap();
    let helper = plugin(&node).device_metadata(true).start(driver()).await.unwrap();
    publish(&node, &["gpu-0"]).await;
    node.create(claim()).await.unwrap();
    let pod = node.create_pod(pod("pod").restart_policy("Always")).await.unwrap();
    pod.running().await.unwrap();
    let process = pod.process("main");
    drop(helper);
    node.reboot().await.unwrap();
    let _helper = plugin(&node).device_metadata(true).start(driver()).await.unwrap();
    assert_eventually!(pod.process("main").is_some_and(|again| Some(again) != process));
    assert!(read(&pod, "main", &kep_path("my-claim", "gpu")).await.is_some());
}

/// The error of a wait for a pod has the reason why the pod does not run.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_an_unschedulable_pod_fails_with_the_reason() {
    let node = Node::start().await.unwrap();
    node.create(drakkar_node::device_class(DRIVER)).await.unwrap();
    node.create(claim()).await.unwrap();
    let pod = node.create_pod(pod("pod")).await.unwrap();
    let has_condition = |pod: Option<k8s_openapi::api::core::v1::Pod>| {
        pod.and_then(|pod| pod.status?.conditions).is_some_and(|conditions| !conditions.is_empty())
    };
    assert_eventually!(has_condition(pod.object().await.unwrap()));
    let pod = pod.with_timeout(Duration::from_millis(1));
    let Err(error @ NodeError::Pod { .. }) = pod.running().await else { panic!("the pod runs") };
    let message = error.to_string();
    assert!(message.contains("PodScheduled is False"), "{message}");
}

/// A driver process gets the node in environment variables, and is terminated with all processes that it has started.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_process_gets_the_node_in_its_environment() {
    let node = Node::start().await.unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo $NODE_NAME $KUBELET_ROOT_DIR $CDI_DIR; test -s $KUBECONFIG && echo ok; sleep 60"]);
    let driver = node.spawn("a.example.com", command).unwrap();
    let expected = format!("node-1 {} {}\nok\n", node.kubelet_root().display(), node.cdi_directory().display());
    assert_eventually!(driver.log().unwrap() == expected, "{:?}", driver.log());
    assert!(!driver.terminate().await.unwrap().success());
}
