//! Runtimes and drivers that come and go at the wrong moment.

use std::time::Duration;

use drakkar_node::assert_eventually;
use drakkar_node::nri::{Event, Fault};
use rstest::rstest;
use serde_json::json;

use crate::support::{Bench, PLUGIN, in_pod, metadata};

/// The pod goes on without the driver, which is connected again at once. Its containers wait at the gate until the repair.
#[rstest]
#[case(Fault::CutBefore)]
#[case(Fault::CutDuring)]
#[case(Fault::Late(Duration::from_secs(10)))]
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_hook_was_lost_gets_its_interface_before_its_containers_start(#[case] fault: Fault) {
    let Some(bench) = Bench::start().await else { return };
    let before = bench.host.state("fast0").unwrap();
    bench.node.nri().unwrap().inject(Event::RunPodSandbox, fault);
    let pod = bench.pod("pod", "fast0", json!({"interfaceName": "data0"})).await;
    pod.running().await.unwrap();
    assert!(in_pod(&pod, "data0").is_some());
    assert_eq!(metadata(&pod, "pod").await["networkData"]["interfaceName"], "data0");
    pod.delete().await.unwrap();
    assert_eq!(bench.host.state("fast0").unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_starts_while_the_driver_is_away_waits_for_it() {
    let Some(mut bench) = Bench::start().await else { return };
    bench.claim("pod", "fast0", json!({"interfaceName": "data0"})).await;
    // The sandbox is made after the prepare, so the driver has to go in between: its connection is lost, and it is stopped.
    bench.node.nri().unwrap().inject(Event::RunPodSandbox, Fault::NotSent);
    let pod = bench.pod_with("pod", &["pod"]).await;
    assert_eventually!(pod.sandbox().is_some());
    assert_eventually!(pod.events().await.unwrap().iter().any(|event| event.contains("unresolvable CDI device")));
    bench.stop_driver().await;
    bench.start_driver().await;
    let pod = bench.node.pod("default", "pod").await.unwrap();
    pod.running().await.unwrap();
    assert!(in_pod(&pod, "data0").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_restarts_and_forgets_its_pods_costs_no_interface() {
    let Some(bench) = Bench::start().await else { return };
    let before = bench.host.state("fast0").unwrap();
    let pod = bench.pod("pod", "fast0", json!({"interfaceName": "data0", "mtu": 1400})).await;
    pod.running().await.unwrap();
    bench.node.nri().unwrap().restart().await.unwrap();
    bench.node.nri().unwrap().wait_plugin(PLUGIN).await.unwrap();
    assert!(in_pod(&pod, "data0").is_some(), "a pod that runs keeps it");
    // StopPodSandbox never comes: the kubelet's unprepare brings it back.
    pod.delete().await.unwrap();
    assert_eq!(bench.host.state("fast0").unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_restarts_leaves_pods_alone_and_brings_back_their_interfaces_later() {
    let Some(mut bench) = Bench::start().await else { return };
    let before = bench.host.state("fast0").unwrap();
    bench.pod("pod", "fast0", json!({"interfaceName": "data0"})).await.running().await.unwrap();
    bench.stop_driver().await;
    bench.start_driver().await;
    let pod = bench.node.pod("default", "pod").await.unwrap();
    assert!(in_pod(&pod, "data0").is_some());
    pod.delete().await.unwrap();
    assert_eq!(bench.host.state("fast0").unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_fails_is_reported_and_succeeds_when_the_reason_is_gone() {
    let Some(bench) = Bench::start().await else { return };
    let routes = json!([{"destination": "10.85.0.0/20", "gateway": "198.51.100.254"}]);
    let parameters = json!({"interfaceName": "data0", "addresses": ["198.51.100.1/24"], "routes": routes});
    let pod = bench.pod("pod", "fast0", parameters).await;
    let status = bench.status("pod", false).await;
    assert!(pod.sandbox().is_none() || status.network_data.is_none());
    let refused = |text: String| text.contains("route to 10.85.0.0/20");
    assert_eventually!({
        let status = bench.status("pod", false).await;
        status
            .conditions
            .unwrap()
            .into_iter()
            .any(|condition| condition.reason == "RouteInUse" && refused(condition.message))
    });
    assert!(bench.host.link("fast0").is_some(), "it is on the host, not in a sandbox that has failed");
    pod.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_an_address_that_another_host_has_does_not_start_and_its_claim_says_who_has_it() {
    let Some(bench) = Bench::start().await else { return };
    let other = bench.host.connect_host("fast3", "198.51.100.77/24");
    let parameters = json!({"interfaceName": "data0", "addresses": ["198.51.100.77/24"], "duplicateDetection": "full"});
    let pod = bench.pod("pod", "fast3", parameters).await;
    let text = format!("address 198.51.100.77 is already in use by another host on the network, {other}");
    assert_eventually!({
        let status = bench.status("pod", false).await;
        let mut conditions = status.conditions.unwrap().into_iter();
        conditions.any(|condition| condition.reason == "AddressInUse" && condition.message.contains(&text))
    });
    assert!(pod.process("main").is_none());
    assert!(bench.host.link("fast3").is_some(), "it is back on the host");
    pod.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_made_again_gets_the_interface_again() {
    let Some(bench) = Bench::start().await else { return };
    let pod = bench.pod("pod", "fast0", json!({"interfaceName": "data0"})).await;
    pod.running().await.unwrap();
    pod.delete().await.unwrap();
    let again = bench.pod_with("again", &["pod"]).await;
    again.running().await.unwrap();
    assert!(in_pod(&again, "data0").is_some(), "another pod with the same claim");
}

/// A kubelet does not prepare a claim again for a second pod, so the driver hears of that pod from the runtime alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_pod_with_the_same_claim_does_not_start_without_the_interface() {
    let Some(bench) = Bench::start().await else { return };
    let first = bench.pod("shared", "fast0", json!({"interfaceName": "data0"})).await;
    first.running().await.unwrap();
    let second = bench.pod_with("second", &["shared"]).await;
    let expected = ["an interface can be in one pod only", "give each pod a claim of its own"];
    assert_eventually!({
        let events = second.events().await.unwrap();
        events.iter().any(|event| expected.iter().all(|text| event.contains(text)))
    });
    assert!(second.process("main").is_none());
    assert!(in_pod(&first, "data0").is_some());
    second.delete().await.unwrap();
    first.delete().await.unwrap();
    assert!(bench.host.link("fast0").is_some());
}
