//! Tests of a claim that is prepared again with another allocation: only the framework unprepares the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drakkar_plugin::Device;
use rstest::rstest;

use super::Scene;
use crate::support::{SlowDriver, TestClaim, TestDriver};

#[rstest]
#[tokio::test]
async fn a_claim_with_another_allocation_is_unprepared_before_it_is_prepared_again(
    #[values(true, false)] metadata: bool,
) {
    let driver = TestDriver::default();
    let scene = Scene::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
    let x = scene.claim("x", &["gpu-0"]);
    scene.kubelet.prepare_one(&x).await.unwrap();

    let x = scene.claim("x", &["gpu-1"]);
    let devices = scene.kubelet.prepare_one(&x).await.unwrap();

    assert_eq!(devices[0].device_name, "gpu-1");
    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x"]);
    if metadata {
        let written = &scene.node.metadata(&x, "gpu")["requests"][0]["devices"];
        assert_eq!((written.as_array().unwrap().len(), &written[0]["name"]), (1, &"gpu-1".into()));
    }
    let old = scene.claim("y", &["gpu-0"]);
    scene.kubelet.prepare_one(&old).await.unwrap();
    let new = scene.claim("z", &["gpu-1"]);
    scene.refused(&new).await;
    scene.helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_old_devices_cannot_be_unprepared_keeps_them() {
    let stuck = Arc::new(AtomicBool::new(true));
    let is_stuck = stuck.clone();
    let driver = TestDriver::default()
        .unpreparing(move |_| if is_stuck.load(Ordering::SeqCst) { Err("gpu does not let go".into()) } else { Ok(()) });
    let scene = Scene::new(driver.clone()).await;
    let x = scene.claim("x", &["gpu-0"]);
    scene.kubelet.prepare_one(&x).await.unwrap();

    let x = scene.claim("x", &["gpu-1"]);
    let error = scene.kubelet.prepare_one(&x).await.unwrap_err();

    assert!(error.contains("gpu does not let go"), "{error}");
    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x"]);
    let y = scene.claim("y", &["gpu-1"]);
    scene.kubelet.prepare_one(&y).await.unwrap();
    scene.kubelet.unprepare_one(&y).await.unwrap_err();
    stuck.store(false, Ordering::SeqCst);
    scene.kubelet.unprepare_one(&y).await.unwrap();
    scene.kubelet.prepare_one(&x).await.unwrap();
    scene.helper.stop().await.unwrap();
}

/// The old devices are unprepared and free; the claim holds the devices of the failed prepare.
#[tokio::test]
async fn a_new_allocation_whose_prepare_fails_is_held_and_the_old_one_is_unprepared() {
    let driver = TestDriver::preparing(|claim| {
        if claim.results().any(|result| result.device == "gpu-1") {
            Err("not now".into())
        } else {
            Ok(claim.results().map(Device::from).collect())
        }
    });
    let scene = Scene::new(driver.clone()).await;
    let x = scene.claim("x", &["gpu-0"]);
    scene.kubelet.prepare_one(&x).await.unwrap();
    let x = scene.claim("x", &["gpu-1"]);
    scene.kubelet.prepare_one(&x).await.unwrap_err();

    let old = scene.claim("y", &["gpu-0"]);
    scene.kubelet.prepare_one(&old).await.unwrap();
    let new = scene.claim("z", &["gpu-1"]);
    scene.refused(&new).await;

    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x", "prepare y"]);
    scene.helper.stop().await.unwrap();
}

/// With one more device there is nothing to unprepare, and the claim holds both, even if the prepare fails.
#[tokio::test]
async fn a_larger_allocation_keeps_the_devices_of_the_claim() {
    let driver = TestDriver::preparing(|claim| match claim.results().count() {
        1 => Ok(claim.results().map(Device::from).collect()),
        _ => Err("too many".into()),
    });
    let scene = Scene::new(driver.clone()).await;
    let x = scene.claim("x", &["gpu-0"]);
    scene.kubelet.prepare_one(&x).await.unwrap();
    let x = scene.claim("x", &["gpu-0", "gpu-1"]);
    scene.kubelet.prepare_one(&x).await.unwrap_err();

    for (name, device) in [("y", "gpu-0"), ("z", "gpu-1")] {
        let claim = scene.claim(name, &[device]);
        scene.refused(&claim).await;
    }
    assert_eq!(driver.take_calls(), ["prepare x", "prepare x"]);
    scene.helper.stop().await.unwrap();
}

/// In one call of the kubelet.
#[tokio::test]
async fn claims_that_have_swapped_their_devices_are_both_unprepared_first() {
    let scene = Scene::new(SlowDriver::default()).await;
    for devices in [["gpu-0", "gpu-1"], ["gpu-1", "gpu-0"]] {
        let x = scene.claim("x", &devices[..1]);
        let y = scene.claim("y", &devices[1..]);
        let responses = scene.kubelet.prepare(&[&x, &y]).await;
        assert!(responses.values().all(Result::is_ok), "{responses:?}");
    }
    scene.helper.stop().await.unwrap();
}

/// When the kubelet prepares another claim with the same name, it has forgotten the first.
#[tokio::test]
async fn an_earlier_claim_with_the_same_name_is_unprepared_before_the_next_is_prepared() {
    let driver = TestDriver::default();
    let scene = Scene::new(driver.clone()).await;
    let x = scene.claim("x", &["gpu-0"]);
    scene.kubelet.prepare_one(&x).await.unwrap();
    let next = scene.node.claim(TestClaim::new("x", "uid-of-another").device("gpu", "gpu-1"));
    scene.kubelet.prepare_one(&next).await.unwrap();
    let y = scene.claim("y", &["gpu-0"]);
    scene.kubelet.prepare_one(&y).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x", "prepare y"]);
    assert!(scene.node.is_prepared(&next) && !scene.node.spec_file(&x, "gpu").exists());
    scene.helper.stop().await.unwrap();
}
