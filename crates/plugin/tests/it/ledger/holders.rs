//! Tests of a device whose holder is gone: the framework unprepares the holder, and the next claim gets the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use rstest::rstest;
use serde_json::json;
use tokio::time::Instant;

use super::{Scene, claim, skipping};
use crate::support::{ANY_PORT, Fault, Kubelet, Node, PATIENCE, TestClaim, TestDriver, eventually, in_time, metric};

/// A change of the holder in the API server.
#[derive(Debug, Clone, Copy)]
enum Change {
    Deleted,
    Replaced,
    Deallocated,
    Reallocated,
    WithoutThisDriver,
}

impl Change {
    fn apply(self, node: &Node, name: &str) {
        let uid = format!("uid-{name}");
        match self {
            Self::Deleted => node.api.remove("default", name),
            Self::Replaced => node.api.put(&TestClaim::new(name, "uid-of-another").device("gpu", "gpu-7").object),
            Self::Deallocated => {
                let mut claim = TestClaim::new(name, &uid);
                claim.object["status"] = json!({});
                node.api.put(&claim.object);
            }
            Self::Reallocated => node.api.put(&TestClaim::new(name, &uid).device("gpu", "gpu-7").object),
            Self::WithoutThisDriver => {
                let result = json!({"request": "gpu", "driver": "net.example.com", "pool": "p", "device": "d"});
                node.api.put(&TestClaim::new(name, &uid).result(result).object);
            }
        }
    }
}

/// A kubelet that lost its checkpoint never unprepares the claims that it had prepared before.
#[rstest]
#[case::deleted(Change::Deleted)]
#[case::replaced_by_another_with_the_same_name(Change::Replaced)]
#[case::deallocated(Change::Deallocated)]
#[case::reallocated(Change::Reallocated)]
#[case::allocated_from_another_driver(Change::WithoutThisDriver)]
#[tokio::test]
async fn a_holder_that_is_gone_is_unprepared_for_the_next_claim(
    #[case] change: Change,
    #[values(true, false)] metadata: bool,
) {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
    let holder = scene.claim("holder", &["gpu-0"]);
    scene.kubelet.prepare_one(&holder).await.unwrap();
    change.apply(&scene.node, "holder");
    let next = scene.claim("next", &["gpu-0"]);

    scene.kubelet.prepare_one(&next).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare holder", "unprepare holder", "prepare next"]);
    assert!(!scene.node.spec_file(&holder, "gpu").exists() && !scene.node.claim_directory(&holder).exists());
    assert_eq!(scene.node.spec_file(&next, "gpu").exists(), metadata);
    assert_eq!(metric(&scene.helper, "drakkar_plugin_holders_unprepared_total").await, 1);
    assert_eq!(metric(&scene.helper, "drakkar_plugin_held_claims").await, 1);
    // The kubelet may unprepare it after all.
    scene.kubelet.unprepare_one(&holder).await.unwrap();
    assert_eq!(scene.node.spec_file(&next, "gpu").exists(), metadata);
    scene.helper.stop().await.unwrap();
}

/// The new instance has unprepared the claim, and without metadata the old one cannot see that on disk.
#[tokio::test]
async fn after_a_rolled_back_update_the_old_instance_can_prepare_the_device_again() {
    let node = Node::default();
    let driver = TestDriver::default();
    let builder = |pod| node.builder().device_metadata(false).rolling_update(pod);
    let old = builder("pod-1").start(driver.clone()).await.unwrap();
    let first = node.claim(claim("first", &["gpu-0"]));
    Kubelet::of(&old).await.prepare_one(&first).await.unwrap();
    let new = builder("pod-2").start(TestDriver::default()).await.unwrap();
    Kubelet::of(&new).await.unprepare_one(&first).await.unwrap();
    new.stop().await.unwrap();
    node.api.remove("default", "first");

    let second = node.claim(claim("second", &["gpu-0"]));
    Kubelet::of(&old).await.prepare_one(&second).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare first", "unprepare first", "prepare second"]);
    old.stop().await.unwrap();
}

