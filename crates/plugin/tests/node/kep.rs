//! The test plan of KEP-5304: every bullet of its integration and e2e tests, under its own name. A process in the container
//! reads the file, through the mount that CDI has made.

use drakkar_node::{ClaimSpec, Container, Node, Pod, PodHandle, assert_eventually};
use drakkar_plugin::{Device, DeviceAttribute, DeviceMetadata, Helper};
use serde_json::{Value, json};

use crate::support::{DRIVER, TestDriver, entries, kep_path, plugin, publish, read};

const SLEEP: [&str; 2] = ["sleep", "infinity"];

/// Starts a node with two devices, and a driver that reports the model of each device.
async fn node_with_driver() -> (Node, Helper) {
    let driver = TestDriver::with_metadata(|name| Some(DeviceMetadata::default().attribute("model", name)));
    node_with(driver, true).await
}

async fn node_with(driver: TestDriver, metadata: bool) -> (Node, Helper) {
    let node = Node::start().await.unwrap();
    let helper = plugin(&node).device_metadata(metadata).start(driver).await.unwrap();
    publish(&node, &["gpu-0", "gpu-1"]).await;
    (node, helper)
}

/// Creates a running pod with one container `main` that has all devices of the claim `my-claim`.
async fn pod(node: &Node, claim: ClaimSpec) -> PodHandle<'_> {
    node.create(claim.claim("my-claim")).await.unwrap();
    let main = Container::new("main", SLEEP).claim("devices");
    let pod = Pod::new("pod").claim("devices", "my-claim").container(main);
    let pod = node.create_pod(pod).await.unwrap();
    pod.running().await.unwrap();
    pod
}

fn one_device() -> ClaimSpec {
    ClaimSpec::default().request("gpu", DRIVER, 1)
}

/// Returns the attributes of the first device of a file.
fn attributes(file: &Value) -> &Value {
    &file["requests"][0]["devices"][0]["attributes"]
}

mod integration {
    use super::*;

    /// Create Pod with resourceClaims, verify attributes JSON is generated and mounted.
    #[tokio::test(flavor = "multi_thread")]
    async fn end_to_end_attribute_exposure() {
        let (node, _driver) = node_with_driver().await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        assert_eq!(attributes(&file), &json!({"model": {"string": "gpu-0"}}));
    }

    /// Pod with claim containing multiple requests, verify separate directories per request.
    #[tokio::test(flavor = "multi_thread")]
    async fn multiple_requests() {
        let (node, _driver) = node_with_driver().await;
        let claim = ClaimSpec::default().request("first", DRIVER, 1).request("second", DRIVER, 1);
        let pod = pod(&node, claim).await;
        assert_eq!(entries(&pod, "main", "/var/run/dra-device-attributes/my-claim").await, ["first", "second"]);
        for (request, device) in [("first", "gpu-0"), ("second", "gpu-1")] {
            let file = read(&pod, "main", &kep_path("my-claim", request)).await.expect("the file");
            assert_eq!(file["requests"].as_array().unwrap().len(), 1, "{file}");
            assert_eq!(file["requests"][0]["name"], request);
            assert_eq!(file["requests"][0]["devices"][0]["name"], device);
        }
    }

    /// Verify container only sees metadata for requests it references via `resources.claims[].request`.
    #[tokio::test(flavor = "multi_thread")]
    async fn container_isolation() {
        let (node, _driver) = node_with_driver().await;
        let claim = ClaimSpec::default().request("first", DRIVER, 1).request("second", DRIVER, 1);
        node.create(claim.claim("my-claim")).await.unwrap();
        let pod = Pod::new("pod")
            .claim("devices", "my-claim")
            .container(Container::new("a", SLEEP).request("devices", "first"))
            .container(Container::new("b", SLEEP).request("devices", "second"))
            .container(Container::new("c", SLEEP));
        let pod = node.create_pod(pod).await.unwrap();
        pod.running().await.unwrap();
        for (container, sees) in [("a", vec!["first"]), ("b", vec!["second"]), ("c", vec![])] {
            for claim in [
                "/var/run/dra-device-attributes/my-claim",
                "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my-claim",
            ] {
                assert_eq!(entries(&pod, container, claim).await, sees, "container {container}, {claim}");
            }
        }
    }

