//! Published resources as an API server stores them.

mod change;
mod failures;
mod publishing;
mod restored;

use std::time::Duration;

use drakkar_node::api::DraVersion;
use drakkar_plugin::{
    Capacity, DeviceAttribute, DeviceNodes, DriverResources, NodeSelection, Pool, PublishError, PublishStatus,
    PublishedDevice,
};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, DeviceTaint, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::json;

use self::publishing::{names, pool, publish, published, status};
use crate::support::{Cluster, Kubelet, POOL, TestDriver, eventually, http_get, in_time};

fn gpu(name: &str) -> PublishedDevice {
    PublishedDevice::new(name).attribute("model", "m1").capacity("memory", "1024Mi")
}

/// The resources of a driver with one pool.
fn resources(pool: Pool) -> DriverResources {
    DriverResources::default().pool(POOL, pool)
}

fn gpus(count: usize) -> Pool {
    Pool::default().devices((0..count).map(|number| gpu(&format!("gpu-{number}"))))
}

#[tokio::test]
async fn the_first_publish_creates_a_slice_with_its_owner_and_the_same_again_writes_nothing() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    assert_eq!(*helper.handles().publisher().status().borrow(), PublishStatus::Nothing);
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "no requests before the first publish");

    publish(&helper, resources(gpus(2))).await;
    let slices = cluster.slices().await;
    let [slice] = slices.as_slice() else { panic!("{slices:#?}") };
    assert_eq!((pool(slice), names(slice)), ((1, 1), vec!["gpu-0", "gpu-1"]));
    let driver = cluster.names.driver.as_str();
    let node = cluster.names.node.as_str();
    assert_eq!((slice.spec.driver.as_str(), slice.spec.node_name.as_deref()), (driver, Some(node)));
    assert!(slice.metadata.name.as_deref().unwrap().starts_with(&format!("00000-{driver}-{node}-")));
    let owners = slice.metadata.owner_references.as_deref().unwrap_or_default();
    let [owner] = owners else { panic!("{owners:?}") };
    assert_eq!((owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str()), ("v1", "Node", node));
    assert_eq!((&owner.uid, owner.controller), (&cluster.node_uid, Some(true)));
    let requests = cluster.proxy.requests();
    let media: Vec<_> =
        requests.iter().filter(|request| request.verb == "create").map(|request| request.media.as_str()).collect();
    assert_eq!(media, ["application/vnd.kubernetes.protobuf"], "and the server accepted it");
    assert_eq!(cluster.take_slice_verbs(), ["list", "create"]);

    publish(&helper, resources(gpus(2))).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "the same again");
    helper.stop().await.unwrap();

    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(2))).await;
    assert_eq!(cluster.take_slice_verbs(), ["list"], "the same from a new process");
    helper.stop().await.unwrap();
    assert_eq!(cluster.slices().await.len(), 1, "slices outlive the driver");
}

#[tokio::test]
async fn the_node_is_not_looked_up_if_its_uid_is_configured() {
    for (is_configured, expected) in [(true, 0), (false, 1)] {
        let cluster = Cluster::new().await;
        let mut builder = cluster.builder();
        if is_configured {
            builder = builder.node_uid(&cluster.node_uid);
        }
        let helper = builder.start(TestDriver::default()).await.unwrap();
        publish(&helper, resources(gpus(2))).await;
        assert_eq!(cluster.proxy.requests().iter().filter(|request| request.is_about("nodes")).count(), expected);
        let owners = cluster.slices().await.remove(0).metadata.owner_references.unwrap();
        assert_eq!(owners[0].uid, cluster.node_uid);
        helper.stop().await.unwrap();
    }
}

