//! Publishing with invalid resources, missing permissions and a failing API server.

use std::time::Duration;

use drakkar_plugin::{Capacity, DriverResources, Pool, PublishStatus, PublishedDevice};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, NodeAllocatableMapping, NodeAllocatableResource, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::DeleteParams;
use rstest::rstest;

use super::publishing::{names, pool as generation_and_count, publish, published, status};
use super::{gpu, gpus, resources};
use crate::support::{Cluster, Fault, POOL, Random, TestDriver, Times, eventually, in_time};

fn one(device: PublishedDevice) -> Pool {
    Pool::default().device(device)
}

fn shared() -> PublishedDevice {
    let policy = CapacityRequestPolicy { default: Some(Quantity("1".into())), ..CapacityRequestPolicy::default() };
    gpu("a").allow_multiple_allocations().capacity("share", Capacity::from("8").request_policy(policy))
}

fn partition() -> Pool {
    let device = gpu("a").attribute("example.com/profile", "half").consumes("s", [("c", "1")]);
    let pool = Pool::default().counter_set("s", [("c", "2")]).device(device);
    Pool { partition_type_attribute: Some("example.com/profile".into()), ..pool }
}

fn with_cores() -> PublishedDevice {
    let mut device = gpu("a").capacity("cores", "4");
    let mapping = NodeAllocatableMapping {
        capacity_key: Some("cores".into()),
        capacity_multiplier: Some(Quantity("1".into())),
        device_multiplier: None,
    };
    let cores = NodeAllocatableResource { mapping: Some(mapping), overhead: None };
    device.node_allocatable_resources.insert("cpu".into(), cores);
    device
}

fn groups() -> Pool {
    let mut device = gpu("a").consumes("s", [("c", "1")]);
    device.consumes_counters[0].compatibility_groups = Some(vec!["g".into()]);
    Pool::default().counter_set("s", [("c", "2")]).device(device)
}

/// A.7, G51: written once, reported once with the gate, no loop.
#[rstest]
#[case("DRADeviceTaints", one(gpu("a").taint("k", "", "NoExecute")), &["create"])]
#[case("DRADeviceBindingConditions", one(gpu("a").binding_conditions(["Ready"], ["Broken"])), &["create"])]
#[case("DRAConsumableCapacity", one(shared()), &["create"])]
#[case("DRAOptionalNodeOperations", Pool { skip_node_operations: vec!["*".into()], ..gpus(1) }, &["create"])]
#[case("DRADeviceCompatibilityGroups", groups(), &["create", "create"])]
#[case("DRAPartitionableDevices", Pool::default().counter_set("s", [("c", "2")]).device(gpu("a").consumes("s", [("c", "1")])), &["create", "create"])]
#[case("DRAPartitionableDevicesType", partition(), &["create", "create"])]
#[case("DRANodeAllocatableResources", one(with_cores()), &["create"])]
#[tokio::test]
async fn dropped_fields_are_reported_with_their_gate(#[case] gate: &str, #[case] pool: Pool, #[case] writes: &[&str]) {
    // Groups are a field of counters: if those are dropped, only they are reported.
    let counters = (gate == "DRADeviceCompatibilityGroups").then_some(("DRAPartitionableDevices", true));
    let gates: Vec<(&str, bool)> = [(gate, false)].into_iter().chain(counters).collect();
    let Some(cluster) = Cluster::with_gates(&gates).await else { return };
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    publish(&helper, resources(pool.clone())).await;
    let errors = std::mem::take(&mut *driver.errors.lock().unwrap());
    assert!(errors.len() == 1 && errors[0].contains("dropped") && errors[0].contains(gate), "{errors:?}");
    let mut expected = vec!["list"];
    expected.extend(writes);
    assert_eq!(cluster.take_slice_verbs(), expected);
    publish(&helper, resources(pool)).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "the same again is not written");
}

/// G48: an invalid pool does not hold up the others.
#[tokio::test]
async fn an_invalid_pool_stays_as_it_was_and_others_are_published() {
    let cluster = Cluster::new().await;
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    publish(&helper, resources(gpus(1)).pool("old", gpus(1))).await;
    let invalid = one(gpu("gpu-0").taint("k", "", "Sometimes"));
    helper.handles().publish_resources(resources(invalid).pool("new", gpus(2))).unwrap();
    let is_replaced = |slices: &[ResourceSlice]| {
        slices.iter().map(|slice| slice.spec.pool.name.as_str()).all(|pool| pool != "old") && slices.len() == 2
    };
    let slices = cluster.until("the new pool has replaced the old one", is_replaced).await;
    assert!(slices.iter().any(|slice| slice.spec.pool.name == POOL && names(slice) == ["gpu-0"]));
    let errors = driver.errors.lock().unwrap().clone();
    assert!(
        errors.len() == 1 && errors[0].contains(&format!("pool {POOL}: devices[0].taints[0].effect:")),
        "{errors:?}"
    );
    assert!(matches!(&*helper.handles().publisher().status().borrow(), PublishStatus::Failing(_)));
    cluster.wipe().await;
    cluster.until("both pools are repaired", |slices| slices.len() == 2).await;
    publish(&helper, resources(gpus(1))).await;
}

