//! Tests of device metadata: files, specs, updates.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use drakkar_metadata::Version;
use drakkar_metadata::path::Layout;
use drakkar_node::kubelet::Device as KubeletDevice;
use drakkar_plugin::{
    DeferredMetadata, Device, DeviceAttribute, DeviceMetadata, Helper, MetadataUpdater, NetworkDeviceData,
    PluginBuilder, StartError,
};
use serde_json::{Value, json};

use crate::support::{DRIVER, Fixture, Kubelet, Node, TestClaim, TestDriver, cdi_devices};

const UID: &str = "1234-claim-uid";
const RELEASED: &str = "/var/run/kubernetes.io/dra-device-attributes";
const KEP: &str = "/var/run/dra-device-attributes";

impl Fixture {
    /// Prepares a claim, and returns it with its devices.
    async fn prepare(&self, claim: TestClaim) -> (TestClaim, Vec<KubeletDevice>) {
        let claim = self.node.claim(claim);
        let devices = self.kubelet.prepare_one(&claim).await.unwrap();
        (claim, devices)
    }

    fn spec(&self, claim: &TestClaim, request: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.node.spec_file(claim, request)).unwrap()).unwrap()
    }

    /// Returns the paths at which containers see a request's file.
    fn container_paths(&self, claim: &TestClaim, request: &str) -> Vec<String> {
        let spec = self.spec(claim, request);
        let mounts = spec["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
        mounts.iter().map(|mount| mount["containerPath"].as_str().unwrap().to_owned()).collect()
    }
}

/// Returns a claim with one device for the request `gpu`.
fn one_gpu() -> TestClaim {
    TestClaim::new("my-claim", UID).device("gpu", "gpu-0")
}

/// Returns a device with metadata, for an update.
fn known(device: &str, model: &str) -> Device {
    Device {
        pool_name: "node-1".into(),
        device_name: device.into(),
        metadata: Some(DeviceMetadata::default().attribute("model", model)),
        ..Device::default()
    }
}

/// Returns a driver that sets the model of its devices.
fn knowing(model: &'static str) -> TestDriver {
    TestDriver::preparing(move |claim| {
        let metadata = || Some(DeviceMetadata::default().attribute("model", model));
        Ok(claim.results().map(|result| Device { metadata: metadata(), ..result.into() }).collect())
    })
}

fn model(metadata: &Value) -> &str {
    metadata["requests"][0]["devices"][0]["attributes"]["model"]["string"].as_str().unwrap()
}

// The cases of the Go framework's tests (appendix A.1), with their names, through the whole stack.

/// The driver, claim and node of these cases, with only the released layout.
struct Pinned {
    node: Node,
    helper: Helper,
    kubelet: Kubelet,
    claim: TestClaim,
}

impl Pinned {
    /// Creates the claim with these references, each with a device `gpu-0`, `gpu-1`, …, all with this metadata.
    async fn new(references: &[&str], metadata: Option<DeviceMetadata>) -> Self {
        Self::of(TestClaim::new("my-claim", UID), references, metadata).await
    }

    async fn of(mut claim: TestClaim, references: &[&str], metadata: Option<DeviceMetadata>) -> Self {
        let node = Node::default();
        let driver = TestDriver::preparing(move |claim| {
            Ok(claim.results().map(|result| Device { metadata: metadata.clone(), ..result.into() }).collect())
        });
        for (number, reference) in references.iter().enumerate() {
            let device = format!("gpu-{number}");
            claim = claim
                .result(json!({"request": reference, "driver": "example.com", "pool": "pool-a", "device": device}));
        }
        let builder = node.builder_for("example.com").metadata_layout([Layout::Kubernetes]);
        let helper = builder.start(driver).await.unwrap();
        let kubelet = Kubelet::of(&helper).await;
        let claim = node.claim(claim);
        Self { node, helper, kubelet, claim }
    }

    async fn prepare(&self) -> Vec<KubeletDevice> {
        self.kubelet.prepare_one(&self.claim).await.unwrap()
    }

    fn path(&self, request: &str) -> PathBuf {
        let claims = self.node.root.path().join("plugins/example.com/dra-device-metadata");
        claims.join("default_my-claim").join(request).join("metadata.json")
    }

    fn metadata(&self, request: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(request)).unwrap()).unwrap()
    }

    fn spec_path(&self, request: &str) -> PathBuf {
        self.node.cdi_directory().join(format!("example.com_metadata_1234-claim-uid_{request}.json"))
    }

    fn spec(&self, request: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.spec_path(request)).unwrap()).unwrap()
    }

    async fn update(&self, reference: &str, model: &str) -> i64 {
        let device = Device { pool_name: "pool-a".into(), ..known("gpu-0", model) };
        self.helper.handles().update_request_metadata(&self.claim.reference(), reference, vec![device]).await.unwrap()
    }
}