#[tokio::test]
async fn the_status_page_shows_the_state_of_publishing() {
    let cluster = Cluster::new().await;
    let builder = cluster.builder().http_endpoint("127.0.0.1:0".parse().unwrap());
    let helper = builder.start(TestDriver::default()).await.unwrap();
    let address = helper.http_address().unwrap();
    let line = async || {
        let (_, page) = http_get(address, "/statusz").await;
        let line = page.lines().find_map(|line| line.strip_prefix("Published resources: ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("{page}"))
    };
    assert_eq!(line().await, "nothing yet");
    publish(&helper, resources(gpus(200))).await;
    assert_eq!(line().await, "published; pools: 1, slices: 2, highest generation: 1; no error so far");

    helper.handles().publish_resources(resources(Pool::default().device(gpu("Not-A-Name")))).unwrap();
    status(&helper, |status| matches!(status, PublishStatus::Failing(_))).await;
    let failing = line().await;
    let rest = failing.strip_prefix("failing; pools: 1, slices: 2, highest generation: 1; last error at 20");
    assert!(rest.is_some_and(|rest| rest.ends_with("Z: a pool is not valid, see the log")), "{failing}");
    assert!(!failing.contains("Not-A-Name"), "pages name no devices: {failing}");

    publish(&helper, resources(gpus(200))).await;
    let over = line().await;
    assert!(over.starts_with("published; pools: 1,") && over.contains("last error at 20"), "{over}");
    helper.stop().await.unwrap();
}

#[tokio::test]
async fn every_field_of_a_device_is_stored() {
    let gates = ["DRAListTypeAttributes", "DRAOptionalNodeOperations", "DRAPartitionableDevicesType"];
    let Some(cluster) = Cluster::with_gates(&gates.map(|gate| (gate, true))).await else { return };
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    let policy = CapacityRequestPolicy {
        default: Some(Quantity("1Gi".into())),
        valid_values: Some(vec![Quantity("1Gi".into()), Quantity("2048Mi".into())]),
        valid_range: None,
    };
    let device = gpu("gpu-0")
        .attribute("cores", 64)
        .attribute("healthy", true)
        .attribute("example.com/firmware", DeviceAttribute::version("1.2.3"))
        .attribute("numa", vec![0, 1])
        .attribute("flags", vec![true, false])
        .attribute("links", vec!["a", "b"])
        .attribute("apis", DeviceAttribute::versions(["1.0.0", "2.0.0"]))
        .attribute("profile", "half")
        .capacity("share", Capacity::from("8Gi").request_policy(policy))
        .allow_multiple_allocations()
        .taint("example.com/sick", "yes", "NoSchedule")
        .consumes("gpu-0-memory", [("memory", "40Gi")])
        .binding_conditions(["Ready"], ["Broken"]);
    let pool = Pool {
        partition_type_attribute: Some(format!("{}/profile", cluster.names.driver)),
        skip_node_operations: vec!["*".into()],
        ..Pool::default().counter_set("gpu-0-memory", [("memory", "80Gi")]).device(device).device(gpu("gpu-1"))
    };
    publish(&helper, resources(pool.clone())).await;
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    let slices = cluster.slices().await;
    assert_eq!(slices.len(), 2, "counters have a slice of their own");
    assert_eq!(slices[0].spec.shared_counters.as_ref().unwrap()[0].name, "gpu-0-memory");
    let devices = serde_json::to_value(&slices[1].spec.devices).unwrap();
    assert_eq!(devices[0]["attributes"]["numa"], json!({"ints": [0, 1]}));
    assert_eq!(devices[0]["attributes"]["apis"], json!({"versions": ["1.0.0", "2.0.0"]}));
    assert_eq!(devices[0]["capacity"]["memory"], json!({"value": "1Gi"}), "in the canonical form of the server");
    assert_eq!(devices[0]["bindingFailureConditions"], json!(["Broken"]));
    assert_eq!(slices[1].spec.skip_node_operations.as_deref(), Some(&["*".to_owned()][..]));

    cluster.take_slice_verbs();
    publish(&helper, resources(pool)).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "another form of the same value is no change");
}

/// G56: the framework splits the pool; any change of one device is one write.
#[tokio::test]
async fn one_device_of_a_thousand_is_one_write() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(1000))).await;
    let slices = cluster.slices().await;
    assert_eq!(slices.len(), 8);
    let all: Vec<String> = slices.iter().flat_map(|slice| names(slice)).map(str::to_owned).collect();
    assert_eq!(all, (0..1000).map(|number| format!("gpu-{number}")).collect::<Vec<_>>(), "in order");

    let mut changed = gpus(1000);
    changed.devices.set(500, gpu("gpu-500").attribute("model", "m2"));
    let mut more = changed.clone();
    more.devices.insert(300, gpu("late"));
    let mut less = more.clone();
    less.devices.remove(700);
    cluster.take_slice_verbs();
    for (what, pool) in [("changed", changed), ("added", more), ("removed", less)] {
        publish(&helper, resources(pool)).await;
        assert_eq!(cluster.take_slice_verbs(), ["update"], "{what}");
    }
    helper.stop().await.unwrap();
    let helper = cluster.start(&TestDriver::default()).await;
    let mut again = gpus(1000);
    again.devices.set(500, gpu("gpu-500").attribute("model", "m2"));
    again.devices.insert(300, gpu("late"));
    again.devices.remove(700);
    publish(&helper, resources(again)).await;
    assert_eq!(cluster.take_slice_verbs(), ["list"], "a new process leaves devices in their slices");
}

