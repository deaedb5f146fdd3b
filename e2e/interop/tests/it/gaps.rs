//! Cases that the Go driver fails, each as docs/go-gaps.md describes. The table in README.md lists them.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually, device_class};
use serde_json::json;

use crate::cluster::{
    CLAIMS, DRIVER, SLEEP, attributes, entries, first_document, host_file, is_alive, node_with, node_with_metadata,
    one_device, path, pod, read, running, spawn, two_requests, update_metadata, wait_until_up,
};
use crate::support::program;

/// The file is at the released path only, not at the KEP's.
#[tokio::test(flavor = "multi_thread")]
async fn the_path_of_the_kep_does_not_exist() {
    let Some((node, _driver)) = node_with_metadata().await else { return };
    let pod = running(&node, one_device()).await;
    assert!(read(&pod, "main", &path("gpu")).await.is_some());
    assert_eq!(entries(&pod, "main", "/var/run/dra-device-attributes").await, Vec::<String>::new());
}

/// G3: the name of the DRA socket is never shortened.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_name_and_a_rolling_update_do_not_start() {
    if program().is_none() {
        return;
    }
    let node = Node::start().await.unwrap();
    let name = format!("{}.example.com", "gpu".repeat(17));
    let mut driver = spawn(&node, &name, &["--pod-uid", "11111111-0000-4000-8000-000000000000"]);
    assert!(!driver.wait().await.unwrap().success());
    let log = driver.log().unwrap();
    assert!(log.contains("dra-11111111-0000-4000-8000-000000000000.sock: bind: invalid argument"), "{log}");
}

/// G4: the sockets of an instance that was killed stay.
#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_a_killed_instance_stay() {
    let Some((node, driver)) = node_with(&["--pod-uid", "11111111-0000-4000-8000-000000000000"]).await else { return };
    driver.kill().await.unwrap();
    let driver = spawn(&node, DRIVER, &["--pod-uid", "22222222-0000-4000-8000-000000000000"]);
    assert_eventually!(node.registered().await.len() == 2, "{:?}", driver.log());
    let old = node.sockets().unwrap().into_iter().filter(|socket| socket.contains("11111111")).count();
    assert_eq!(old, 2, "{:?}", node.sockets());
}

/// G7, G8: a second instance replaces the sockets of a running one, and the first removes those of the second when it stops.
#[tokio::test(flavor = "multi_thread")]
async fn two_instances_take_each_others_sockets() {
    let Some((node, first)) = node_with(&[]).await else { return };
    let socket = node.kubelet_root().join(format!("plugins_registry/{DRIVER}-reg.sock"));
    let inode = || std::fs::metadata(&socket).map(|file| file.ino()).ok();
    let of_first = inode();
    let second = spawn(&node, DRIVER, &[]);
    assert_eventually!(inode().is_some_and(|inode| Some(inode) != of_first), "{:?}", second.log());
    assert!(is_alive(&first), "the first instance still runs");
    first.terminate().await.unwrap();
    assert_eventually!(node.sockets().unwrap().is_empty(), "{:?}", node.sockets());
    assert!(is_alive(&second), "the second instance still runs, but is unreachable");
}

/// G14: a panic in the driver's code ends the process.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_the_driver() {
    let Some((node, mut driver)) = node_with(&["--panic-for", "my-claim"]).await else { return };
    node.create(one_device().claim("my-claim")).await.unwrap();
    node.create_pod(pod("pod")).await.unwrap();
    assert!(!driver.wait().await.unwrap().success());
    let log = driver.log().unwrap();
    assert!(log.contains("panic requested for claim my-claim"), "{log}");
}

/// G22: a file that cannot be written is only logged, and the pod starts without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_without_its_metadata() {
    let Some((node, driver)) = node_with_metadata().await else { return };
    // A file at the path where the framework creates a directory.
    std::fs::write(node.kubelet_root().join("plugins").join(DRIVER).join("dra-device-metadata"), "").unwrap();
    let pod = running(&node, one_device()).await;
    assert_eq!(read(&pod, "main", &path("gpu")).await, None);
    assert!(driver.log().unwrap().contains("not a directory"), "{:?}", driver.log());
}

/// G23: a device without requests is for all of them, and has no metadata.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_for_all_requests_has_no_metadata() {
    let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--requests", "none"]).await else { return };
    let pod = running(&node, one_device()).await;
    assert_eq!(read(&pod, "main", &path("gpu")).await, None);
}

/// G25: if a device is for two requests, a container that references one of them also sees the file of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_sees_a_request_that_it_does_not_reference() {
    let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--requests", "every"]).await else { return };
    node.create(two_requests().claim("my-claim")).await.unwrap();
    let main = Container::new("main", SLEEP).request("devices", "first");
    let pod = node.create_pod(Pod::new("pod").claim("devices", "my-claim").container(main)).await.unwrap();
    pod.running().await.unwrap();
    assert_eq!(entries(&pod, "main", &format!("{CLAIMS}/my-claim")).await, ["first", "second"]);
}

