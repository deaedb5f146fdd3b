use std::collections::BTreeMap;
use std::sync::Mutex;

use drakkar_plugin::ConditionStatus;
use drakkar_sysfs::Roots;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::DRIVER_NAME;
use crate::attacher::Sandbox;
use crate::claims::Patience;
use crate::claims::tests::node::{Node, found};
use crate::published::MtuLimits;
use crate::reports::Report;

const UID: &str = "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11";

/// The devices that are published.
#[derive(Debug, Default)]
struct Devices(Mutex<BTreeMap<String, Found>>);

impl Published for Devices {
    fn require(&self, device: &str) -> Result<Found, BoxError> {
        self.0.lock().unwrap().get(device).cloned().ok_or_else(|| format!("no device {device}").into())
    }

    fn claims_changed(&self, _devices: Vec<String>) {}
}

/// The statuses that are reported, and the requests whose metadata is taken back.
#[derive(Debug, Default)]
struct Statuses(Mutex<Vec<DeviceStatus>>, Mutex<Vec<String>>);

impl Reports for Statuses {
    fn publish<'a>(&'a self, _: &'a ClaimRef, _: &'a str, _: Vec<Device>, _: &'a str) -> Report<'a> {
        Box::pin(async { Ok(()) })
    }

    fn withdraw<'a>(&'a self, _: &'a ClaimRef, request: &'a str) -> Report<'a> {
        self.1.lock().unwrap().push(request.to_owned());
        Box::pin(async { Ok(()) })
    }

    fn report(&self, _claim: &ClaimRef, statuses: Vec<DeviceStatus>) {
        self.0.lock().unwrap().extend(statuses);
    }
}

struct Fixture {
    node: Node,
    /// Of the kernel, and of CDI specs.
    directory: tempfile::TempDir,
    devices: Arc<Devices>,
    statuses: Arc<Statuses>,
    driver: NetDriver,
}

impl Fixture {
    /// A driver with the device eth1.
    fn new(device: Found) -> Self {
        let node = Node::new();
        let devices = Arc::new(Devices(Mutex::new([("eth1".to_owned(), device)].into())));
        let statuses = Arc::<Statuses>::default();
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::below(directory.path());
        let driver_name = DRIVER_NAME.parse().unwrap();
        let rdma_nodes = RdmaNodes::open(&roots, driver_name, directory.path().join("cdi"), roots.dev.clone());
        let claims = Arc::new(node.start());
        let metrics = Metrics::default();
        let hooks = Hooks::new(claims.clone(), node.attacher(), devices.clone(), statuses.clone(), metrics.clone());
        let driver = NetDriver {
            claims,
            attacher: node.attacher(),
            published: devices.clone(),
            reports: statuses.clone(),
            hooks,
            rdma_nodes: Arc::new(rdma_nodes.unwrap()),
            metrics,
            health: None,
        };
        Self { node, directory, devices, statuses, driver }
    }

    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        self.driver.prepare(claim).await.map_err(|error| error.to_string())
    }
}

/// A claim of a pod for the device eth1.
fn claim(parameters: &Value, change: impl FnOnce(&mut Value)) -> Claim {
    let mut parameters = parameters.clone();
    parameters["apiVersion"] = "net.drakkar.dev/v1alpha1".into();
    parameters["kind"] = "ClaimConfig".into();
    let mut object = json!({
        "metadata": {"namespace": "default", "name": "a", "uid": UID},
        "spec": {},
        "status": {
            "reservedFor": [{"resource": "pods", "name": "web", "uid": "pod"}],
            "allocation": {"devices": {
                "results": [{"request": "net", "driver": "net.drakkar.dev", "pool": "node-1", "device": "eth1", "adminAccess": false}],
                "config": [{"source": "FromClaim", "opaque": {"driver": "net.drakkar.dev", "parameters": parameters}}],
            }},
        },
    });
    change(&mut object);
    Claim::from_object("net.drakkar.dev", serde_json::from_value(object).unwrap()).unwrap()
}

fn is_unchanged(_: &mut Value) {}