/// The devices are published as not to be unprepared by the kubelet, so there is nothing to wait for.
#[rstest]
#[case::unprepare("NodeUnprepareResources")]
#[case::everything("*")]
#[tokio::test]
async fn a_device_that_the_kubelet_does_not_unprepare_is_passed_on_without_waiting(#[case] operation: &str) {
    let driver = TestDriver::default();
    let patience = Duration::from_secs(15);
    let scene = Scene::with(driver.clone(), |builder| builder.device_timeout(patience)).await;
    let started = Instant::now();
    for name in ["one", "two", "three"] {
        let claim = scene.node.claim(skipping(name, "gpu-0", &[operation]));
        scene.kubelet.prepare_one(&claim).await.unwrap();
        scene.node.api.remove("default", name);
    }
    assert!(started.elapsed() < patience, "waited for the kubelet, which does not unprepare these");
    let calls = ["prepare one", "unprepare one", "prepare two", "unprepare two", "prepare three"];
    assert_eq!(driver.take_calls(), calls);
    scene.helper.stop().await.unwrap();
}

/// The kubelet skips its call only if all devices of the claim are published that way.
#[tokio::test]
async fn a_claim_with_one_device_that_the_kubelet_unprepares_is_left_to_the_kubelet() {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_timeout(PATIENCE)).await;
    let first = scene.node.claim(skipping("first", "gpu-0", &["*"]).device("gpu", "gpu-1"));
    scene.kubelet.prepare_one(&first).await.unwrap();
    scene.node.api.remove("default", "first");
    let second = scene.claim("second", &["gpu-0"]);
    let (prepared, ()) = tokio::join!(scene.kubelet.prepare_one(&second), async {
        eventually("the holder is fetched", || (scene.node.api.gets("first") >= 2).then_some(())).await;
        scene.kubelet.unprepare_one(&first).await.unwrap();
    });
    prepared.unwrap();
    assert_eq!(driver.take_calls(), ["prepare first", "unprepare first", "prepare second"]);
    assert_eq!(metric(&scene.helper, "drakkar_plugin_holders_unprepared_total").await, 0, "the kubelet did");
    scene.helper.stop().await.unwrap();
}

/// The containers of a pod that was deleted by force may still run: the kubelet gets its time, even after a restart.
#[rstest]
#[tokio::test]
async fn a_holder_that_is_gone_is_left_to_the_kubelet_for_a_while(#[values(true, false)] is_restarted: bool) {
    let driver = TestDriver::default();
    let patient = |builder: drakkar_plugin::PluginBuilder| builder.device_timeout(PATIENCE);
    let mut scene = Scene::with(driver.clone(), patient).await;
    let gone = scene.claim("gone", &["gpu-0"]);
    scene.kubelet.prepare_one(&gone).await.unwrap();
    scene.node.api.remove("default", "gone");
    if is_restarted {
        scene.helper.stop().await.unwrap();
        scene = Scene::on(scene.node, driver.clone(), patient).await;
    }
    let next = scene.claim("next", &["gpu-0"]);
    let gets = scene.node.api.gets("gone");

    let (prepared, ()) = tokio::join!(scene.kubelet.prepare_one(&next), async {
        eventually("the holder is fetched", || (scene.node.api.gets("gone") > gets).then_some(())).await;
        assert!(scene.node.is_prepared(&gone), "its containers may run");
        scene.kubelet.unprepare_one(&gone).await.unwrap();
    });

    prepared.unwrap();
    assert_eq!(driver.take_calls(), ["prepare gone", "unprepare gone", "prepare next"]);
    scene.helper.stop().await.unwrap();
}