    /// Driver writes no attributes, verify file is created with request metadata only.
    #[tokio::test(flavor = "multi_thread")]
    async fn empty_metadata() {
        let (node, _driver) = node_with(TestDriver::with_metadata(|_| Some(DeviceMetadata::default())), true).await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        let device = json!({"driver": DRIVER, "pool": "node-1", "name": "gpu-0"});
        assert_eq!(file["requests"], json!([{"name": "gpu", "devices": [device]}]));
        assert_eq!(file["metadata"]["name"], "my-claim");
    }

    /// Test string, bool, int, version attributes are correctly written.
    #[tokio::test(flavor = "multi_thread")]
    async fn attribute_types() {
        let metadata = |_: &str| {
            let metadata = DeviceMetadata::default().attribute("string", "a text").attribute("bool", true);
            Some(metadata.attribute("int", 42_i64).attribute("version", DeviceAttribute::version("1.2.3")))
        };
        let (node, _driver) = node_with(TestDriver::with_metadata(metadata), true).await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        let expected = json!({
            "string": {"string": "a text"}, "bool": {"bool": true}, "int": {"int": 42}, "version": {"version": "1.2.3"},
        });
        assert_eq!(attributes(&file), &expected);
    }

    /// Verify generation increments on metadata updates. The running container sees each of them.
    #[tokio::test(flavor = "multi_thread")]
    async fn generation_number() {
        let (node, driver) = node_with_driver().await;
        let pod = pod(&node, one_device()).await;
        let path = kep_path("my-claim", "gpu");
        assert_eq!(read(&pod, "main", &path).await.expect("the file")["metadata"]["generation"], 1);
        let claim = node.claim_ref("my-claim").await.unwrap();
        for generation in 2..5_i64 {
            let metadata = DeviceMetadata::default().attribute("generation", generation);
            let device = Device {
                pool_name: "node-1".into(),
                device_name: "gpu-0".into(),
                metadata: Some(metadata),
                ..Device::default()
            };
            assert_eq!(
                driver.handles().update_request_metadata(&claim, "gpu", vec![device]).await.unwrap(),
                generation
            );
            let file = read(&pod, "main", &path).await.expect("the file");
            assert_eq!(file["metadata"]["generation"], generation);
            assert_eq!(attributes(&file)["generation"]["int"], generation);
        }
    }

    /// Verify files are removed after unprepare.
    #[tokio::test(flavor = "multi_thread")]
    async fn cleanup() {
        let (node, _driver) = node_with_driver().await;
        let pod = pod(&node, one_device()).await;
        assert_ne!(node.leftovers(DRIVER).await.unwrap(), Vec::<String>::new());
        pod.delete().await.unwrap();
        assert_eq!(node.leftovers(DRIVER).await.unwrap(), Vec::<String>::new());
    }

    /// Verify feature off when flag unset: no files, and nothing in the container.
    #[tokio::test(flavor = "multi_thread")]
    async fn enable_disable_flag_unset() {
        let driver = TestDriver::with_metadata(|name| Some(DeviceMetadata::default().attribute("model", name)));
        let (node, _driver) = node_with(driver, false).await;
        let pod = pod(&node, one_device()).await;
        assert_eq!(read(&pod, "main", &kep_path("my-claim", "gpu")).await, None);
        let files: Vec<String> = node.leftovers(DRIVER).await.unwrap();
        let is_of_pod = |file: &String| file.starts_with("kubelet: ") || file.starts_with("container ");
        assert!(files.iter().all(is_of_pod), "{files:?}");
    }

    /// No files when `Device.Metadata` is nil. Here there is a file with the device and without attributes: without a file, metadata
    /// could not be delivered later, as a network driver does.
    #[tokio::test(flavor = "multi_thread")]
    async fn enable_disable_no_metadata_from_the_driver() {
        let (node, _driver) = node_with(TestDriver::with_metadata(|_| None), true).await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        assert_eq!(file["requests"][0]["devices"], json!([{"driver": DRIVER, "pool": "node-1", "name": "gpu-0"}]));
    }
}

mod e2e {
    use super::*;

    /// Pod can read `/var/run/dra-device-attributes/{claimName}/{requestName}/{driverName}-metadata.json`: the program of the
    /// container itself reads it, not a later exec.
    #[tokio::test(flavor = "multi_thread")]
    async fn metadata_file_mounted() {
        let (node, _driver) = node_with_driver().await;
        node.create(one_device().claim("my-claim")).await.unwrap();
        let main = Container::new("main", ["cat", &kep_path("my-claim", "gpu")]).claim("devices");
        let pod = node.create_pod(Pod::new("pod").claim("devices", "my-claim").container(main)).await.unwrap();
        assert_eq!(pod.finished().await.unwrap(), "Succeeded");
        let file: Value = serde_json::from_str(&pod.logs("main").unwrap()).unwrap();
        assert_eq!(attributes(&file), &json!({"model": {"string": "gpu-0"}}));
    }