/// A.7: an invalid pool is reported, and not written.
#[rstest]
#[case(one(gpu("a")).device(gpu("a")), "devices[1].name")]
#[case(Pool::default().counter_set("s", [("c", "2")]).counter_set("s", [("c", "2")]), "sharedCounters[1].name")]
#[case(one(gpu("a").consumes("s", [("c", "1")])), "devices[0].consumesCounters[0].counterSet")]
#[case(
    Pool::default().counter_set("s", [("c", "2")]).device(gpu("a").consumes("s", [("other", "1")])),
    "devices[0].consumesCounters[0].counters[other]"
)]
#[tokio::test]
async fn an_invalid_pool_is_reported_and_not_written(#[case] pool: Pool, #[case] field: &str) {
    let cluster = Cluster::new().await;
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    helper.handles().publish_resources(resources(pool)).unwrap();
    status(&helper, |status| matches!(status, PublishStatus::Failing(_))).await;
    let errors = driver.errors.lock().unwrap().clone();
    assert!(errors.len() == 1 && errors[0].contains(&format!("pool {POOL}: {field}:")), "{errors:?}");
    assert!(cluster.take_slice_verbs().iter().all(|verb| *verb == "list"));
    assert_eq!(cluster.slices().await.len(), 0);
}

/// With the gate off, a list attribute is refused, not dropped.
#[tokio::test]
async fn a_slice_that_the_server_refuses_is_reported_with_the_remedy() {
    let Some(cluster) = Cluster::with_gates(&[("DRAListTypeAttributes", false)]).await else { return };
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    helper
        .handles()
        .publish_resources(resources(one(gpu("a").attribute("numa", vec![0, 1]))).pool("other", gpus(1)))
        .unwrap();
    let error = eventually("the error is reported", || driver.errors.lock().unwrap().pop()).await;
    assert!(error.contains("DRAListTypeAttributes"), "{error}");
    cluster.until("the other pool is published", |slices| slices.len() == 1).await;
    publish(&helper, resources(gpus(1))).await;
}

#[rstest]
#[case("resourceslices", r#": - {apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list", "#)]
#[case("nodes", r#": - {apiGroups: [""], resources: ["nodes"], verbs: ["get"]}"#)]
#[tokio::test]
async fn a_missing_permission_is_reported_with_its_rule(#[case] missing: &str, #[case] rule: &str) {
    let cluster = Cluster::new().await;
    cluster.grant_all_except(Some(missing)).await;
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    helper.handles().publish_resources(resources(gpus(1))).unwrap();
    let error = eventually("the error is reported", || driver.errors.lock().unwrap().pop()).await;
    assert!(error.contains(rule), "{error}");
    status(&helper, |status| matches!(status, PublishStatus::Failing(_))).await;
    cluster.grant_all_except(None).await;
    published(&helper).await;
    assert_eq!(cluster.slices().await.len(), 1);
}

/// G46: upstream waits for the API server.
#[tokio::test]
async fn publishing_does_not_wait_for_a_server_that_is_down() {
    let cluster = Cluster::new().await;
    cluster.proxy.stop().await;
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    helper.handles().publish_resources(resources(gpus(1))).unwrap();
    helper.handles().publish_resources(resources(gpus(2))).unwrap();
    eventually("the error is reported", || driver.errors.lock().unwrap().pop()).await;
    cluster.proxy.resume();
    published(&helper).await;
    assert_eq!(names(&cluster.slices().await[0]).len(), 2, "the last publish counts");
}

#[rstest]
#[case(Fault::InternalError)]
#[case(Fault::TooManyRequests(1))]
#[case(Fault::Disconnect)]
#[case(Fault::LostResponse)]
#[tokio::test]
async fn failed_writes_are_retried_without_duplicates(#[case] fault: Fault) {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    cluster.proxy.fail("create", "resourceslices", fault, Times::Next(2));
    publish(&helper, resources(gpus(300))).await;
    let slices = cluster.until("three slices", |slices| slices.len() == 3).await;
    assert_eq!(slices.iter().map(|slice| names(slice).len()).sum::<usize>(), 300);
    let generation = slices[0].spec.pool.generation;
    assert!(slices.iter().all(|slice| slice.spec.pool.generation == generation));

    cluster.proxy.fail("update", "resourceslices", fault, Times::Next(1));
    let mut more = gpus(300);
    more.devices = more.devices.iter().map(|device| gpu(&device.name).attribute("model", "m2")).collect();
    publish(&helper, resources(more)).await;
    let slices = cluster.slices().await;
    assert_eq!(slices.len(), 3);
    assert!(slices.iter().all(|slice| slice.spec.pool.generation == slices[0].spec.pool.generation), "{slices:#?}");
}

