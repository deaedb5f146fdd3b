//! Tests of a claim that is prepared again with another allocation: only the framework unprepares the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drakkar_plugin::Device;
use rstest::rstest;

use super::Fixture;
use crate::support::{SlowDriver, TestClaim, TestDriver};

#[rstest]
#[tokio::test]
async fn a_claim_with_another_allocation_is_unprepared_before_it_is_prepared_again(
    #[values(true, false)] metadata: bool,
) {
    let driver = TestDriver::default();
    let fixture = Fixture::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
    let x = fixture.claim("x", &["gpu-0"]);
    fixture.kubelet.prepare_one(&x).await.unwrap();

    let x = fixture.claim("x", &["gpu-1"]);
    let devices = fixture.kubelet.prepare_one(&x).await.unwrap();

    assert_eq!(devices[0].device_name, "gpu-1");
    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x"]);
    if metadata {
        let written = &fixture.node.metadata(&x, "gpu")["requests"][0]["devices"];
        assert_eq!((written.as_array().unwrap().len(), &written[0]["name"]), (1, &"gpu-1".into()));
    }
    let old = fixture.claim("y", &["gpu-0"]);
    fixture.kubelet.prepare_one(&old).await.unwrap();
    let new = fixture.claim("z", &["gpu-1"]);
    fixture.refused(&new).await;
    fixture.helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_old_devices_cannot_be_unprepared_keeps_them() {
    let stuck = Arc::new(AtomicBool::new(true));
    let is_stuck = stuck.clone();
    let driver = TestDriver::default()
        .unpreparing(move |_| if is_stuck.load(Ordering::SeqCst) { Err("gpu does not let go".into()) } else { Ok(()) });
    let fixture = Fixture::new(driver.clone()).await;
    let x = fixture.claim("x", &["gpu-0"]);
    fixture.kubelet.prepare_one(&x).await.unwrap();

    let x = fixture.claim("x", &["gpu-1"]);
    let error = fixture.kubelet.prepare_one(&x).await.unwrap_err();

    assert!(error.contains("gpu does not let go"), "{error}");
    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x"]);
    let y = fixture.claim("y", &["gpu-1"]);
    fixture.kubelet.prepare_one(&y).await.unwrap();
    fixture.kubelet.unprepare_one(&y).await.unwrap_err();
    stuck.store(false, Ordering::SeqCst);
    fixture.kubelet.unprepare_one(&y).await.unwrap();
    fixture.kubelet.prepare_one(&x).await.unwrap();
    fixture.helper.stop().await.unwrap();
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
    let fixture = Fixture::new(driver.clone()).await;
    let x = fixture.claim("x", &["gpu-0"]);
    fixture.kubelet.prepare_one(&x).await.unwrap();
    let x = fixture.claim("x", &["gpu-1"]);
    fixture.kubelet.prepare_one(&x).await.unwrap_err();

    let old = fixture.claim("y", &["gpu-0"]);
    fixture.kubelet.prepare_one(&old).await.unwrap();
    let new = fixture.claim("z", &["gpu-1"]);
    fixture.refused(&new).await;

    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x", "prepare y"]);
    fixture.helper.stop().await.unwrap();
}

/// With one more device there is nothing to unprepare, and the claim holds both, even if the prepare fails.
#[tokio::test]
async fn a_larger_allocation_keeps_the_devices_of_the_claim() {
    let driver = TestDriver::preparing(|claim| match claim.results().count() {
        1 => Ok(claim.results().map(Device::from).collect()),
        _ => Err("too many".into()),
    });
    let fixture = Fixture::new(driver.clone()).await;
    let x = fixture.claim("x", &["gpu-0"]);
    fixture.kubelet.prepare_one(&x).await.unwrap();
    let x = fixture.claim("x", &["gpu-0", "gpu-1"]);
    fixture.kubelet.prepare_one(&x).await.unwrap_err();

    for (name, device) in [("y", "gpu-0"), ("z", "gpu-1")] {
        let claim = fixture.claim(name, &[device]);
        fixture.refused(&claim).await;
    }
    assert_eq!(driver.take_calls(), ["prepare x", "prepare x"]);
    fixture.helper.stop().await.unwrap();
}

/// In one call of the kubelet.
#[tokio::test]
async fn claims_that_have_swapped_their_devices_are_both_unprepared_first() {
    let fixture = Fixture::new(SlowDriver::default()).await;
    for devices in [["gpu-0", "gpu-1"], ["gpu-1", "gpu-0"]] {
        let x = fixture.claim("x", &devices[..1]);
        let y = fixture.claim("y", &devices[1..]);
        let responses = fixture.kubelet.prepare(&[&x, &y]).await;
        assert!(responses.values().all(Result::is_ok), "{responses:?}");
    }
    fixture.helper.stop().await.unwrap();
}

/// When the kubelet prepares another claim with the same name, it has forgotten the first.
#[tokio::test]
async fn an_earlier_claim_with_the_same_name_is_unprepared_before_the_next_is_prepared() {
    let driver = TestDriver::default();
    let fixture = Fixture::new(driver.clone()).await;
    let x = fixture.claim("x", &["gpu-0"]);
    fixture.kubelet.prepare_one(&x).await.unwrap();
    let next = fixture.node.claim(TestClaim::new("x", "uid-of-another").device("gpu", "gpu-1"));
    fixture.kubelet.prepare_one(&next).await.unwrap();
    let y = fixture.claim("y", &["gpu-0"]);
    fixture.kubelet.prepare_one(&y).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare x", "unprepare x", "prepare x", "prepare y"]);
    assert!(fixture.node.is_prepared(&next) && !fixture.node.spec_file(&x, "gpu").exists());
    fixture.helper.stop().await.unwrap();
}