/// A.1: one device with a string attribute: the file, the spec and the ID, byte for byte.
#[tokio::test]
async fn a_device_with_an_attribute_has_file_spec_and_id_as_the_go_framework_writes_them() {
    let metadata = DeviceMetadata::default().attribute("model", "LATEST-GPU-MODEL");
    let pinned = Pinned::new(&["gpu-request"], Some(metadata)).await;

    let devices = pinned.prepare().await;

    assert_eq!(cdi_devices(&devices), ["example.com/metadata=1234-claim-uid_gpu-request"]);
    let expected = r#"{
  "kind": "DeviceMetadata",
  "apiVersion": "metadata.resource.k8s.io/v1alpha1",
  "metadata": {
    "name": "my-claim",
    "namespace": "default",
    "uid": "1234-claim-uid",
    "generation": 1
  },
  "requests": [
    {
      "name": "gpu-request",
      "devices": [
        {
          "driver": "example.com",
          "pool": "pool-a",
          "name": "gpu-0",
          "attributes": {
            "model": {
              "string": "LATEST-GPU-MODEL"
            }
          }
        }
      ]
    }
  ]
}
"#;
    assert_eq!(std::fs::read_to_string(pinned.path("gpu-request")).unwrap(), expected);
    let expected = format!(
        r#"{{
  "cdiVersion": "0.5.0",
  "kind": "example.com/metadata",
  "devices": [
    {{
      "name": "1234-claim-uid_gpu-request",
      "containerEdits": {{
        "mounts": [
          {{
            "hostPath": "{}",
            "containerPath": "{RELEASED}/resourceclaims/my-claim/gpu-request/example.com-metadata.json",
            "options": [
              "ro",
              "bind"
            ]
          }}
        ]
      }}
    }}
  ],
  "containerEdits": {{}}
}}"#,
        pinned.path("gpu-request").display()
    );
    assert_eq!(std::fs::read_to_string(pinned.spec_path("gpu-request")).unwrap(), expected);
}

/// A.1, D5: a device without metadata is written with driver, pool and name.
#[tokio::test]
async fn a_device_without_metadata_is_written_with_its_names() {
    let pinned = Pinned::new(&["gpu-request"], None).await;

    let devices = pinned.prepare().await;

    assert_eq!(cdi_devices(&devices), ["example.com/metadata=1234-claim-uid_gpu-request"]);
    let metadata = pinned.metadata("gpu-request");
    let device = json!({"driver": "example.com", "pool": "pool-a", "name": "gpu-0"});
    assert_eq!(metadata["requests"], json!([{"name": "gpu-request", "devices": [device]}]));
    assert_eq!(metadata["metadata"]["generation"], 1);
    assert!(pinned.spec_path("gpu-request").exists());
}

/// A.1: a network device has network data and no attributes.
#[tokio::test]
async fn network_data_is_written_without_attributes() {
    let network_data = NetworkDeviceData {
        interface_name: "eth1".into(),
        ips: vec!["10.0.0.5/24".into()],
        hardware_address: String::new(),
    };
    let metadata = DeviceMetadata { network_data: Some(network_data), ..DeviceMetadata::default() };
    let pinned = Pinned::new(&["net"], Some(metadata)).await;

    pinned.prepare().await;

    let network_data = json!({"interfaceName": "eth1", "ips": ["10.0.0.5/24"]});
    let device = json!({"driver": "example.com", "pool": "pool-a", "name": "gpu-0", "networkData": network_data});
    assert_eq!(pinned.metadata("net")["requests"][0]["devices"], json!([device]));
}

/// A.1: two requests have a file, a spec and an ID each.
#[tokio::test]
async fn two_requests_have_a_file_a_spec_and_an_id_each() {
    let pinned = Pinned::new(&["one", "two"], None).await;

    let devices = pinned.prepare().await;

    let ids = ["example.com/metadata=1234-claim-uid_one", "example.com/metadata=1234-claim-uid_two"];
    assert_eq!(cdi_devices(&devices), ids);
    for (request, device) in [("one", "gpu-0"), ("two", "gpu-1")] {
        let requests = &pinned.metadata(request)["requests"];
        assert_eq!((&requests[0]["name"], &requests[0]["devices"][0]["name"]), (&json!(request), &json!(device)));
        assert_eq!(requests.as_array().unwrap().len(), 1);
        assert_eq!(pinned.spec(request)["devices"][0]["name"], format!("{UID}_{request}"));
    }
}

/// A.1: paths and IDs contain the request, the document contains the whole reference.
#[tokio::test]
async fn a_subrequest_is_in_the_document_only() {
    let pinned = Pinned::new(&["gpu-request/high-memory"], None).await;

    let devices = pinned.prepare().await;

    assert_eq!(devices[0].request_names, ["gpu-request"]);
    assert_eq!(cdi_devices(&devices), ["example.com/metadata=1234-claim-uid_gpu-request"]);
    assert_eq!(pinned.metadata("gpu-request")["requests"][0]["name"], "gpu-request/high-memory");
    let mount = &pinned.spec("gpu-request")["devices"][0]["containerEdits"]["mounts"][0];
    let path = format!("{RELEASED}/resourceclaims/my-claim/gpu-request/example.com-metadata.json");
    assert_eq!(mount["containerPath"], path);
}

/// A.1: a claim from a template is mounted under the name of the pod's entry.
#[tokio::test]
async fn a_claim_from_a_template_is_mounted_under_the_name_of_the_pods_entry() {
    let claim = TestClaim::new("my-claim", UID).made_from_template("my-gpu");
    let pinned = Pinned::of(claim, &["gpu-request"], None).await;

    pinned.prepare().await;

    assert_eq!(pinned.metadata("gpu-request")["podClaimName"], "my-gpu");
    let mount = &pinned.spec("gpu-request")["devices"][0]["containerEdits"]["mounts"][0];
    let path = format!("{RELEASED}/resourceclaimtemplates/my-gpu/gpu-request/example.com-metadata.json");
    assert_eq!(mount["containerPath"], path);
    assert_eq!(mount["hostPath"], pinned.path("gpu-request").to_str().unwrap());
}