/// A claim that an earlier process has prepared is known from its record.
#[tokio::test]
async fn a_holder_of_an_earlier_process_that_is_gone_is_unprepared_for_the_next_claim() {
    let scene = Scene::new(TestDriver::default()).await;
    let holder = scene.claim("holder", &["gpu-0"]);
    scene.kubelet.prepare_one(&holder).await.unwrap();
    scene.helper.stop().await.unwrap();
    scene.node.api.remove("default", "holder");
    let driver = TestDriver::default();
    let scene = Scene::on(scene.node, driver.clone(), |builder| builder).await;
    let next = scene.claim("next", &["gpu-0"]);

    scene.kubelet.prepare_one(&next).await.unwrap();

    assert_eq!(driver.take_calls(), ["unprepare holder", "prepare next"]);
    assert!(scene.node.is_prepared(&next) && !scene.node.is_prepared(&holder));
    scene.helper.stop().await.unwrap();
}

/// If it is gone, the kubelet does not unprepare a claim whose prepare failed either.
#[tokio::test]
async fn a_holder_whose_prepare_failed_and_that_is_gone_is_unprepared_too() {
    let driver = TestDriver::preparing(|claim| match claim.reference().name.as_str() {
        "holder" => Err("not now".into()),
        _ => Ok(Vec::new()),
    });
    let scene = Scene::new(driver.clone()).await;
    let holder = scene.claim("holder", &["gpu-0"]);
    scene.kubelet.prepare_one(&holder).await.unwrap_err();
    scene.node.api.remove("default", "holder");
    let next = scene.claim("next", &["gpu-0"]);

    scene.kubelet.prepare_one(&next).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare holder", "unprepare holder", "prepare next"]);
    scene.helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_cannot_be_unprepared_keeps_its_device() {
    let stuck = Arc::new(AtomicBool::new(true));
    let is_stuck = stuck.clone();
    let driver = TestDriver::default()
        .unpreparing(move |_| if is_stuck.load(Ordering::SeqCst) { Err("gpu does not let go".into()) } else { Ok(()) });
    let scene = Scene::new(driver.clone()).await;
    let holder = scene.claim("holder", &["gpu-0"]);
    scene.kubelet.prepare_one(&holder).await.unwrap();
    scene.node.api.remove("default", "holder");
    let next = scene.claim("next", &["gpu-0"]);

    let error = scene.refused(&next).await;

    assert!(error.contains("default/holder (uid uid-holder)") && error.contains("gpu does not let go"), "{error}");
    assert_eq!(driver.take_calls(), ["prepare holder", "unprepare holder"]);
    assert!(scene.node.is_prepared(&holder));
    stuck.store(false, Ordering::SeqCst);
    scene.kubelet.prepare_one(&next).await.unwrap();
    scene.helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_cannot_be_fetched_keeps_its_device() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;
    let holder = scene.claim("holder", &["gpu-0"]);
    scene.kubelet.prepare_one(&holder).await.unwrap();
    scene.node.api.remove("default", "holder");
    scene.node.api.fail_for("holder", Some(Fault::Status(StatusCode::FORBIDDEN)));
    let next = scene.claim("next", &["gpu-0"]);

    let error = scene.refused(&next).await;

    assert!(error.contains("could not be checked") && error.contains("403 Forbidden: not today"), "{error}");
    assert_eq!(driver.take_calls(), ["prepare holder"]);
    scene.node.api.fail_for("holder", None);
    in_time(scene.kubelet.prepare_one(&next)).await.unwrap();
    scene.helper.stop().await.unwrap();
}

/// Two claims to which one device each of a gone holder is allocated.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepares_that_find_the_same_holder_gone_unprepare_it_once(#[values(true, false)] serialize: bool) {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.serialize(serialize)).await;
    let other = Kubelet::of(&scene.helper).await;
    for round in 0..8 {
        let holder = scene.claim(&format!("holder-{round}"), &["gpu-0", "gpu-1"]);
        scene.kubelet.prepare_one(&holder).await.unwrap();
        scene.node.api.remove("default", holder.name());
        let one = scene.claim("one", &["gpu-0"]);
        let two = scene.claim("two", &["gpu-1"]);
        driver.take_calls();

        let (first, second) = tokio::join!(scene.kubelet.prepare_one(&one), other.prepare_one(&two));
        first.unwrap();
        second.unwrap();

        let calls = driver.take_calls();
        let unprepared = calls.iter().filter(|call| call.starts_with("unprepare")).count();
        assert_eq!((unprepared, calls.len()), (1, 3), "{calls:?}");
        assert!(calls[0].starts_with("unprepare"), "{calls:?}");
        scene.kubelet.unprepare(&[&one, &two]).await;
    }
    scene.helper.stop().await.unwrap();
}

