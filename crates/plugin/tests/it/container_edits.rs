//! Tests of container edits: the driver returns them with a device, the framework writes and removes the CDI spec.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use drakkar_cdi::Spec;
use drakkar_plugin::{Claim, ContainerEdits, Device, DeviceMetadata, DraPlugin as _, Hook, Mount, PluginBuilder};
use serde_json::json;

use crate::support::{DRIVER, Fixture, Kubelet, Node, TestClaim, TestDriver, cdi_devices};

impl Node {
    fn claim_spec_file(&self, claim: &TestClaim) -> PathBuf {
        self.cdi_directory().join(format!("{DRIVER}_container-edits_{}.json", claim.uid()))
    }

    /// Returns the spec of the claim's devices.
    fn claim_spec(&self, claim: &TestClaim) -> Spec {
        Spec::parse(&std::fs::read(self.claim_spec_file(claim)).unwrap()).unwrap()
    }
}

fn edits(device: &str) -> ContainerEdits {
    ContainerEdits::default()
        .device_node("/dev/null")
        .mount(Mount::read_only("/etc/hostname", "/etc/gpu"))
        .env_var("GPU", device)
        .hook(Hook::new("createContainer", "/bin/true", [device]))
}

/// Returns the allocated devices with edits, a CDI device of the driver's own, and metadata.
fn edited(claim: &Claim) -> Vec<Device> {
    let devices = claim.results().map(|result| Device {
        cdi_device_ids: vec![format!("{DRIVER}/gpu={}", result.device)],
        container_edits: edits(&result.device),
        metadata: Some(DeviceMetadata::default().attribute("model", "m1")),
        ..Device::from(result)
    });
    devices.collect()
}

fn driver() -> TestDriver {
    TestDriver::preparing(|claim| Ok(edited(claim)))
}

fn without_metadata(builder: PluginBuilder) -> PluginBuilder {
    builder.device_metadata(false)
}

fn id(claim: &TestClaim, name: &str) -> String {
    format!("{DRIVER}/container-edits={}_{name}", claim.uid())
}

#[tokio::test]
async fn the_edits_of_a_device_become_a_cdi_device_of_the_claims_spec() {
    let fixture = Fixture::with(driver(), without_metadata).await;
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0").device("other", "gpu-1");
    let claim = fixture.node.claim(claim);

    let devices = fixture.kubelet.prepare_one(&claim).await.unwrap();

    assert_eq!(devices[0].cdi_device_ids, [format!("{DRIVER}/gpu=gpu-0"), id(&claim, "gpu-0")]);
    assert_eq!(devices[1].cdi_device_ids, [format!("{DRIVER}/gpu=gpu-1"), id(&claim, "gpu-1")]);
    assert_eq!(
        (&devices[0].request_names[..], &devices[1].request_names[..]),
        (&["gpu".into()][..], &["other".into()][..])
    );
    let spec = fixture.node.claim_spec(&claim);
    assert_eq!(spec.kind, format!("{DRIVER}/container-edits"));
    assert_eq!(spec.devices[0].container_edits, edits("gpu-0"));
    assert_eq!(spec.devices[1].container_edits, edits("gpu-1"));
    drakkar_cdi::validate_strict(&spec).unwrap();

    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), [format!("plugins/{DRIVER}/dra-device-metadata")]);
}

/// D9: metadata is for the containers of one request, whatever the devices have besides.
#[tokio::test]
async fn edits_and_metadata_go_side_by_side_to_the_containers_of_their_request() {
    let driver = TestDriver::preparing(|claim| {
        let mut devices = edited(claim);
        devices[1].requests = vec!["nic".into(), "spare".into()];
        devices.truncate(2);
        Ok(devices)
    });
    let fixture = Fixture::new(driver).await;
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0").device("nic", "nic-0").device("spare", "nic-0");
    let claim = fixture.node.claim(claim);

    let devices = fixture.kubelet.prepare_one(&claim).await.unwrap();

    let ids_of = |request: &str| {
        let of_request = devices.iter().filter(|device| device.request_names.iter().any(|name| name == request));
        of_request.flat_map(|device| device.cdi_device_ids.clone()).collect::<Vec<_>>()
    };
    let metadata = |request: &str| format!("{DRIVER}/metadata={}_{request}", claim.uid());
    let own = |device: &str| format!("{DRIVER}/gpu={device}");
    assert_eq!(ids_of("gpu"), [own("gpu-0"), id(&claim, "gpu-0"), metadata("gpu")]);
    assert_eq!(ids_of("nic"), [own("nic-0"), id(&claim, "nic-0"), metadata("nic")]);
    assert_eq!(ids_of("spare"), [own("nic-0"), id(&claim, "nic-0"), metadata("spare")]);
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), [format!("plugins/{DRIVER}/dra-device-metadata")]);
}