/// A.1: an unprepare removes files and specs of all requests, with or without subrequests. It can be repeated, and succeeds for
/// an unknown claim.
#[tokio::test]
async fn an_unprepare_removes_everything_and_can_be_repeated() {
    let pinned = Pinned::new(&["one", "two/fast"], None).await;
    pinned.kubelet.unprepare_one(&pinned.claim).await.unwrap();
    pinned.prepare().await;
    assert!(pinned.spec_path("one").exists() && pinned.spec_path("two").exists());

    for _ in 0..2 {
        pinned.kubelet.unprepare_one(&pinned.claim).await.unwrap();
        assert!(!pinned.path("one").parent().unwrap().parent().unwrap().exists());
        assert!(!pinned.spec_path("one").exists() && !pinned.spec_path("two").exists());
    }
}

/// A.1: an update replaces the data and increments the generation, with or without the subrequest in the request's name.
#[tokio::test]
async fn an_update_replaces_the_data_and_increments_the_generation() {
    let metadata = DeviceMetadata::default().attribute("model", "old").attribute("cores", 64);
    let pinned = Pinned::new(&["gpu-request/high-memory"], Some(metadata)).await;
    pinned.prepare().await;

    assert_eq!(pinned.update("gpu-request", "new").await, 2);
    let metadata = pinned.metadata("gpu-request");
    assert_eq!(metadata["metadata"]["generation"], 2);
    let attributes = &metadata["requests"][0]["devices"][0]["attributes"];
    assert_eq!(attributes, &json!({"model": {"string": "new"}}), "replaced, not added to");

    assert_eq!(pinned.update("gpu-request/high-memory", "newer").await, 3);
    assert_eq!(pinned.update("gpu-request", "newest").await, 4);
    let metadata = pinned.metadata("gpu-request");
    assert_eq!((&metadata["metadata"]["generation"], model(&metadata)), (&json!(4), "newest"));
    assert_eq!(metadata["requests"][0]["name"], "gpu-request/high-memory");
    assert_eq!(metadata["requests"].as_array().unwrap().len(), 1);
}

/// A.1, D2: at least one version is required; an unknown version is refused with the known ones.
#[tokio::test]
async fn a_driver_does_not_start_without_a_version_or_with_a_duplicate() {
    let node = Node::default();
    let start = |versions: Vec<Version>| node.builder().metadata_versions(versions).start(TestDriver::default());
    for versions in [vec![], vec![Version::V1Beta1, Version::V1Beta1]] {
        let error = start(versions).await.unwrap_err();
        assert!(matches!(error, StartError::Versions(_)), "{error}");
    }
    start(vec![Version::V1Beta1]).await.unwrap().stop().await.unwrap();
    let error = "v1".parse::<Version>().unwrap_err().to_string();
    assert!(error.contains("v1beta1 and v1alpha1"), "{error}");
}

/// D2: several versions make a stream of the same document, in the configured order, also after an update.
#[tokio::test]
async fn versions_are_written_as_a_stream_in_their_order() {
    for versions in [[Version::V1Beta1, Version::V1Alpha1], [Version::V1Alpha1, Version::V1Beta1]] {
        let fixture = Fixture::with(knowing("m1"), |builder| builder.metadata_versions(versions)).await;
        let (claim, _) = fixture.prepare(one_gpu()).await;
        let documents = || -> Vec<Value> {
            let bytes = std::fs::read(fixture.node.metadata_file(&claim, "gpu")).unwrap();
            serde_json::Deserializer::from_slice(&bytes).into_iter().map(Result::unwrap).collect()
        };
        let check = |mut documents: Vec<Value>, generation: i64| {
            assert_eq!(documents.len(), 2);
            for (document, version) in documents.iter_mut().zip(versions) {
                assert_eq!(document["apiVersion"], version.api_version());
                document["apiVersion"].take();
            }
            assert_eq!(documents[0], documents[1]);
            assert_eq!(documents[0]["metadata"]["generation"], generation);
        };

        check(documents(), 1);
        let update = vec![known("gpu-0", "m2")];
        fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap();
        check(documents(), 2);
    }
}

/// D1: one CDI device mounts the file at both paths, or at the configured one.
#[tokio::test]
async fn containers_see_the_file_in_both_layouts_or_in_the_configured_one() {
    let released = format!("{RELEASED}/resourceclaims/my-claim/gpu/{DRIVER}-metadata.json");
    let kep = format!("{KEP}/my-claim/gpu/{DRIVER}-metadata.json");
    let cases = [
        (None, vec![kep.clone(), released.clone()]),
        (Some(Layout::Kep), vec![kep]),
        (Some(Layout::Kubernetes), vec![released]),
    ];
    for (layout, expected) in cases {
        let set = |builder: PluginBuilder| match layout {
            Some(layout) => builder.metadata_layout([layout]),
            None => builder,
        };
        let fixture = Fixture::with(TestDriver::default(), set).await;
        let (claim, _) = fixture.prepare(one_gpu()).await;

        assert_eq!(fixture.container_paths(&claim, "gpu"), expected);
        let file = fixture.node.metadata_file(&claim, "gpu");
        let spec = fixture.spec(&claim, "gpu");
        assert_eq!(spec["devices"].as_array().unwrap().len(), 1);
        for mount in spec["devices"][0]["containerEdits"]["mounts"].as_array().unwrap() {
            assert_eq!(mount["hostPath"], file.to_str().unwrap());
            assert_eq!(mount["options"], json!(["ro", "bind"]));
        }
    }
}

