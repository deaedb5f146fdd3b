//! Tests that a prepare which fails or is cancelled after the driver was called keeps the device until the claim is unprepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drakkar_plugin::Device;
use rstest::rstest;

use super::Fixture;
use crate::support::{SlowDriver, TestDriver, in_time, metric};

/// A way in which a driver fails to prepare a claim.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Error,
    Panic,
    BadResponse,
}

/// The kubelet unprepares a claim whose prepare failed, so the claim holds its device until then.
#[rstest]
#[case::error(Failure::Error)]
#[case::panic(Failure::Panic)]
#[case::bad_response(Failure::BadResponse)]
#[tokio::test]
async fn a_failed_prepare_keeps_the_device_until_its_claim_is_unprepared(
    #[case] failure: Failure,
    #[values(true, false)] metadata: bool,
) {
    let driver = TestDriver::preparing(move |claim| match failure {
        _ if claim.reference().name != "one" => Ok(claim.results().map(Device::from).collect()),
        Failure::Error => Err("not now".into()),
        Failure::Panic => panic!("never"),
        Failure::BadResponse => Ok(vec![Device { device_name: "gpu-9".into(), ..Device::default() }]),
    });
    let fixture = Fixture::with(driver.clone(), |builder| builder.device_metadata(metadata)).await;
    let one = fixture.claim("one", &["gpu-0"]);
    let two = fixture.claim("two", &["gpu-0"]);

    fixture.kubelet.prepare_one(&one).await.unwrap_err();
    fixture.refused(&two).await;
    assert_eq!(metric(&fixture.helper, "drakkar_plugin_prepared_claims").await, 0, "it is not prepared");
    assert_eq!(metric(&fixture.helper, "drakkar_plugin_held_claims").await, 1, "but it holds its device");

    fixture.kubelet.unprepare_one(&one).await.unwrap();
    fixture.kubelet.prepare_one(&two).await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare one", "unprepare one", "prepare two"]);
    assert_eq!(metric(&fixture.helper, "drakkar_plugin_held_claims").await, 1);
    fixture.helper.stop().await.unwrap();
}

/// The driver has set up the device, even if its metadata cannot be written.
#[tokio::test]
async fn a_failed_metadata_write_does_not_release_the_device() {
    let driver = TestDriver::default();
    let fixture = Fixture::new(driver.clone()).await;
    let one = fixture.claim("one", &["gpu-0"]);
    let two = fixture.claim("two", &["gpu-0"]);
    std::fs::create_dir_all(fixture.node.plugin_directory().join("dra-device-metadata")).unwrap();
    std::fs::write(fixture.node.claim_directory(&one), "in the way").unwrap();

    fixture.kubelet.prepare_one(&one).await.unwrap_err();
    fixture.refused(&two).await;
    std::fs::remove_file(fixture.node.claim_directory(&one)).unwrap();
    fixture.kubelet.unprepare_one(&one).await.unwrap();
    fixture.kubelet.prepare_one(&two).await.unwrap();

    assert_eq!(driver.take_calls(), ["prepare one", "unprepare one", "prepare two"]);
    fixture.helper.stop().await.unwrap();
}

/// The driver may continue its work in its own task after the kubelet has cancelled the call.
#[rstest]
#[tokio::test]
async fn a_prepare_that_is_cancelled_in_the_driver_keeps_the_device(#[values(true, false)] serialize: bool) {
    let driver = SlowDriver::default();
    let fixture = Fixture::with(driver.clone(), |builder| builder.serialize(serialize)).await;
    let slow = fixture.claim("slow", &["gpu-0"]);
    let two = fixture.claim("two", &["gpu-0"]);

    let (cancelled, ()) =
        tokio::join!(fixture.kubelet.prepare_within(Duration::from_millis(300), &slow), driver.wait_for(1));
    cancelled.unwrap_err();
    driver.wait_for(0).await;
    fixture.refused(&two).await;

    driver.permits.add_permits(1);
    fixture.kubelet.unprepare_one(&slow).await.unwrap();
    fixture.kubelet.prepare_one(&two).await.unwrap();
    fixture.helper.stop().await.unwrap();
}

/// A call that is cancelled while it waits for the driver call lock has set up nothing.
#[tokio::test]
async fn a_prepare_that_never_reached_the_driver_holds_nothing() {
    let driver = SlowDriver::default();
    let fixture = Fixture::new(driver.clone()).await;
    let slow = fixture.claim("slow", &["gpu-1"]);
    let one = fixture.claim("one", &["gpu-0"]);
    let two = fixture.claim("two", &["gpu-0"]);
    let (prepared, ()) = tokio::join!(fixture.kubelet.prepare_one(&slow), async {
        driver.wait_for(1).await;
        fixture.kubelet.prepare_within(Duration::from_millis(200), &one).await.unwrap_err();
        // The kubelet has cancelled the call; the framework notices a moment later.
        let in_flight = "drakkar_plugin_grpc_calls_in_flight";
        in_time(async { while metric(&fixture.helper, in_flight).await > 1 {} }).await;
        driver.permits.add_permits(1);
    });
    prepared.unwrap();

    in_time(fixture.kubelet.prepare_one(&two)).await.unwrap();
    fixture.helper.stop().await.unwrap();
}

#[tokio::test]
async fn a_prepared_claim_whose_next_prepare_fails_stays_prepared() {
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = fails.clone();
    let driver = TestDriver::preparing(move |claim| {
        let fails = is_failing.load(Ordering::SeqCst);
        if fails { Err("not now".into()) } else { Ok(claim.results().map(Device::from).collect()) }
    });
    let fixture = Fixture::new(driver).await;
    let one = fixture.claim("one", &["gpu-0"]);
    let two = fixture.claim("two", &["gpu-0"]);

    fixture.kubelet.prepare_one(&one).await.unwrap();
    fails.store(true, Ordering::SeqCst);
    fixture.kubelet.prepare_one(&one).await.unwrap_err();

    fixture.refused(&two).await;
    assert!(fixture.node.is_prepared(&one));
    assert_eq!(metric(&fixture.helper, "drakkar_plugin_prepared_claims").await, 1);
    fixture.helper.stop().await.unwrap();
}
