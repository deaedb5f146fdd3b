//! Tests that no claim is locked while a call waits for the driver call lock or for the API server.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::support::{
    ClaimFault, Fixture, Kubelet, SlowDriver, TIMEOUT, TestClaim, TestDriver, eventually, in_time, numbered_device,
};

/// A restarted kubelet prepares all claims again, one after the other in the driver.
#[tokio::test]
async fn an_update_runs_while_a_prepare_of_its_claim_waits_for_the_driver_call_lock() {
    let driver = SlowDriver::default();
    let fixture = Fixture::new(driver.clone()).await;
    let quick = fixture.claim("quick", &["gpu-0"]);
    let slow = fixture.claim("slow", &["gpu-1"]);
    fixture.kubelet.prepare_one(&quick).await.unwrap();
    let again = async {
        driver.wait_for(1).await;
        fixture.kubelet.prepare_one(&quick).await.unwrap();
    };
    let updates = async {
        eventually("the claim is fetched again", || (fixture.node.api.gets("quick") >= 2).then_some(())).await;
        for number in 0..50 {
            in_time(fixture.helper.handles().update_request_metadata(
                &quick.reference(),
                "gpu",
                numbered_device("gpu-0", number),
            ))
            .await
            .unwrap();
            tokio::task::yield_now().await;
        }
        driver.permits.add_permits(1);
    };
    let (prepared, (), ()) = tokio::join!(fixture.kubelet.prepare_one(&slow), again, updates);
    prepared.unwrap();
    assert_eq!(fixture.node.metadata(&quick, "gpu")["metadata"]["generation"], 51);
    fixture.helper.stop().await.unwrap();
}

/// The API server is slow to return a holder. The other claims of the call can be used meanwhile.
#[tokio::test]
async fn no_claim_is_locked_while_a_holder_is_fetched() {
    let fixture = Fixture::with(TestDriver::default(), |builder| builder.device_timeout(TIMEOUT)).await;
    let holder = fixture.claim("holder", &["gpu-0"]);
    fixture.kubelet.prepare_one(&holder).await.unwrap();
    fixture.node.api.fail_for("holder", Some(ClaimFault::Hang));
    let refused = fixture.claim("refused", &["gpu-0"]);
    let other = fixture.claim("other", &["gpu-1"]);
    let kubelet = Kubelet::of(&fixture.helper).await;
    let is_complete = AtomicBool::new(false);

    let meanwhile = async {
        eventually("the holder is fetched", || (fixture.node.api.gets("holder") >= 2).then_some(())).await;
        in_time(fixture.helper.handles().update_request_metadata(
            &other.reference(),
            "gpu",
            numbered_device("gpu-1", 1),
        ))
        .await
        .unwrap();
        in_time(kubelet.unprepare_one(&other)).await.unwrap();
        assert!(!is_complete.load(Ordering::SeqCst), "it waited for the API server");
        // The holder itself can be unprepared too, which resolves the conflict.
        in_time(kubelet.unprepare_one(&holder)).await.unwrap();
        fixture.node.api.fail_for("holder", None);
    };
    let both = [&refused, &other];
    let call = async {
        let responses = fixture.kubelet.prepare(&both).await;
        is_complete.store(true, Ordering::SeqCst);
        responses
    };
    let (responses, ()) = tokio::join!(call, meanwhile);

    assert!(responses[other.uid()].is_ok(), "{responses:?}");
    fixture.helper.stop().await.unwrap();
}

/// Without metadata the annotation is not used in a path.
#[tokio::test]
async fn an_invalid_annotation_is_ignored_without_metadata() {
    let driver = TestDriver::default();
    let fixture = Fixture::with(driver.clone(), |builder| builder.device_metadata(false)).await;
    let mut claim = super::claim("train", &["gpu-0"]);
    claim.object["metadata"]["annotations"] = json!({"resource.kubernetes.io/pod-claim-name": "../../etc"});
    let claim = fixture.node.claim(claim);
    fixture.kubelet.prepare_one(&claim).await.unwrap();
    assert_eq!(driver.take_calls(), ["prepare train"]);
    fixture.helper.stop().await.unwrap();
}

/// A claim that is locked while its metadata is written delays only its own next call.
#[tokio::test]
async fn a_locked_claim_does_not_block_the_driver_for_others() {
    let driver = TestDriver::default();
    // The metadata waits until the driver has published its devices.
    let fixture = Fixture::with(driver.clone(), |builder| builder.metadata_from_published(true)).await;
    let x = fixture.claim("x", &["gpu-0"]);
    let y = fixture.claim("y", &["gpu-1"]);
    let one = Kubelet::of(&fixture.helper).await;
    let two = Kubelet::of(&fixture.helper).await;
    let three = Kubelet::of(&fixture.helper).await;
    let prepare = |kubelet: Kubelet, claim: &TestClaim| {
        let claim = claim.clone();
        tokio::spawn(async move { kubelet.prepare_one(&claim).await })
    };
    let is_called = |call: &str| driver.calls.lock().unwrap().iter().any(|other| other == call).then_some(());

    let first = prepare(one, &x);
    eventually("the driver prepares x", || is_called("prepare x")).await;
    let second = prepare(two, &x);
    eventually("x is fetched again", || (fixture.node.api.gets("x") >= 2).then_some(())).await;
    let other = prepare(three, &y);
    eventually("the driver prepares y", || is_called("prepare y")).await;

    assert!(!first.is_finished(), "y has waited for x");
    for call in [first, second, other] {
        call.abort();
    }
}