    /// Container only sees directory for requests it references, and cannot write to the files.
    #[tokio::test(flavor = "multi_thread")]
    async fn per_request_isolation() {
        let (node, _driver) = node_with_driver().await;
        let claim = ClaimSpec::default().request("first", DRIVER, 1).request("second", DRIVER, 1);
        node.create(claim.template("template")).await.unwrap();
        let pod = Pod::new("pod")
            .template("devices", "template")
            .container(Container::new("a", SLEEP).request("devices", "first"))
            .container(Container::new("both", SLEEP).claim("devices"));
        let pod = node.create_pod(pod).await.unwrap();
        pod.running().await.unwrap();
        let of_template = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/devices";
        assert_eq!(entries(&pod, "a", of_template).await, ["first"]);
        assert_eq!(entries(&pod, "both", of_template).await, ["first", "second"]);
        let write = format!("echo x > {of_template}/first/{DRIVER}-metadata.json");
        let refused = pod.exec("a", ["sh", "-c", &write]).await.unwrap();
        assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only file system"), "{refused:?}");
    }

    /// Verify JSON contains expected apiVersion, kind, metadata, and device list.
    #[tokio::test(flavor = "multi_thread")]
    async fn correct_content() {
        let (node, _driver) = node_with_driver().await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        let claim = node.claim("my-claim").await.unwrap().unwrap();
        let device = json!({
            "driver": DRIVER, "pool": "node-1", "name": "gpu-0", "attributes": {"model": {"string": "gpu-0"}},
        });
        let expected = json!({
            "apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
            "metadata": {"name": "my-claim", "namespace": "default", "uid": claim.metadata.uid, "generation": 1},
            "requests": [{"name": "gpu", "devices": [device]}],
        });
        assert_eq!(file, expected);
    }

    /// Verify attributes from all allocated devices in the request are included.
    #[tokio::test(flavor = "multi_thread")]
    async fn multi_device_request() {
        let (node, _driver) = node_with_driver().await;
        let pod = pod(&node, ClaimSpec::default().request("gpu", DRIVER, 2)).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        let devices = file["requests"][0]["devices"].as_array().unwrap();
        let models: Vec<_> = devices.iter().map(|device| &device["attributes"]["model"]["string"]).collect();
        assert_eq!(models, ["gpu-0", "gpu-1"]);
    }

    /// Verify CRI runtime correctly processes CDI device ID and mounts directory: with an OCI runtime, if there is one.
    #[tokio::test(flavor = "multi_thread")]
    async fn cdi_integration() {
        let Some(runtime) = crate::usage::oci_runtime() else { return };
        let node = Node::builder().isolation(drakkar_node::Isolation::Oci(runtime)).start().await.unwrap();
        let driver = TestDriver::with_metadata(|name| Some(DeviceMetadata::default().attribute("model", name)));
        let _driver = plugin(&node).device_metadata(true).start(driver).await.unwrap();
        publish(&node, &["gpu-0"]).await;
        let pod = pod(&node, one_device()).await;
        let file = read(&pod, "main", &kep_path("my-claim", "gpu")).await.expect("the file");
        assert_eq!(attributes(&file), &json!({"model": {"string": "gpu-0"}}));
    }

    /// Delete Pod, verify attribute files are removed from host.
    #[tokio::test(flavor = "multi_thread")]
    async fn cleanup_on_delete() {
        let (node, _driver) = node_with_driver().await;
        let pod = pod(&node, one_device()).await;
        let file = node
            .kubelet_root()
            .join("plugins")
            .join(DRIVER)
            .join("dra-device-metadata/default_my-claim/gpu/metadata.json");
        assert!(file.exists());
        pod.start_deletion().await.unwrap();
        assert_eventually!(!file.exists());
        pod.gone().await.unwrap();
        assert_eventually!(
            node.claim("my-claim").await.unwrap().unwrap().status.unwrap_or_default().allocation.is_none()
        );
        assert_eq!(std::fs::read_dir(node.cdi_directory()).unwrap().count(), 0);
    }
}