/// D1: in the KEP's layout, a claim from a template is mounted under its own name.
#[tokio::test]
async fn a_claim_from_a_template_has_both_paths_too() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let (claim, _) = fixture.prepare(one_gpu().made_from_template("gpus")).await;

    let kep = format!("{KEP}/my-claim/gpu/{DRIVER}-metadata.json");
    let released = format!("{RELEASED}/resourceclaimtemplates/gpus/gpu/{DRIVER}-metadata.json");
    assert_eq!(fixture.container_paths(&claim, "gpu"), [kep, released]);
}

/// Section 5.1: a claim that the scheduler created for extended resources has no entry in the pod.
#[tokio::test]
async fn a_claim_for_extended_resources_is_mounted_under_its_own_name() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let claim = TestClaim::new("pod-extended-resources-x7k2p", UID).device("container-0-request-0", "gpu-0");
    let claim = claim.annotated("resource.kubernetes.io/extended-resource-claim", "true");
    let (claim, _) = fixture.prepare(claim).await;

    let request = "container-0-request-0";
    let name = format!("pod-extended-resources-x7k2p/{request}/{DRIVER}-metadata.json");
    let expected = [format!("{KEP}/{name}"), format!("{RELEASED}/resourceclaims/{name}")];
    assert_eq!(fixture.container_paths(&claim, request), expected);
    assert!(fixture.node.metadata(&claim, request).get("podClaimName").is_none());
}

/// D5: for a request without devices the framework returns the allocated ones, and containers see an empty file until the first
/// update, which is generation 1.
#[tokio::test]
async fn a_request_without_devices_has_an_empty_file_until_its_first_update() {
    let fixture = Fixture::new(TestDriver::preparing(|_| Ok(vec![]))).await;
    let claim = TestClaim::new("my-claim", UID).device("net/fast", "nic-0").device("net/fast", "nic-1");
    let (claim, devices) = fixture.prepare(claim).await;

    let returned: Vec<_> = devices.iter().map(|device| (device.device_name.as_str(), &*device.request_names)).collect();
    assert_eq!(returned, [("nic-0", &["net".to_owned()][..]), ("nic-1", &["net".to_owned()][..])]);
    assert_eq!(cdi_devices(&devices), ["gpu.example.com/metadata=1234-claim-uid_net"]);
    let file = fixture.node.metadata_file(&claim, "net");
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    assert!(fixture.node.spec_file(&claim, "net").exists(), "a container can be created");
    let again = fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(again, devices);
    assert_eq!(std::fs::read(&file).unwrap(), b"");

    let update = vec![known("nic-1", "fast"), known("nic-0", "fast")];
    let generation = fixture.helper.handles().update_request_metadata(&claim.reference(), "net", update).await.unwrap();

    assert_eq!(generation, 1);
    let metadata = fixture.node.metadata(&claim, "net");
    assert_eq!((&metadata["metadata"]["generation"], model(&metadata)), (&json!(1), "fast"));
    assert_eq!(metadata["requests"][0]["name"], "net/fast");
    assert_eq!(metadata["requests"][0]["devices"].as_array().unwrap().len(), 2);
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.metadata(&claim, "net"), metadata, "a prepare does not undo an update");
}

/// D5: the metadata of one request is written with the prepare, that of another request of the claim later.
#[tokio::test]
async fn requests_with_immediate_and_deferred_metadata_can_be_in_one_claim() {
    let driver = TestDriver::preparing(|claim| {
        let gpus = claim.results().filter(|result| result.request == "gpu");
        Ok(gpus.map(|result| Device { metadata: known("", "m1").metadata, ..result.into() }).collect())
    });
    let fixture = Fixture::new(driver.clone()).await;
    let (claim, devices) = fixture.prepare(one_gpu().device("net", "nic-0")).await;

    assert_eq!(model(&fixture.node.metadata(&claim, "gpu")), "m1");
    assert_eq!(std::fs::read(fixture.node.metadata_file(&claim, "net")).unwrap(), b"");
    let requests: Vec<_> = devices.iter().map(|device| device.request_names.join(",")).collect();
    assert_eq!(requests, ["gpu", "net"]);
}