#[tokio::test]
async fn an_interface_is_reserved_and_waits_for_the_sandbox() {
    let fixture = Fixture::new(found(1));
    let claim = claim(&json!({"interfaceName": "data0"}), is_unchanged);
    assert_eq!(fixture.prepare(&claim).await.unwrap(), [], "its metadata comes later, behind the gate");
    let record = fixture.driver.claims.find(&claim.reference().uid).unwrap();
    assert_eq!((record.pods.as_slice(), record.devices[0].request.as_str()), (&["pod".to_owned()][..], "net"));
    assert_eq!(record.interfaces().next().unwrap().plan.name, "data0");
    assert!(fixture.node.is_as_it_was());
    let status = fixture.statuses.0.lock().unwrap()[0].clone();
    assert_eq!(
        (status.conditions[0].status, status.conditions[0].reason.as_str()),
        (ConditionStatus::False, "WaitingForSandbox")
    );
    fixture.driver.unprepare(claim.reference()).await.unwrap();
    assert!(fixture.driver.claims.find(&claim.reference().uid).is_none());
}

#[tokio::test]
async fn a_claim_in_a_pod_is_confirmed_although_its_interface_is_not_on_the_host() {
    let fixture = Fixture::new(found(1));
    let claim = claim(&json!({}), is_unchanged);
    fixture.prepare(&claim).await.unwrap();
    let sandbox: Sandbox = fixture.node.sandbox("pod", "s1");
    fixture.driver.claims.attach(&sandbox, &Patience { deadline: None, is_over: &|| false }).unwrap();
    fixture.devices.0.lock().unwrap().clear();
    fixture.statuses.0.lock().unwrap().clear();
    assert_eq!(fixture.prepare(&claim).await.unwrap(), []);
    assert!(fixture.statuses.0.lock().unwrap().is_empty(), "what the hook has reported stays");
    assert!(!fixture.node.is_as_it_was());
}

#[tokio::test]
async fn a_claim_that_is_for_another_pod_now_loses_the_metadata_of_the_first() {
    let fixture = Fixture::new(found(1));
    let first = claim(&json!({}), is_unchanged);
    fixture.prepare(&first).await.unwrap();
    let sandbox: Sandbox = fixture.node.sandbox("pod", "s1");
    fixture.driver.claims.attach(&sandbox, &Patience { deadline: None, is_over: &|| false }).unwrap();
    let withdrawn = || std::mem::take(&mut *fixture.statuses.1.lock().unwrap());
    fixture.prepare(&first).await.unwrap();
    fixture.driver.hooks.finish().await;
    assert!(withdrawn().is_empty(), "its pod has the interface");

    let second = claim(&json!({}), |object| object["status"]["reservedFor"][0]["uid"] = "other".into());
    fixture.node.kernel.lock().unwrap().is_stuck = true;
    fixture.prepare(&second).await.unwrap_err();
    fixture.driver.hooks.finish().await;
    assert_eq!(withdrawn(), ["net"], "also if the interface cannot be brought back");
    fixture.node.kernel.lock().unwrap().is_stuck = false;
    fixture.prepare(&second).await.unwrap();
    fixture.driver.hooks.finish().await;
    assert_eq!(withdrawn(), ["net"]);
    assert!(fixture.node.is_as_it_was());
    let status = fixture.statuses.0.lock().unwrap().pop().unwrap();
    assert_eq!(status.conditions[0].reason, "WaitingForSandbox");
}

#[tokio::test]
async fn a_device_for_user_space_is_complete_at_the_prepare() {
    let fixture = Fixture::new(Found { interface: None, ..found(1) });
    let claim = claim(&json!({"driver": "vfio-pci"}), is_unchanged);
    let devices = fixture.prepare(&claim).await.unwrap();
    assert_eq!(devices[0].cdi_device_ids, [format!("net.drakkar.dev/device={UID}_0000:03:00.1")]);
    let metadata = devices[0].metadata.clone().unwrap();
    assert_eq!(metadata.attributes["resource.kubernetes.io/pciBusID"], "0000:03:00.1".into());
    assert_eq!(
        (&metadata.attributes["iommuGroup"], &metadata.attributes["vfioNode"]),
        (&7.into(), &"/dev/vfio/7".into())
    );
    let status = fixture.statuses.0.lock().unwrap()[0].clone();
    assert_eq!((status.conditions[0].status, status.conditions[0].reason.as_str()), (ConditionStatus::True, "Bound"));
    assert_eq!(fixture.prepare(&claim).await.unwrap(), devices);
}