#[tokio::test]
async fn a_repeated_prepare_in_another_order_gives_the_same_ids_and_leaves_the_spec_alone() {
    use std::os::unix::fs::MetadataExt as _;
    let reversed = Arc::new(Mutex::new(false));
    let order = reversed.clone();
    let driver = TestDriver::preparing(move |claim| {
        let mut devices = edited(claim);
        // One device of two requests, which are prepared apart.
        devices[2].container_edits = ContainerEdits::default().env_var("SPARE", 1);
        if *order.lock().unwrap() {
            devices.reverse();
        }
        Ok(devices)
    });
    let fixture = Fixture::with(driver.clone(), without_metadata).await;
    let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0").device("b", "gpu-1").device("c", "gpu-1");
    let claim = fixture.node.claim(claim);
    let state = |node: &Node| {
        let file = std::fs::metadata(node.claim_spec_file(&claim)).unwrap();
        (file.ino(), file.mtime_nsec())
    };

    let first = fixture.kubelet.prepare_one(&claim).await.unwrap();
    let before = state(&fixture.node);
    let spec = fixture.node.claim_spec(&claim);
    *reversed.lock().unwrap() = true;
    let fixture = fixture.restart(driver, without_metadata).await;
    let mut second = fixture.kubelet.prepare_one(&claim).await.unwrap();
    second.reverse();

    assert_eq!(cdi_devices(&second), cdi_devices(&first));
    assert!(cdi_devices(&first).contains(&&*id(&claim, "gpu-1_2")), "{first:?}");
    assert_eq!(spec.devices.last().unwrap().container_edits.env, ["SPARE=1"]);
    assert_eq!(state(&fixture.node), before);
}

#[tokio::test]
async fn invalid_edits_are_refused_with_claim_device_and_field_and_leave_no_files() {
    let response = Arc::new(Mutex::new(ContainerEdits::default()));
    let current = response.clone();
    let driver = TestDriver::preparing(move |claim| {
        let mut devices = edited(claim);
        devices[1].container_edits = current.lock().unwrap().clone();
        Ok(devices)
    });
    let mount = |host: &str, container: &str| edits("x").mount(Mount::read_only(host, container));
    let cases = [
        (mount("opt", "/opt"), "containerEdits.mounts[1].hostPath: \"opt\" is not valid: must be absolute"),
        (mount("/opt", "/proc/x"), "containerEdits.mounts[1].containerPath"),
        (mount("/opt", "/etc/gpu"), "containerEdits.mounts[1].containerPath: \"/etc/gpu\" is a duplicate"),
        (edits("x").device_node("null"), "containerEdits.deviceNodes[1].path"),
        (edits("x").env_var("", ""), "containerEdits.env[1]: \"=\" is not valid"),
        (edits("x").hook(Hook::new("later", "/bin/true", [""; 0])), "containerEdits.hooks[1].hookName"),
        (
            mount("/opt", "/var/run/dra-device-attributes/train"),
            "containerEdits.mounts[1].containerPath: \"/var/run/dra-device-attributes/train\" is where containers see their",
        ),
        (mount("/opt", "/run/kubernetes.io/dra-device-attributes"), "is where containers see their metadata"),
    ];
    for metadata in [true, false] {
        let fixture = Fixture::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
        let claim = TestClaim::new("train", "uid-1").device("gpu", "gpu-0").device("other", "gpu-1");
        let claim = fixture.node.claim(claim);
        for (wrong, expected) in &cases {
            *response.lock().unwrap() = wrong.clone();
            let error = fixture.kubelet.prepare_one(&claim).await.unwrap_err();
            for part in ["claim default/train", "uid-1", "device node-1/gpu-1", *expected] {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
            assert!(!fixture.node.files().iter().any(|file| file.ends_with(".json")), "{:?}", fixture.node.files());
        }
        *response.lock().unwrap() = edits("gpu-1");
        fixture.kubelet.prepare_one(&claim).await.unwrap();
    }
}

#[tokio::test]
async fn a_driver_whose_name_is_no_cdi_vendor_cannot_return_edits() {
    let node = Node::default();
    let result = json!({"request": "gpu", "driver": "3d.example.com", "pool": "node-1", "device": "gpu-0"});
    let claim = node.claim(TestClaim::new("train", "uid-1").result(result));
    let helper = node.builder_for("3d.example.com").device_metadata(false).start(driver()).await.unwrap();
    let error = Kubelet::of(&helper).await.prepare_one(&claim).await.unwrap_err();
    assert!(error.contains("claim default/train") && error.contains("must start with a letter"), "{error}");
    helper.stop().await.unwrap();
}

/// D8: with metadata off, the record of the edits does not turn metadata on.
#[tokio::test]
async fn a_claim_with_edits_gets_metadata_only_when_it_is_enabled() {
    let fixture = Fixture::with(driver(), without_metadata).await;
    let claim = fixture.node.named_claim("train");
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    let fixture = fixture.restart(driver(), without_metadata).await;
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(!fixture.node.metadata_file(&claim, "gpu").exists());
    let error = fixture.helper.handles().update_request_metadata(&claim.reference(), "gpu", vec![]).await.unwrap_err();
    assert!(error.is_not_prepared(), "{error}");

    let fixture = fixture.restart(driver(), |builder| builder).await;
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(fixture.node.is_prepared(&claim));

    // Turned off again: what was written stays until the claim is unprepared.
    let fixture = fixture.restart(driver(), without_metadata).await;
    let devices = fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(cdi_devices(&devices).iter().any(|id| id.contains("/metadata=")), "{devices:?}");
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), [format!("plugins/{DRIVER}/dra-device-metadata")]);
}