#[tokio::test]
async fn a_pool_that_is_no_longer_published_is_deleted() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(1)).pool("other", gpus(1))).await;
    assert_eq!(cluster.slices().await.len(), 2);
    publish(&helper, resources(gpus(1))).await;
    assert_eq!(cluster.slices().await.iter().map(|slice| slice.spec.pool.name.clone()).collect::<Vec<_>>(), [POOL]);
    publish(&helper, resources(Pool::default())).await;
    let slices = cluster.slices().await;
    assert_eq!((slices.len(), names(&slices[0])), (1, vec![]), "an empty pool is published as such");
    publish(&helper, DriverResources::default()).await;
    assert_eq!(cluster.slices().await.len(), 0);
}

/// G47, G57: upstream leaves a node without devices for 30 s, and starts at generation 1 again.
#[tokio::test]
async fn slices_that_a_kubelet_wipes_come_back_at_once_with_a_higher_generation() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(300))).await;
    cluster.wipe().await;
    // On a slow machine the repair may start before the wipe has ended, and is then repeated.
    let is_back = |slices: &[ResourceSlice], above: i64| {
        let generation = slices.first().map_or(0, |slice| slice.spec.pool.generation);
        slices.len() == 3 && generation > above && slices.iter().all(|slice| pool(slice) == (generation, 3))
    };
    let slices = cluster.until("the slices are back", |slices| is_back(slices, 1)).await;
    published(&helper).await;
    let generation = slices[0].spec.pool.generation;

    helper.stop().await.unwrap();
    cluster.wipe().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(300))).await;
    assert!(is_back(&cluster.slices().await, generation), "also after a restart");
}

/// A.7: an update followed by a foreign delete. Labels that others add stay.
#[tokio::test]
async fn foreign_changes_of_slices_are_reverted_except_labels() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(1))).await;
    let slices = cluster.slices().await;
    let name = slices[0].metadata.name.clone().unwrap();
    let patch = json!({"metadata": {"labels": {"team": "a"}}, "spec": {"devices": [{"name": "stolen"}]}});
    cluster.slice_api().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let slices = cluster.until("the devices are back", |slices| names(&slices[0]) == ["gpu-0"]).await;
    assert_eq!(slices[0].metadata.labels.as_ref().unwrap()["team"], "a");

    let _ = cluster.slice_api().delete(&name, &DeleteParams::default()).await.unwrap();
    cluster
        .until("the slice is back", |slices| slices.len() == 1 && slices[0].metadata.name.as_ref() != Some(&name))
        .await;
    published(&helper).await;

    // A foreign slice with the driver's name.
    let mut foreign = slices[0].clone();
    foreign.metadata = Default::default();
    foreign.metadata.name = Some(format!("foreign-{}", cluster.names.id));
    foreign.spec.pool.name = "unknown".into();
    cluster.slice_api().create(&Default::default(), &foreign).await.unwrap();
    cluster.until("the foreign slice is gone", |slices| slices.iter().all(|slice| slice.spec.pool.name == POOL)).await;
}

/// Slices with taints are smaller. All are split together: an additional slice is a new generation of all of them anyway.
#[tokio::test]
async fn the_first_taint_writes_all_slices_and_further_ones_write_one() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    let tainted = |sick: &[usize]| {
        let mut pool = gpus(300);
        for number in sick {
            pool.devices.set(*number, gpu(&format!("gpu-{number}")).taint("a", "", "NoSchedule"));
        }
        resources(pool)
    };
    publish(&helper, tainted(&[])).await;
    assert_eq!(cluster.take_slice_verbs(), ["list", "create", "create", "create"]);
    publish(&helper, tainted(&[7])).await;
    assert_eq!(cluster.take_slice_verbs(), ["update", "update", "update", "create", "create"]);
    publish(&helper, tainted(&[7, 299])).await;
    assert_eq!(cluster.take_slice_verbs(), ["update"]);
    publish(&helper, tainted(&[150, 299])).await;
    assert_eq!(cluster.take_slice_verbs().len(), 5, "two slices are a new generation");
    publish(&helper, tainted(&[150])).await;
    assert_eq!(cluster.take_slice_verbs(), ["update"]);
    helper.stop().await.unwrap();
}