/// G26, G30: a running container never sees an update; when the claim is prepared again, for another pod after a restart of
/// the kubelet, the update is lost and the generation is 1 again.
#[tokio::test(flavor = "multi_thread")]
async fn updates_are_not_seen_and_then_lost() {
    let Some((node, driver)) = node_with_metadata().await else { return };
    let first = running(&node, one_device()).await;
    let on_host = || first_document(&std::fs::read(host_file(&node, "gpu")).unwrap()).unwrap();
    update_metadata(&driver);
    assert_eventually!(on_host()["metadata"]["generation"] == 2, "{}", on_host());
    assert_eq!(attributes(&on_host())["updated"]["bool"], true);
    let seen = read(&first, "main", &path("gpu")).await.expect("the file");
    assert_eq!(seen["metadata"]["generation"], 1, "G30: the bind mount is of the replaced inode");

    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    let second = node.create_pod(pod("second")).await.unwrap();
    second.running().await.unwrap();
    let seen = read(&second, "main", &path("gpu")).await.expect("the file");
    assert_eq!((&seen["metadata"]["generation"], &attributes(&seen)["updated"]), (&json!(1), &json!(null)));
}

/// G31: leftovers of a crash are never removed.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_crash_stay() {
    if program().is_none() {
        return;
    }
    let node = Node::start().await.unwrap();
    let metadata = node.kubelet_root().join("plugins").join(DRIVER).join("dra-device-metadata/default_gone/gpu");
    let uid = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";
    let spec = node.cdi_directory().join(format!("{DRIVER}_metadata_{uid}_gpu.json"));
    std::fs::create_dir_all(&metadata).unwrap();
    std::fs::create_dir_all(node.cdi_directory()).unwrap();
    std::fs::write(metadata.join("metadata.json"), "{}").unwrap();
    std::fs::write(
        &spec,
        json!({"cdiVersion": "0.5.0", "kind": format!("{DRIVER}/metadata"), "devices": []}).to_string(),
    )
    .unwrap();
    let driver = spawn(&node, DRIVER, &["--enable-device-metadata"]);
    wait_until_up(&node, &driver).await;
    assert!(driver.terminate().await.unwrap().success());
    assert!(metadata.join("metadata.json").exists() && spec.exists());
}

/// G33: the annotation with the pod claim name controls where the file is mounted.
#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_controls_the_mount_path() {
    let Some((node, _driver)) = node_with_metadata().await else { return };
    let mut claim = one_device().claim("my-claim");
    claim["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": "../../elsewhere"});
    node.create(claim).await.unwrap();
    let pod = node.create_pod(pod("pod")).await.unwrap();
    pod.running().await.unwrap();
    assert_eq!(entries(&pod, "main", "/var/run/kubernetes.io/elsewhere").await, ["gpu"]);
}

/// G34: metadata that fails the library's own validation is written.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_metadata_is_written() {
    let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--attributes", "33"]).await else { return };
    let pod = running(&node, one_device()).await;
    let file = pod.exec("main", ["cat", &path("gpu")]).await.unwrap().stdout;
    let decoded = drakkar_metadata::decode(&file).unwrap();
    let error = drakkar_metadata::validate(&decoded.metadata).unwrap_err().to_string();
    assert!(error.contains("attributes"), "{error}");
}

/// G35: a driver name that starts with a digit is not a valid CDI vendor, so no container gets its device.
#[tokio::test(flavor = "multi_thread")]
async fn containers_fail_with_a_name_that_starts_with_a_digit() {
    if program().is_none() {
        return;
    }
    let name = "9gpu.example.com";
    let node = Node::start().await.unwrap();
    node.create(device_class(name)).await.unwrap();
    let _driver = spawn(&node, name, &["--enable-device-metadata"]);
    node.wait_published(name).await.unwrap();
    node.create(ClaimSpec::default().request("gpu", name, 1).claim("my-claim")).await.unwrap();
    let pod = node.create_pod(pod("pod")).await.unwrap();
    let error = pod.with_timeout(Duration::from_secs(10)).running().await.unwrap_err().to_string();
    assert!(error.contains("CDI") && error.contains(name), "{error}");
}

/// G47: slices that a kubelet deletes at its start are published again only after half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_slices_are_published_late() {
    let Some((node, driver)) = node_with(&[]).await else { return };
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    assert_eventually!(node.slices(DRIVER).await.unwrap().is_empty());
    let wiped = Instant::now();
    assert_eventually!(within Duration::from_secs(90), !node.slices(DRIVER).await.unwrap().is_empty(), "{:?}", driver.log());
    assert!(wiped.elapsed() > Duration::from_secs(25), "already after {:?}", wiped.elapsed());
}