/// D5: with the gate, no container can be created before the first update, because its CDI device does not exist.
#[tokio::test]
async fn with_the_gate_there_is_no_spec_before_the_first_update() {
    let driver = TestDriver::preparing(|_| Ok(vec![]));
    let gated = |builder: PluginBuilder| builder.deferred_metadata(DeferredMetadata::Gate);
    let fixture = Fixture::with(driver.clone(), gated).await;
    let (claim, devices) = fixture.prepare(TestClaim::new("my-claim", UID).device("net", "nic-0")).await;
    let spec = fixture.node.spec_file(&claim, "net");

    assert_eq!(cdi_devices(&devices), ["gpu.example.com/metadata=1234-claim-uid_net"]);
    assert!(!spec.exists());
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(!spec.exists(), "a prepare does not open the gate");
    let fixture = fixture.restart(driver.clone(), gated).await;
    assert!(!spec.exists(), "nor does a start");
    let refused = vec![known("nic-7", "fast")];
    fixture.helper.handles().update_request_metadata(&claim.reference(), "net", refused).await.unwrap_err();
    assert!(!spec.exists(), "nor does an update that is refused");

    let update = vec![known("nic-0", "fast")];
    assert_eq!(fixture.helper.handles().update_request_metadata(&claim.reference(), "net", update).await.unwrap(), 1);

    assert_eq!(fixture.container_paths(&claim, "net").len(), 2);
    assert_eq!(model(&fixture.node.metadata(&claim, "net")), "fast");
    let fixture = fixture.restart(driver.clone(), gated).await;
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(spec.exists(), "a gate that was opened stays open");
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert!(!spec.exists());
}

/// G22, D7: a claim whose metadata cannot be written fails with path and cause, and no files are left.
#[tokio::test]
async fn a_failed_metadata_write_fails_the_claim_and_leaves_no_files() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let cdi = fixture.node.cdi_directory();
    // The start has made it.
    std::fs::remove_dir(&cdi).unwrap();
    std::fs::write(&cdi, "not a directory").unwrap();
    let one = fixture.node.claim(one_gpu().device("net", "gpu-1"));
    let two = fixture.node.claim(TestClaim::new("two", "2").device("gpu", "gpu-0"));

    let error = fixture.kubelet.prepare_one(&one).await.unwrap_err();

    assert!(error.contains("claim default/my-claim (uid 1234-claim-uid)"), "{error}");
    assert!(error.contains(cdi.to_str().unwrap()), "{error}");
    assert_eq!(fixture.node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);

    std::fs::remove_file(&cdi).unwrap();
    fixture.kubelet.prepare_one(&one).await.unwrap();
    fixture.kubelet.unprepare_one(&one).await.unwrap();
    fixture.kubelet.prepare_one(&two).await.unwrap();
}

/// G22: of the claims of a call, only the one whose metadata cannot be written fails.
#[tokio::test]
async fn only_the_claim_that_cannot_be_written_fails() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let blocked = fixture.node.claim(one_gpu());
    let free = fixture.node.claim(TestClaim::new("free", "2").device("gpu", "gpu-1"));
    let claims = fixture.node.plugin_directory().join("dra-device-metadata");
    std::fs::create_dir_all(&claims).unwrap();
    std::fs::write(claims.join("default_my-claim"), "not a directory").unwrap();

    let responses = fixture.kubelet.prepare(&[&blocked, &free]).await;

    let error = responses[blocked.uid()].as_ref().unwrap_err();
    assert!(error.contains("dra-device-metadata/default_my-claim"), "{error}");
    assert!(responses[free.uid()].is_ok());
    assert!(!fixture.node.spec_file(&blocked, "gpu").exists());
}

/// D8: without the flag no files are written, and the driver's devices are returned to the kubelet unchanged.
#[tokio::test]
async fn without_the_flag_no_files_are_written() {
    let fixture = Fixture::with(knowing("m1"), |builder| builder.device_metadata(false)).await;
    let (claim, devices) = fixture.prepare(one_gpu()).await;

    assert_eq!((devices.len(), cdi_devices(&devices).len()), (1, 0));
    assert_eq!(fixture.node.files(), Vec::<String>::new());
    assert!(!fixture.node.cdi_directory().exists());
    let update = vec![known("gpu-0", "m2")];
    let error = fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap_err();
    assert!(error.is_not_prepared(), "{error}");
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), Vec::<String>::new());
}

/// D8: a claim that was prepared with the flag keeps its metadata until it is unprepared.
#[tokio::test]
async fn claims_that_were_prepared_before_the_flag_was_turned_off_keep_their_metadata() {
    let driver = knowing("m1");
    let fixture = Fixture::new(driver.clone()).await;
    let (before, devices) = fixture.prepare(one_gpu()).await;
    let fixture = fixture.restart(driver.clone(), |builder| builder.device_metadata(false)).await;
    let (after, devices_after) = fixture.prepare(TestClaim::new("after", "2").device("gpu", "gpu-1")).await;

    assert_eq!(cdi_devices(&devices_after).len(), 0);
    assert!(!fixture.node.metadata_file(&after, "gpu").exists());
    assert_eq!(fixture.kubelet.prepare_one(&before).await.unwrap(), devices);
    let update = vec![known("gpu-0", "m2")];
    assert_eq!(fixture.helper.handles().update_request_metadata(&before.reference(), "gpu", update).await.unwrap(), 2);
    assert_eq!(model(&fixture.node.metadata(&before, "gpu")), "m2");

    fixture.kubelet.unprepare_one(&before).await.unwrap();
    assert_eq!(fixture.node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
    let (_, devices) = fixture.prepare(one_gpu()).await;
    assert_eq!(cdi_devices(&devices).len(), 0, "after an unprepare it is prepared without metadata");
}

/// G26: a repeated prepare returns the same and keeps file, generation and updated data, also in another process.
#[tokio::test]
async fn a_repeated_prepare_keeps_generation_data_and_inode() {
    let driver = knowing("m1");
    let fixture = Fixture::new(driver.clone()).await;
    let (claim, devices) = fixture.prepare(one_gpu()).await;
    let file = fixture.node.metadata_file(&claim, "gpu");
    let update = vec![known("gpu-0", "m2")];
    fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap();
    let identity = |path: &PathBuf| {
        let status = std::fs::metadata(path).unwrap();
        (status.ino(), status.mtime(), status.mtime_nsec())
    };
    let spec = fixture.node.spec_file(&claim, "gpu");
    let content = std::fs::read(&file).unwrap();
    let before = (identity(&file), identity(&spec));

    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap(), devices);
    let fixture = fixture.restart(driver.clone(), |builder| builder).await;
    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap(), devices);

    assert_eq!(std::fs::read(&file).unwrap(), content);
    assert_eq!((identity(&file), identity(&spec)), before);
    let metadata = fixture.node.metadata(&claim, "gpu");
    assert_eq!((&metadata["metadata"]["generation"], model(&metadata)), (&json!(2), "m2"));
}