/// G50: upstream keeps only one taint's time per device, and loses all in a wipe.
#[tokio::test]
async fn taints_keep_their_times() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    let earlier = Time(Timestamp::from_second(1_700_000_000).unwrap());
    let mut sick = gpu("gpu-0").taint("a", "", "NoSchedule").taint("b", "1", "NoExecute");
    sick.taints.push(DeviceTaint {
        key: "c".into(),
        effect: "NoSchedule".into(),
        time_added: Some(earlier.clone()),
        value: None,
    });
    let times = async || -> Vec<Option<Time>> {
        let slices = cluster.slices().await;
        let taints = slices[0].spec.devices.as_ref().unwrap()[0].taints.clone().unwrap();
        taints.into_iter().map(|taint| taint.time_added).collect()
    };
    publish(&helper, resources(Pool::default().device(sick.clone()))).await;
    let first = times().await;
    assert!(first.iter().all(Option::is_some), "the server sets the times");
    assert_eq!(first[2], Some(earlier));
    // Times have whole seconds: wait until a time that is set again would differ.
    let set = first[0].as_ref().unwrap().0.as_second();
    eventually("the clock advances", || (Timestamp::now().as_second() > set + 1).then_some(())).await;
    publish(&helper, resources(Pool::default().device(sick.clone().attribute("model", "m2")))).await;
    assert_eq!(times().await, first, "another change of the device");
    publish(&helper, resources(Pool::default().device(sick.clone()).device(gpu("gpu-1")))).await;
    assert_eq!(times().await, first, "another device");
    cluster.wipe().await;
    cluster.until("the slice is back", |slices| slices.len() == 1).await;
    assert_eq!(times().await, first, "a wipe");
    cluster.take_slice_verbs();
    publish(&helper, resources(Pool::default().device(sick).device(gpu("gpu-1")))).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "a missing time is no change");
}

/// The garbage collector deletes slices whose owner is gone: after a node was recreated, they need its new UID.
#[tokio::test]
async fn a_recreated_node_is_the_new_owner() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(1))).await;
    let uid = cluster.replace_node().await;
    cluster.wipe().await;
    let slices = cluster.until("the slice is back", |slices| slices.len() == 1).await;
    assert_eq!(slices[0].metadata.owner_references.as_ref().unwrap()[0].uid, uid);
}

/// The API versions of older clusters.
#[rstest]
#[case(DraVersion::V1beta2)]
#[case(DraVersion::V1beta1)]
#[tokio::test]
async fn slices_are_written_in_older_versions_of_the_api(#[case] version: DraVersion) {
    let Some(cluster) = Cluster::with_version(version).await else { return };
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    let sick = || gpu("gpu-0").taint("a", "", "NoSchedule");
    publish(&helper, resources(Pool::default().device(sick()))).await;
    publish(&helper, resources(Pool::default().device(sick().attribute("model", "m2")))).await;
    assert_eq!(*driver.errors.lock().unwrap(), [""; 0]);
    assert_eq!(cluster.take_slice_verbs(), ["list", "list", "create", "update"], "v1 is tried once");
    publish(&helper, resources(Pool::default().device(sick().attribute("model", "m2")))).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0]);
    cluster.proxy.drop_watches();
    publish(&helper, DriverResources::default()).await;
    assert_eq!(cluster.take_slice_verbs(), ["delete"]);
}

fn selector() -> NodeSelector {
    let requirement = NodeSelectorRequirement { key: "rack".into(), operator: "Exists".into(), values: None };
    let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
    NodeSelector { node_selector_terms: vec![term] }
}

/// A.7: a pool that is owned by the node, but available on others. G49: another pool is refused at once.
#[tokio::test]
async fn a_pool_for_other_nodes_is_the_only_one_that_may_be_published() {
    let cluster = Cluster::new().await;
    let driver = TestDriver::default();
    let helper = cluster.builder().reconcile_pool_with_name("rack").start(driver.clone()).await.unwrap();
    let rack = |pool: Pool| DriverResources::default().pool("rack", pool);
    let per_device = Pool::default()
        .nodes(NodeSelection::PerDevice)
        .device(gpu("a").nodes(DeviceNodes::Node("node-2".into())))
        .device(gpu("b").nodes(DeviceNodes::Selector(Box::new(selector()))))
        .device(gpu("c").nodes(DeviceNodes::AllNodes));
    let pools = [
        gpus(1).nodes(NodeSelection::AllNodes),
        gpus(1).nodes(NodeSelection::Selector(Box::new(selector()))),
        per_device,
    ];
    for pool in pools {
        publish(&helper, rack(pool)).await;
        let slices = cluster.slices().await;
        let [slice] = slices.as_slice() else { panic!("{slices:#?}") };
        assert_eq!((slice.spec.node_name.as_deref(), slice.spec.pool.generation), (None, 1));
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].uid, cluster.node_uid);
    }
    assert_eq!(cluster.take_slice_verbs(), ["list", "create", "update", "update"]);

    let refused = helper.handles().publish_resources(rack(gpus(1)).pool("other", gpus(1)));
    assert!(matches!(&refused, Err(PublishError::OtherPool { pool, only }) if pool == "other" && only == "rack"));
    assert_eq!(*helper.handles().publisher().status().borrow(), PublishStatus::Published, "nothing has changed");
    helper.handles().publish_resources(rack(gpus(1))).unwrap();
    let failing = status(&helper, |status| matches!(status, PublishStatus::Failing(_))).await;
    let PublishStatus::Failing(reason) = failing else { panic!() };
    assert!(reason.contains("pool rack: nodes:"), "{reason}");
    publish(&helper, DriverResources::default()).await;
    assert_eq!(cluster.slices().await.len(), 0);
}