/// Two claims to which the same device of a gone holder is allocated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_prepares_for_the_same_device_of_a_gone_holder_one_is_refused() {
    let scene = Scene::with(TestDriver::default(), |builder| builder.serialize(false)).await;
    let other = Kubelet::of(&scene.helper).await;
    for round in 0..8 {
        let holder = scene.claim(&format!("holder-{round}"), &["gpu-0"]);
        scene.kubelet.prepare_one(&holder).await.unwrap();
        scene.node.api.remove("default", holder.name());
        let one = scene.claim("one", &["gpu-0"]);
        let two = scene.claim("two", &["gpu-0"]);

        let (first, second) = tokio::join!(scene.kubelet.prepare_one(&one), other.prepare_one(&two));

        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        scene.kubelet.unprepare(&[&one, &two]).await;
    }
    scene.helper.stop().await.unwrap();
}

/// Each device of a claim may have another holder.
#[tokio::test]
async fn all_holders_are_fetched_concurrently_and_all_gone_ones_are_unprepared() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;
    for device in ["gpu-0", "gpu-1", "gpu-2"] {
        let holder = scene.claim(device, &[device]);
        scene.kubelet.prepare_one(&holder).await.unwrap();
        scene.node.api.remove("default", device);
    }
    let next = scene.claim("next", &["gpu-0", "gpu-1", "gpu-2"]);
    assert_eq!(scene.node.api.most_in_flight(), 1);
    scene.node.api.slow_down(Duration::from_millis(20));

    scene.kubelet.prepare_one(&next).await.unwrap();

    assert_eq!(scene.node.api.most_in_flight(), 3);
    assert_eq!(driver.take_calls().len(), 7);
    assert_eq!(metric(&scene.helper, "drakkar_plugin_holders_unprepared_total").await, 3);
    scene.helper.stop().await.unwrap();
}

/// The files of a driver built with the Go framework have no share IDs; they are taken from the API server.
#[tokio::test]
async fn a_share_that_only_the_api_server_knows_does_not_delay_the_prepare() {
    let share = |name: &str, id: &str| {
        TestClaim::new(name, &format!("uid-{name}")).result(json!({
            "request": "gpu", "driver": crate::support::DRIVER, "pool": "node-1", "device": "gpu-0", "shareID": id,
        }))
    };
    let scene = Scene::new(TestDriver::default()).await;
    let first = scene.node.claim(share("first", "s1"));
    scene.kubelet.prepare_one(&first).await.unwrap();
    scene.helper.stop().await.unwrap();
    std::fs::remove_file(scene.node.claim_directory(&first).join(".claim.json")).unwrap();
    let patience = Duration::from_secs(15);
    let patient = |builder: drakkar_plugin::PluginBuilder| builder.device_timeout(patience).http_endpoint(ANY_PORT);
    let scene = Scene::on(scene.node, TestDriver::default(), patient).await;
    let started = Instant::now();

    let second = scene.node.claim(share("second", "s2"));
    scene.kubelet.prepare_one(&second).await.unwrap();
    assert!(started.elapsed() < patience, "waited for a claim with another share");
    assert_eq!(metric(&scene.helper, "drakkar_plugin_held_claims").await, 2);
    scene.helper.stop().await.unwrap();
}