#[tokio::test]
async fn a_watch_that_breaks_or_expires_is_renewed() {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    publish(&helper, resources(gpus(1))).await;
    let watches = || cluster.proxy.requests().iter().filter(|request| request.verb == "watch").count();
    eventually("there is a watch", || (watches() > 0).then_some(())).await;
    cluster.take_slice_verbs();
    cluster.proxy.drop_watches();
    eventually("there is another watch", || (watches() > 0).then_some(())).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0], "without a list");

    // The deletion is missed, and the history of the watch has expired by the time it is renewed.
    cluster.proxy.fail("watch", "resourceslices", Fault::Unavailable, Times::Always);
    cluster.proxy.drop_watches();
    eventually("the watch fails", || (watches() > 0).then_some(())).await;
    let name = cluster.slices().await[0].metadata.name.clone().unwrap();
    let _ = cluster.slice_api().delete(&name, &DeleteParams::default()).await.unwrap();
    cluster.proxy.clear();
    cluster.proxy.fail("watch", "resourceslices", Fault::Expired, Times::Next(1));
    cluster.until("the slice is back", |slices| slices.len() == 1).await;
    published(&helper).await;
    assert_eq!(cluster.take_slice_verbs(), ["list", "create"]);
}

/// A client that keeps deleting slices does not make the driver write all the time.
#[tokio::test]
async fn a_contest_is_reported_and_slows_repairs_down() {
    let cluster = Cluster::new().await;
    let driver = TestDriver::default();
    let helper = cluster.start(&driver).await;
    publish(&helper, resources(gpus(1))).await;
    let error = in_time(async {
        loop {
            cluster.until("the slice is there", |slices| slices.len() == 1).await;
            cluster.wipe().await;
            if let Some(error) = driver.errors.lock().unwrap().pop() {
                break error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(error.contains("again and again"), "{error}");
    cluster.until("the slice is repaired nevertheless", |slices| slices.len() == 1).await;
    publish(&helper, DriverResources::default()).await;
}

/// Whatever fails: in the end the API server has what was published last, without duplicates, and nothing more is written.
#[rstest]
#[tokio::test]
async fn the_last_publish_wins_whatever_fails(#[values(1, 2, 3)] seed: u64) {
    let cluster = Cluster::new().await;
    let helper = cluster.start(&TestDriver::default()).await;
    let mut random = Random(seed);
    let mut wipes = 0;
    for _ in 0..40 {
        match random.below(6) {
            0 if wipes < 3 => {
                wipes += 1;
                cluster.wipe().await;
            }
            1 => cluster.proxy.drop_watches(),
            2 | 3 => {
                let faults = [Fault::InternalError, Fault::Unavailable, Fault::Disconnect, Fault::LostResponse];
                let verb = ["create", "update", "delete", "list"][random.below(4)];
                cluster.proxy.fail(verb, "resourceslices", faults[random.below(4)], Times::Next(1));
            }
            _ => {
                let count = random.below(400);
                let skip = 1 + random.below(5);
                let devices = gpus(count).devices.into_iter().step_by(skip);
                helper.handles().publish_resources(resources(Pool::default().devices(devices))).unwrap();
            }
        }
        // Sometimes long enough for the writes, sometimes not.
        tokio::time::sleep(Duration::from_millis(random.below(30) as u64)).await;
    }
    cluster.proxy.clear();
    publish(&helper, resources(gpus(300))).await;
    // A slice whose creation had no response is known, and deleted, only when the watch reports it: after the publish.
    let expected: Vec<String> = (0..300).map(|number| format!("gpu-{number}")).collect();
    let is_whole = |slices: &[ResourceSlice]| {
        let of_one_generation = slices.first().map(|first| first.spec.pool.generation);
        let counts = of_one_generation.zip(i64::try_from(slices.len()).ok());
        slices.iter().flat_map(names).eq(expected.iter().cloned())
            && slices.iter().all(|slice| Some(generation_and_count(slice)) == counts)
    };
    cluster.until("all devices are stored once, in slices of one generation and no others", is_whole).await;
    published(&helper).await;
    cluster.take_slice_verbs();
    publish(&helper, resources(gpus(300))).await;
    assert_eq!(cluster.take_slice_verbs(), [""; 0]);
}