/// No change of the claim.
const UNCHANGED: (&str, Value) = ("", Value::Null);

#[rstest]
#[case(json!({}), ("/status/allocation/devices/results/0/adminAccess", true.into()), "request net: admin access is not supported")]
#[case(json!({}), ("/status/reservedFor/0/resource", "jobs".into()), "is reserved for jobs web, which is not a pod")]
#[case(json!({}), ("/status/reservedFor", json!([])), "is reserved for no pod")]
#[case(json!({}), ("/status/allocation/devices/results/0/device", "eth9".into()), "no device eth9")]
#[case(json!({"mtu": 12}), UNCHANGED, "request net: config[0].opaque.parameters.mtu: 12 must be from 68 to 65535")]
#[case(json!({"mtu": 9001}), UNCHANGED, "request net: device eth1: mtu: 9001 is more than the device can have, 9000")]
#[case(json!({"mtu": 500}), UNCHANGED, "mtu: 500 is less than the device can have, 1000")]
#[case(json!({"mtu": 1501, "macvlan": {}}), UNCHANGED, "mtu: 1501 is more than that of the device, 1500, on top of which")]
#[case(json!({"rdmaExclusive": true}), UNCHANGED, "has no RDMA device: remove rdmaExclusive")]
#[tokio::test]
async fn what_cannot_work_is_refused_at_the_prepare(
    #[case] parameters: Value,
    #[case] (path, value): (&str, Value),
    #[case] expected: &str,
) {
    let mtu = MtuLimits { now: 1500, min: Some(1000), max: Some(9000) };
    let fixture = Fixture::new(Found { mtu: Some(mtu), ..found(1) });
    let change = |object: &mut Value| {
        if let Some(field) = object.pointer_mut(path).filter(|_| !path.is_empty()) {
            *field = value;
        }
    };
    let error = fixture.prepare(&claim(&parameters, change)).await.unwrap_err();
    assert!(error.contains(expected), "{error}");
    assert_eq!(fixture.driver.claims.count().devices, 0);
}

#[tokio::test]
async fn a_shared_device_stays_on_the_host() {
    let fixture = Fixture::new(Found { is_shared: true, ..found(1) });
    for parameters in [json!({}), json!({"driver": "vfio-pci"})] {
        let error = fixture.prepare(&claim(&parameters, is_unchanged)).await.unwrap_err();
        assert!(error.contains("is shared by several claims"), "{error}");
    }
    fixture.prepare(&claim(&json!({"macvlan": {}}), is_unchanged)).await.unwrap();
}

/// Only containers of the request get the nodes, and not before the gate opens.
#[tokio::test]
async fn the_nodes_of_an_rdma_device_come_with_its_interface() {
    let attributes = [("rdmaDevice".to_owned(), "mlx5_0".into())].into();
    let fixture = Fixture::new(Found { attributes, ..found(1) });
    let directory = fixture.directory.path();
    for (file, content) in [
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
        ("sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1\n"),
        ("sys/class/misc/rdma_cm/dev", "10:58\n"),
        ("dev/infiniband/uverbs0", ""),
        ("dev/infiniband/rdma_cm", ""),
    ] {
        let path = directory.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let whole = claim(&json!({}), is_unchanged);
    let devices = fixture.prepare(&whole).await.unwrap();
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!(device.cdi_device_ids, [format!("net.drakkar.dev/rdma={UID}_eth1")]);
    assert_eq!((device.requests.as_slice(), &device.metadata), (&["net".to_owned()][..], &None), "it comes later");
    assert_eq!(fixture.prepare(&whole).await.unwrap(), devices, "again");
    let spec = directory.join(format!("cdi/net.drakkar.dev_rdma_{UID}.json"));
    let text = std::fs::read_to_string(&spec).unwrap();
    assert!(text.contains("/dev/infiniband/uverbs0") && text.contains("/dev/infiniband/rdma_cm"), "{text}");
    assert!(!text.contains("uverbs1"), "{text}");
    fixture.driver.unprepare(whole.reference()).await.unwrap();
    assert!(!spec.exists());

    // The RDMA device of a shared interface belongs to no claim.
    let shared = claim(&json!({"macvlan": {}}), is_unchanged);
    assert_eq!(fixture.prepare(&shared).await.unwrap(), []);
    assert!(!spec.exists());
}