/// G26: a prepare with other devices writes a new generation into the file that containers have mounted.
#[tokio::test]
async fn a_repeated_prepare_with_other_devices_is_a_new_generation_of_the_same_file() {
    let spare = Arc::new(AtomicBool::new(false));
    let is_spare = spare.clone();
    let driver = TestDriver::preparing(move |claim| {
        let wanted = if is_spare.load(Ordering::SeqCst) { "gpu-1" } else { "gpu-0" };
        Ok(claim.results().filter(|result| result.device == wanted).map(Device::from).collect())
    });
    let fixture = Fixture::new(driver.clone()).await;
    let (claim, _) = fixture.prepare(one_gpu().device("gpu", "gpu-1")).await;
    let seen = File::open(fixture.node.metadata_file(&claim, "gpu")).unwrap();

    spare.store(true, Ordering::SeqCst);
    fixture.kubelet.prepare_one(&claim).await.unwrap();

    let metadata = read(&seen);
    assert_eq!(metadata["metadata"]["generation"], 2);
    assert_eq!(metadata["requests"][0]["devices"][0]["name"], "gpu-1");
}

/// Reads the current content of an open file.
fn read(file: &File) -> Value {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// G30, D6: containers that have the file open or mounted see an update; the file never shrinks.
#[tokio::test]
async fn an_update_is_visible_in_a_file_that_is_already_open_or_mounted() {
    let fixture = Fixture::new(knowing("a-model-with-a-long-name")).await;
    let (claim, _) = fixture.prepare(one_gpu()).await;
    let file = fixture.node.metadata_file(&claim, "gpu");
    let open = File::open(&file).unwrap();
    let link = fixture.node.root.path().join("seen-in-a-container");
    std::fs::hard_link(&file, &link).unwrap();
    let before = open.metadata().unwrap().len();

    for (number, model_now) in ["m2", "a-model-with-an-even-longer-name-than-before", "m3"].iter().enumerate() {
        let update = vec![known("gpu-0", model_now)];
        let generation =
            fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap();

        assert_eq!(generation, i64::try_from(number).unwrap() + 2);
        for seen in [read(&open), read(&File::open(&link).unwrap())] {
            assert_eq!((model(&seen), &seen["metadata"]["generation"]), (*model_now, &json!(generation)));
        }
        assert!(open.metadata().unwrap().len() >= before);
    }
    let directory: Vec<_> = std::fs::read_dir(file.parent().unwrap()).unwrap().collect();
    assert_eq!(directory.len(), 1, "there are other files: {directory:?}");
}

/// An update may contain fewer devices than the request has, or none.
#[tokio::test]
async fn an_update_writes_only_the_devices_that_it_contains() {
    let fixture = Fixture::new(knowing("m1")).await;
    let (claim, _) = fixture.prepare(one_gpu().device("gpu", "gpu-1")).await;
    let written = |fixture: &Fixture| fixture.node.metadata(&claim, "gpu")["requests"].clone();
    assert_eq!(written(&fixture)[0]["devices"].as_array().unwrap().len(), 2);

    let update = vec![known("gpu-1", "m2")];
    fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap();
    assert_eq!(written(&fixture)[0]["devices"][0]["name"], "gpu-1");
    assert_eq!(written(&fixture)[0]["devices"].as_array().unwrap().len(), 1);

    fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", vec![]).await.unwrap();
    assert_eq!(written(&fixture), json!([{"name": "gpu"}]));
}

/// A.1, G28: an update for a claim, request or device that is not prepared is refused, and nothing changes.
#[tokio::test]
async fn an_update_for_something_that_is_not_prepared_is_refused() {
    let fixture = Fixture::new(knowing("m1")).await;
    let (claim, _) = fixture.prepare(one_gpu().device("net", "nic-0")).await;
    let before = std::fs::read(fixture.node.metadata_file(&claim, "gpu")).unwrap();
    let unknown = TestClaim::new("unknown", UID).reference();
    let older = TestClaim::new("my-claim", "older-uid").reference();
    let this = claim.reference();
    let mut foreign = known("gpu-0", "m2");
    foreign.pool_name = "node-2".into();
    let cases = [
        (&unknown, "gpu", known("gpu-0", "m2"), true, "default/unknown"),
        (
            &older,
            "gpu",
            known("gpu-0", "m2"),
            true,
            "another claim with that name is prepared here, with uid 1234-claim-uid",
        ),
        (&this, "tpu", known("gpu-0", "m2"), true, "request tpu is not prepared here; prepared: gpu, net"),
        (&this, "gpu", known("gpu-7", "m2"), false, "device node-1/gpu-7 was not prepared for this request"),
        (&this, "gpu", known("nic-0", "m2"), false, "device node-1/nic-0 was not prepared for this request"),
        (&this, "gpu", foreign, false, "device node-2/gpu-0 was not prepared for this request"),
        (&this, "../gpu", known("gpu-0", "m2"), false, "request name \"..\""),
        (&this, "", known("gpu-0", "m2"), false, "request name \"\""),
    ];
    for (claim, request, device, is_not_prepared, expected) in cases {
        let error = fixture.helper.handles().update_request_metadata(claim, request, vec![device]).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{expected:?} is not in {error}");
        assert_eq!(error.is_not_prepared(), is_not_prepared, "{error}");
    }
    assert_eq!(std::fs::read(fixture.node.metadata_file(&claim, "gpu")).unwrap(), before);

    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    let update = vec![known("gpu-0", "m2")];
    let error = fixture.helper.handles().update_request_metadata(&this, "gpu", update).await.unwrap_err();
    assert!(error.is_not_prepared(), "{error}");
    assert_eq!(fixture.node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
}

/// G34: an update that would make the file invalid is refused, and the old content stays.
#[tokio::test]
async fn an_invalid_update_changes_nothing() {
    let fixture = Fixture::new(knowing("m1")).await;
    let (claim, _) = fixture.prepare(one_gpu()).await;
    let before = std::fs::read(fixture.node.metadata_file(&claim, "gpu")).unwrap();
    let metadata = Some(too_many());

    let update = vec![Device { metadata, ..known("gpu-0", "") }];
    let error = fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap_err();

    assert!(error.to_string().contains("too many: 33") && !error.is_not_prepared(), "{error}");
    assert_eq!(std::fs::read(fixture.node.metadata_file(&claim, "gpu")).unwrap(), before);
    let update = vec![known("gpu-0", "m2")];
    assert_eq!(fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap(), 2);
}

/// The NRI hook of a network driver uses the updater in its own task.
#[tokio::test]
async fn an_updater_works_in_another_task() {
    let fixture = Fixture::new(TestDriver::preparing(|_| Ok(vec![]))).await;
    let updater: Arc<dyn MetadataUpdater> = fixture.helper.handles().metadata_updater();
    let (claim, _) = fixture.prepare(TestClaim::new("my-claim", UID).device("net", "nic-0")).await;
    let reference = claim.reference();

    let hook = tokio::spawn(async move {
        let network_data =
            NetworkDeviceData { interface_name: "net1".into(), ips: vec!["10.1.2.3/24".into()], ..Default::default() };
        let metadata = Some(DeviceMetadata { network_data: Some(network_data), ..Default::default() });
        let device = Device { metadata, ..known("nic-0", "") };
        updater.update_request_metadata(&reference, "net", vec![device]).await
    });

    assert_eq!(hook.await.unwrap().unwrap(), 1);
    let device = &fixture.node.metadata(&claim, "net")["requests"][0]["devices"][0];
    assert_eq!(device["networkData"], json!({"interfaceName": "net1", "ips": ["10.1.2.3/24"]}));
}

/// G29: no update from concurrent tasks is lost: each has its own generation.
#[tokio::test]
async fn concurrent_updates_have_a_generation_each() {
    let fixture = Fixture::new(knowing("m1")).await;
    let (claim, _) = fixture.prepare(one_gpu()).await;
    let updater = fixture.helper.handles().metadata_updater();
    let updates = (0..20).map(|number| {
        let updater = updater.clone();
        let claim = claim.reference();
        tokio::spawn(async move {
            let update = vec![known("gpu-0", &format!("m{number}"))];
            updater.update_request_metadata(&claim, "gpu", update).await.unwrap()
        })
    });

    let mut generations: Vec<i64> = futures::future::join_all(updates).await.into_iter().map(Result::unwrap).collect();

    generations.sort_unstable();
    assert_eq!(generations, (2..22).collect::<Vec<_>>());
    assert_eq!(fixture.node.metadata(&claim, "gpu")["metadata"]["generation"], 21);
}

/// G33: an annotation that is not a valid path component fails its claim, and nothing is written anywhere.
#[tokio::test]
async fn a_hostile_annotation_fails_its_claim_and_writes_nothing() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let long = "a".repeat(64);
    let all = |fixture: &Fixture| -> usize { walk(fixture.node.root.path()) };
    let before = all(&fixture);
    for hostile in ["..", ".", "a/b", "../../../etc", "/etc", "A", "a b", "a\0b", &long] {
        let claim = fixture.node.claim(one_gpu().made_from_template(hostile));
        let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains("annotation resource.kubernetes.io/pod-claim-name: pod claim name"), "{error}");
        assert_eq!(all(&fixture), before, "{hostile:?}");
    }
}