#[tokio::test]
async fn a_driver_without_a_node_publishes_for_all_nodes() {
    let cluster = Cluster::new().await;
    let driver = TestDriver::default();
    let builder = drakkar_plugin::PluginBuilder::new(&cluster.names.driver).client(cluster.admin());
    let helper = builder.kubelet_root(cluster.root.path()).start(driver.clone()).await.unwrap();
    publish(&helper, resources(gpus(1).nodes(NodeSelection::AllNodes))).await;
    let slices = cluster.slices().await;
    assert!(slices[0].metadata.name.as_deref().unwrap().starts_with(&format!("00000-{}-", cluster.names.driver)));
    assert_eq!((slices[0].spec.all_nodes, slices[0].metadata.owner_references.as_ref()), (Some(true), None));
    helper.handles().publish_resources(resources(gpus(1))).unwrap();
    let error = eventually("the error is reported", || driver.errors.lock().unwrap().pop()).await;
    assert!(error.contains("--node-name"), "{error}");
}

/// G54: upstream's instances fight when what they publish differs.
#[tokio::test]
async fn of_two_instances_the_newer_publishes_until_it_ends() {
    let cluster = Cluster::new().await;
    let start = async |uid: &str| cluster.builder().rolling_update(uid).start(TestDriver::default()).await.unwrap();
    let old = start("pod-1").await;
    publish(&old, resources(gpus(1))).await;
    let new = start("pod-2").await;
    publish(&new, resources(gpus(2))).await;
    cluster.take_slice_verbs();

    old.handles().publish_resources(resources(gpus(3))).unwrap();
    status(&old, |status| *status == PublishStatus::Standby).await;
    cluster.wipe().await;
    let slices = cluster.until("the newer repairs", |slices| slices.len() == 1).await;
    assert_eq!(names(&slices[0]).len(), 2);
    published(&new).await;
    assert_eq!(cluster.take_slice_verbs(), ["create"], "the older stands by");

    new.stop().await.unwrap();
    cluster.until("the older takes over", |slices| slices.len() == 1 && names(&slices[0]).len() == 3).await;
    published(&old).await;
}

/// D10: without metadata of the driver, the metadata of a device has its published attributes.
#[tokio::test]
async fn metadata_has_the_published_attributes() {
    let cluster = Cluster::new().await;
    let builder = cluster.builder().device_metadata(true).metadata_from_published(true);
    let helper = builder.start(TestDriver::default()).await.unwrap();
    let kubelet = Kubelet::of(&helper).await;
    let claim = cluster.claim("train").await;
    let (prepared, ()) = in_time(async {
        tokio::join!(kubelet.prepare_one(&claim), async {
            // The kubelet may prepare before the driver publishes.
            tokio::task::yield_now().await;
            helper.handles().publish_resources(resources(gpus(3))).unwrap();
        })
    })
    .await;
    prepared.unwrap();
    let metadata = cluster.metadata(&claim, "gpu");
    assert_eq!(metadata["requests"][0]["devices"][0]["attributes"], json!({"model": {"string": "m1"}}));
}

/// The first publish may be delayed to spare the API server. Pods do not wait for that.
#[tokio::test]
async fn metadata_has_attributes_whose_publish_is_still_delayed() {
    let cluster = Cluster::new().await;
    let builder = cluster.builder().device_metadata(true).metadata_from_published(true);
    let helper = builder.publish_within(Duration::MAX).start(TestDriver::default()).await.unwrap();
    let claim = cluster.claim("train").await;
    helper.handles().publish_resources(resources(gpus(3))).unwrap();
    in_time(Kubelet::of(&helper).await.prepare_one(&claim)).await.unwrap();
    let metadata = cluster.metadata(&claim, "gpu");
    assert_eq!(metadata["requests"][0]["devices"][0]["attributes"], json!({"model": {"string": "m1"}}));
    helper.stop().await.unwrap();
}