#[tokio::test]
async fn edits_that_the_driver_no_longer_returns_are_removed() {
    let fixture = Fixture::with(driver(), without_metadata).await;
    let claim = fixture.node.named_claim("train");
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(fixture.node.claim_spec_file(&claim).exists());
    let fixture = fixture.restart(TestDriver::default(), without_metadata).await;
    let devices = fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert!(!cdi_devices(&devices).iter().any(|id| id.contains("/container-edits=")), "{devices:?}");
    assert!(!fixture.node.claim_spec_file(&claim).exists());
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(fixture.node.files(), [format!("plugins/{DRIVER}/dra-device-metadata")]);
}

/// Without metadata too, a claim with edits has a record: its devices are held across restarts, and a claim that is gone is
/// collected.
#[tokio::test]
async fn a_claim_with_edits_is_known_after_a_restart() {
    let fixture = Fixture::with(driver(), without_metadata).await;
    let claim = fixture.node.named_claim("train");
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    std::fs::remove_file(fixture.node.claim_spec_file(&claim)).unwrap();
    let fixture = fixture.restart(driver(), without_metadata).await;
    assert_eq!(fixture.node.claim_spec(&claim).devices.len(), 1, "the spec is restored at the start");
    let thief = fixture.node.claim(TestClaim::new("thief", "uid-2").device("gpu", "gpu-train"));
    let error = fixture.kubelet.prepare_one(&thief).await.unwrap_err();
    assert!(error.contains("is still prepared for claim default/train"), "{error}");
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    fixture.kubelet.prepare_one(&thief).await.unwrap();
}

/// Both instances of a rolling update, with the locks between them.
#[tokio::test]
async fn an_instance_of_a_rolling_update_takes_over_the_spec_of_the_other() {
    const PODS: [&str; 2] = ["ad4af911-5bcd-47c5-a554-f35cea869472", "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"];
    let node = Node::default();
    let claim = node.named_claim("train");
    let start = async |pod: &str| {
        let builder = node.builder().device_metadata(false).rolling_update(pod);
        builder.start(driver()).await.unwrap()
    };
    let old = start(PODS[0]).await;
    let first = Kubelet::of(&old).await.prepare_one(&claim).await.unwrap();
    let new = start(PODS[1]).await;
    assert_eq!(Kubelet::of(&new).await.prepare_one(&claim).await.unwrap(), first);
    old.stop().await.unwrap();
    assert!(node.claim_spec_file(&claim).exists());
    Kubelet::of(&new).await.unprepare_one(&claim).await.unwrap();
    assert!(!node.claim_spec_file(&claim).exists());
    new.stop().await.unwrap();
}

/// A driver that a test or a task of its own keeps a handle of.
#[tokio::test]
async fn a_driver_in_an_arc_is_a_driver() {
    let driver = Arc::new(driver());
    let fixture = Fixture::new(driver.clone()).await;
    let claim = fixture.node.named_claim("train");
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    fixture.kubelet.unprepare_one(&claim).await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare train", "unprepare train"]);
    assert!(driver.health_monitor().is_none());
}