/// Counts the files and directories below a directory.
fn walk(directory: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| 1 + if path.is_dir() { walk(&path) } else { 0 }).sum()
}

/// Section 5.1: an empty annotation counts as none.
#[tokio::test]
async fn an_empty_annotation_is_ignored() {
    let fixture = Fixture::new(TestDriver::default()).await;
    let (claim, _) = fixture.prepare(one_gpu().made_from_template("")).await;

    let released = format!("{RELEASED}/resourceclaims/my-claim/gpu/{DRIVER}-metadata.json");
    assert_eq!(fixture.container_paths(&claim, "gpu")[1], released);
    assert!(fixture.node.metadata(&claim, "gpu").get("podClaimName").is_none());
}

/// Returns one attribute more than a device may have.
fn too_many() -> DeviceMetadata {
    (0..33).fold(DeviceMetadata::default(), |metadata, number| metadata.attribute(format!("a{number}"), number))
}

/// G34: invalid metadata fails its claim, with the field and the rule; other claims are not affected.
#[tokio::test]
async fn invalid_metadata_fails_its_claim_alone() {
    let metadata = Arc::new(Mutex::new(DeviceMetadata::default()));
    let current = metadata.clone();
    let driver = TestDriver::preparing(move |claim| {
        let is_bad = claim.reference().name == "my-claim";
        let metadata = is_bad.then(|| current.lock().unwrap().clone());
        Ok(claim.results().map(|result| Device { metadata: metadata.clone(), ..result.into() }).collect())
    });
    let fixture = Fixture::new(driver.clone()).await;
    let bad = fixture.node.claim(one_gpu());
    let good = fixture.node.claim(TestClaim::new("good", "2").device("gpu", "gpu-1"));
    let both = DeviceAttribute { int: Some(1), string: Some("one".into()), ..DeviceAttribute::default() };
    let network = |network_data: NetworkDeviceData| DeviceMetadata {
        network_data: Some(network_data),
        ..DeviceMetadata::default()
    };
    let ips = (0..17).map(|number| format!("10.0.0.{number}/24")).collect();
    let cases = [
        (too_many(), "attributes: too many: 33, at most 32"),
        (DeviceMetadata::default().attribute("model", both), "has 2 values (int, string)"),
        (DeviceMetadata::default().attribute("model", DeviceAttribute::default()), "has no value"),
        (network(NetworkDeviceData { ips, ..NetworkDeviceData::default() }), "too many: 17"),
    ];
    for (invalid, expected) in cases {
        *metadata.lock().unwrap() = invalid;
        let responses = fixture.kubelet.prepare(&[&bad, &good]).await;
        let error = responses[bad.uid()].as_ref().unwrap_err();
        assert!(error.contains(expected), "{expected:?} is not in {error}");
        assert!(error.contains("claim default/my-claim") && error.contains("request gpu"), "{error}");
        assert!(!fixture.node.metadata_file(&bad, "gpu").exists());
        assert!(responses[good.uid()].is_ok());
    }
}

