//! A driver on Kubernetes' own framework behaves on the embedded node as on a real one: the cases of KEP-5304's test plan that
//! it should pass, and the lifecycle of a driver. They verify the embedded node, since the driver is known to be correct.

use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually};
use serde_json::json;

use crate::cluster::{
    CLAIMS, DRIVER, SLEEP, TEMPLATES, attributes, entries, first_document, host_file, node_with, node_with_metadata,
    one_device, path, pod, read, running, spawn, two_requests, update_metadata, wait_until_up,
};

/// The KEP's cases, under its own names.
mod kep {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn end_to_end_attribute_exposure() {
        let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--attributes", "1"]).await else { return };
        let pod = running(&node, one_device()).await;
        let file = read(&pod, "main", &path("gpu")).await.expect("the file");
        let expected = json!({
            "resource.kubernetes.io/pciBusID": {"string": "0000:03:00.0"}, "index": {"int": 0}, "more0": {"bool": true},
            "model": {"string": "LATEST-GPU-MODEL"}, "driverVersion": {"version": "1.0.0"},
        });
        assert_eq!(attributes(&file), &expected);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn multiple_requests() {
        let Some((node, _driver)) = node_with_metadata().await else { return };
        let pod = running(&node, two_requests()).await;
        assert_eq!(entries(&pod, "main", &format!("{CLAIMS}/my-claim")).await, ["first", "second"]);
        for (request, device) in [("first", "gpu-0"), ("second", "gpu-1")] {
            let file = read(&pod, "main", &path(request)).await.expect("the file");
            assert_eq!(file["requests"].as_array().unwrap().len(), 1, "{file}");
            assert_eq!(file["requests"][0]["name"], request);
            assert_eq!(file["requests"][0]["devices"][0]["name"], device);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn container_isolation() {
        let Some((node, _driver)) = node_with_metadata().await else { return };
        node.create(two_requests().template("template")).await.unwrap();
        let pod = Pod::new("pod")
            .template("devices", "template")
            .container(Container::new("a", SLEEP).request("devices", "first"))
            .container(Container::new("b", SLEEP).request("devices", "second"))
            .container(Container::new("both", SLEEP).claim("devices"))
            .container(Container::new("none", SLEEP));
        let pod = node.create_pod(pod).await.unwrap();
        pod.running().await.unwrap();
        let of_template = format!("{TEMPLATES}/devices");
        for (container, sees) in
            [("a", vec!["first"]), ("b", vec!["second"]), ("both", vec!["first", "second"]), ("none", vec![])]
        {
            assert_eq!(entries(&pod, container, &of_template).await, sees, "container {container}");
        }
        let write = format!("echo x > {of_template}/first/{DRIVER}-metadata.json");
        let refused = pod.exec("a", ["sh", "-c", &write]).await.unwrap();
        assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only file system"), "{refused:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn empty_metadata() {
        let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--attributes", "-1"]).await else {
            return;
        };
        let pod = running(&node, one_device()).await;
        let file = read(&pod, "main", &path("gpu")).await.expect("the file");
        let device = json!({"driver": DRIVER, "pool": "node-1", "name": "gpu-0"});
        assert_eq!(file["requests"], json!([{"name": "gpu", "devices": [device]}]));
    }

    /// The generation increases in the file on the host. For what a running container sees, see `gaps`.
    #[tokio::test(flavor = "multi_thread")]
    async fn generation_number() {
        let Some((node, driver)) = node_with_metadata().await else { return };
        let _pod = running(&node, one_device()).await;
        let generation = || {
            let file = std::fs::read(host_file(&node, "gpu")).unwrap();
            first_document(&file).unwrap()["metadata"]["generation"].clone()
        };
        for expected in 1..4 {
            assert_eventually!(generation() == expected, "{}", generation());
            update_metadata(&driver);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn correct_content() {
        let versions = ["--enable-device-metadata", "--metadata-versions", "v1alpha1,v1beta1", "--attributes", "-1"];
        let Some((node, _driver)) = node_with(&versions).await else { return };
        let pod = running(&node, one_device()).await;
        let claim = node.claim("my-claim").await.unwrap().unwrap();
        let expected = json!({
            "apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
            "metadata": {"name": "my-claim", "namespace": "default", "uid": claim.metadata.uid, "generation": 1},
            "requests": [{"name": "gpu", "devices": [{"driver": DRIVER, "pool": "node-1", "name": "gpu-0"}]}],
        });
        assert_eq!(read(&pod, "main", &path("gpu")).await.expect("the file"), expected);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn multi_device_request() {
        let Some((node, _driver)) = node_with_metadata().await else { return };
        let pod = running(&node, ClaimSpec::default().request("gpu", DRIVER, 2)).await;
        let file = read(&pod, "main", &path("gpu")).await.expect("the file");
        let devices = file["requests"][0]["devices"].as_array().unwrap();
        assert_eq!(devices.iter().map(|device| &device["name"]).collect::<Vec<_>>(), ["gpu-0", "gpu-1"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_with_alternatives() {
        let Some((node, _driver)) = node_with_metadata().await else { return };
        let pod = running(&node, ClaimSpec::default().first_available("gpu", &[("large", DRIVER)])).await;
        let file = read(&pod, "main", &path("gpu")).await.expect("the file");
        assert_eq!(file["requests"][0]["name"], "gpu/large");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cleanup_on_delete() {
        let Some((node, _driver)) = node_with_metadata().await else { return };
        let pod = running(&node, one_device()).await;
        assert!(host_file(&node, "gpu").exists());
        pod.delete().await.unwrap();
        assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn enable_disable_flag_unset() {
        let Some((node, _driver)) = node_with(&[]).await else { return };
        let pod = running(&node, one_device()).await;
        assert_eq!(read(&pod, "main", &path("gpu")).await, None);
        assert!(!node.cdi_directory().exists() || std::fs::read_dir(node.cdi_directory()).unwrap().count() == 0);
    }
}

/// The driver registers all versions; the kubelet uses the newest, and receives the devices' health.
#[tokio::test(flavor = "multi_thread")]
async fn it_registers_with_the_newest_versions_and_reports_health() {
    let Some((node, _driver)) = node_with(&["--health"]).await else { return };
    let registered = node.registered().await;
    assert_eq!(registered.len(), 1, "{registered:?}");
    assert_eq!(format!("{:?} {:?}", registered[0].service, registered[0].health), "V1 Some(V1)");
    assert_eventually!(node.health().await.len() == 2, "{:?}", node.health().await);
    let pod = running(&node, one_device()).await;
    let health = async || {
        let pod = serde_json::to_value(pod.object().await.unwrap()).unwrap();
        pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"].clone()
    };
    assert_eventually!(health().await == "Healthy", "{}", health().await);
}

/// The slice controller of the Go library works with our API server: creation, owner, generation, splitting.
#[tokio::test(flavor = "multi_thread")]
async fn its_slices_are_published_completely() {
    let Some((node, _driver)) = node_with(&["--devices", "300"]).await else { return };
    let devices = async || -> Vec<usize> {
        let mut slices = node.slices(DRIVER).await.unwrap();
        slices.sort_by_key(|slice| slice.metadata.name.clone());
        slices.iter().map(|slice| slice.spec.devices.as_ref().map_or(0, Vec::len)).collect()
    };
    assert_eventually!(devices().await == [128, 128, 44], "{:?}", devices().await);
    for slice in node.slices(DRIVER).await.unwrap() {
        assert_eq!((slice.spec.pool.generation, slice.spec.pool.resource_slice_count), (1, 3));
        assert_eq!(slice.metadata.owner_references.unwrap()[0].kind, "Node");
    }
}

/// Requests in JSON, as older clients send them. All other tests use client-go's default, protobuf.
#[tokio::test(flavor = "multi_thread")]
async fn it_may_speak_json_to_the_api_server() {
    let arguments = ["--enable-device-metadata", "--content-type", "json"];
    let Some((node, _driver)) = node_with(&arguments).await else { return };
    let pod = running(&node, one_device()).await;
    assert!(read(&pod, "main", &path("gpu")).await.is_some());
}

/// The kubelet prepares all claims of a pod in one call.
#[tokio::test(flavor = "multi_thread")]
async fn the_claims_of_a_pod_are_prepared_together() {
    let Some((node, _driver)) = node_with(&["--enable-device-metadata", "--devices", "8"]).await else { return };
    let names: Vec<String> = (0..8).map(|number| format!("claim-{number}")).collect();
    let mut main = Container::new("main", SLEEP);
    let mut pod = Pod::new("pod");
    for name in &names {
        node.create(one_device().claim(name)).await.unwrap();
        main = main.claim(name);
        pod = pod.claim(name, name);
    }
    let pod = node.create_pod(pod.container(main)).await.unwrap();
    pod.running().await.unwrap();
    assert_eq!(entries(&pod, "main", CLAIMS).await, names);
    pod.delete().await.unwrap();
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
}

/// After a restart of the kubelet containers still run, and the claim is prepared again for a new pod.
#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_restarts() {
    let Some((node, _driver)) = node_with_metadata().await else { return };
    let first = running(&node, one_device()).await;
    let process = first.process("main");
    node.kill_kubelet().await;
    node.start_kubelet().await.unwrap();
    node.wait_registered(DRIVER).await.unwrap();
    assert_eq!(first.process("main"), process, "the container was restarted");
    let second = node.create_pod(pod("second")).await.unwrap();
    second.running().await.unwrap();
    first.delete().await.unwrap();
    assert!(read(&second, "main", &path("gpu")).await.is_some(), "the claim is still in use");
    second.delete().await.unwrap();
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
}

/// The driver is stopped or killed, and restarted. The new process has to unprepare claims that it did not prepare.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_restarts() {
    let Some((node, mut driver)) = node_with_metadata().await else { return };
    for is_killed in [false, true] {
        let name = if is_killed { "killed" } else { "stopped" };
        node.create(one_device().claim(name)).await.unwrap();
        let main = Container::new("main", SLEEP).claim("devices");
        let pod = node.create_pod(Pod::new(name).claim("devices", name).container(main)).await.unwrap();
        pod.running().await.unwrap();
        if is_killed {
            driver.kill().await.unwrap();
        } else {
            assert!(driver.terminate().await.unwrap().success());
            assert_eventually!(node.registered().await.is_empty());
        }
        driver = spawn(&node, DRIVER, &["--enable-device-metadata"]);
        wait_until_up(&node, &driver).await;
        pod.delete().await.unwrap();
        assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
    }
}

/// A new instance starts beside the old one, which then stops: the node always has a driver.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update() {
    let arguments = |uid: &'static str| ["--enable-device-metadata", "--pod-uid", uid];
    let Some((node, old)) = node_with(&arguments("11111111-0000-4000-8000-000000000000")).await else { return };
    let pod = running(&node, one_device()).await;
    let new = spawn(&node, DRIVER, &arguments("22222222-0000-4000-8000-000000000000"));
    assert_eventually!(node.registered().await.len() == 2, "{:?} {:?}", node.registered().await, new.log());
    old.terminate().await.unwrap();
    assert_eventually!(node.registered().await.len() == 1);
    pod.delete().await.unwrap();
    assert_eventually!(node.leftovers(DRIVER).await.unwrap().is_empty(), "{:?}", node.leftovers(DRIVER).await);
}

/// Older kubelets call v1beta1.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_kubelet() {
    if crate::support::program().is_none() {
        return;
    }
    let release = drakkar_node::kubelet::Release::V1_33;
    let node = Node::builder().release(release).start().await.unwrap();
    node.create(drakkar_node::device_class(DRIVER)).await.unwrap();
    let driver = spawn(&node, DRIVER, &["--enable-device-metadata"]);
    wait_until_up(&node, &driver).await;
    assert_eq!(format!("{:?}", node.registered().await[0].service), "V1beta1");
    let pod = running(&node, one_device()).await;
    assert!(read(&pod, "main", &path("gpu")).await.is_some());
}