/// G35: a driver name that is not a valid CDI vendor is refused at the start, with the remedy; without metadata it is accepted.
#[tokio::test]
async fn a_driver_whose_name_starts_with_a_digit_is_refused_at_the_start() {
    let node = Node::default();

    let error = node.builder_for("3d.example.com").start(TestDriver::default()).await.unwrap_err();

    assert!(matches!(error, StartError::CdiVendor { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("3d.example.com") && text.contains("starts with a letter"), "{text}");
    let builder = node.builder_for("3d.example.com").device_metadata(false);
    builder.start(TestDriver::default()).await.unwrap().stop().await.unwrap();
}

/// D4: a claim whose namespace and name do not fit into one directory name is prepared, updated and unprepared like any other.
#[tokio::test]
async fn a_claim_with_the_longest_names_is_handled_like_any_other() {
    let driver = knowing("m1");
    let fixture = Fixture::new(driver.clone()).await;
    let name = format!("{}.{}", "c".repeat(200), "d".repeat(52));
    let (claim, devices) = fixture.prepare(TestClaim::new(&name, UID).device("gpu", "gpu-0")).await;
    assert_eq!(name.len(), 253);

    assert_eq!(cdi_devices(&devices), ["gpu.example.com/metadata=1234-claim-uid_gpu"]);
    let spec = fixture.spec(&claim, "gpu");
    let mount = &spec["devices"][0]["containerEdits"]["mounts"][0];
    assert_eq!(mount["containerPath"], format!("{KEP}/{name}/gpu/{DRIVER}-metadata.json"));
    let host_file = PathBuf::from(mount["hostPath"].as_str().unwrap());
    let seen = File::open(&host_file).unwrap();
    assert_eq!(read(&seen)["metadata"]["name"], name);
    let fixture = fixture.restart(driver.clone(), |builder| builder).await;
    let update = vec![known("gpu-0", "m2")];
    assert_eq!(fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", update).await.unwrap(), 2);
    assert_eq!(fixture.kubelet.prepare_one(&claim).await.unwrap(), devices);
    assert_eq!(model(&read(&seen)), "m2");

    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), ["plugins/gpu.example.com/dra-device-metadata"]);
}
