//! Claims from allocation to the end.

use drakkar_net::DRIVER_NAME;
use drakkar_node::assert_eventually;
use serde_json::json;

use crate::promtool::check_metrics;
use crate::support::{Bench, in_pod, metadata, talk};

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_talk_over_moved_interfaces_and_everything_is_back_afterwards() {
    let Some(bench) = Bench::start().await else { return };
    let before = ["fast0", "fast1"].map(|name| bench.host.state(name).unwrap());
    let first = bench
        .pod("first", "fast0", json!({"interfaceName": "data0", "mtu": 1400, "addresses": ["198.51.100.1/24"]}))
        .await;
    let second =
        bench.pod("second", "fast1", json!({"interfaceName": "data0", "addresses": ["198.51.100.2/24"]})).await;
    first.running().await.unwrap();
    second.running().await.unwrap();
    assert!(bench.host.link("fast0").is_none() && bench.host.link("fast1").is_none());
    talk(&first, &second, "198.51.100.2").await;

    // The file, the status and the kernel say the same.
    let interface = in_pod(&first, "data0").unwrap();
    assert_eq!((interface.mtu, interface.ips.as_slice()), (1400, &["198.51.100.1/24".to_owned()][..]));
    let device = metadata(&first, "first").await;
    let data = json!({"interfaceName": "data0", "ips": interface.ips, "hardwareAddress": interface.hardware_address});
    assert_eq!(device["networkData"], data);
    assert_eq!(device["attributes"]["mtu"], json!({"int": 1400}));
    let status = bench.status("first", true).await;
    assert_eq!(serde_json::to_value(status.network_data.unwrap()).unwrap(), data);
    assert_eq!(status.conditions.unwrap()[0].reason, "Attached");
    let slices = bench.node.slices(DRIVER_NAME).await.unwrap();
    let published: Vec<String> =
        slices.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default()).map(|device| device.name).collect();
    assert!(published.contains(&"if-fast0".to_owned()), "it stays published while it is in a pod: {published:?}");

    first.delete().await.unwrap();
    second.delete().await.unwrap();
    let after = ["fast0", "fast1"].map(|name| bench.host.state(name).unwrap());
    assert_eq!(after, before);
    let claim = bench.node.claim_ref("first").await.unwrap();
    let leftovers = bench.node.leftovers_of(DRIVER_NAME, &[claim]).await.unwrap();
    assert!(leftovers.of_claims.is_empty(), "{leftovers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_share_an_interface_and_get_addresses_of_a_range() {
    let Some(bench) = Bench::start().await else { return };
    let range =
        json!({"interfaceName": "shared", "addressRanges": [{"subnet": "203.0.113.0/29", "gateway": "203.0.113.1"}]});
    let first = bench.pod("first", "shared0", range.clone()).await;
    let second = bench.pod("second", "shared0", range).await;
    first.running().await.unwrap();
    second.running().await.unwrap();
    let of = |pod| in_pod(pod, "shared").unwrap();
    assert_ne!(of(&first).ips, of(&second).ips);
    assert_ne!(of(&first).hardware_address, of(&second).hardware_address);
    let address = of(&second).ips[0].split('/').next().unwrap().to_owned();
    talk(&first, &second, &address).await;
    assert_eq!(metadata(&second, "second").await["networkData"]["ips"], json!(of(&second).ips));
    first.delete().await.unwrap();
    second.delete().await.unwrap();
    assert!(bench.host.link("shared0").unwrap().is_up);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_two_networks() {
    let Some(bench) = Bench::start().await else { return };
    bench.claim("storage", "fast0", json!({})).await;
    let routes = json!([{"destination": "10.9.0.0/16", "gateway": "198.51.100.254"}]);
    bench
        .claim(
            "compute",
            "fast1",
            json!({"interfaceName": "net%d", "addresses": ["198.51.100.9/24"], "routes": routes}),
        )
        .await;
    let pod = bench.pod_with("both", &["storage", "compute"]).await;
    pod.running().await.unwrap();
    assert_eq!(in_pod(&pod, "fast0").unwrap().ips, ["192.0.2.200/24"], "the addresses of the host go along");
    assert_eq!(in_pod(&pod, "net0").unwrap().ips, ["198.51.100.9/24"]);
    let table = pod.exec("main", ["cat", "/proc/net/route"]).await.unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("net0\t0000090A\tFE6433C6")), "{table}");
    pod.delete().await.unwrap();
    assert!(bench.host.link("fast0").is_some() && bench.host.link("fast1").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parameters_are_the_claims_error_with_their_path() {
    let Some(bench) = Bench::start().await else { return };
    let pod = bench.pod("wrong", "fast0", json!({"mtu": 12, "adresses": []})).await;
    let texts = ["config[0].opaque.parameters.mtu: 12 must be from 68 to 65535", "did you mean addresses?"];
    assert_eventually!({
        let events = pod.events().await.unwrap();
        texts.iter().all(|text| events.iter().any(|event| event.contains(text)))
    });
    assert!(bench.host.link("fast0").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_readiness_follow_the_runtime() {
    let Some(bench) = Bench::start().await else { return };
    assert_eventually!(bench.page("/readyz").await.ends_with("ok"));
    let pod = bench.pod("pod", "fast0", json!({})).await;
    pod.running().await.unwrap();
    let metrics = bench.page("/metrics").await;
    for line in [
        "drakkar_net_attached_interfaces 1",
        "drakkar_net_nri_connected 1",
        "drakkar_net_attaches_total{outcome=\"success\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    check_metrics(metrics.split_once("\r\n\r\n").unwrap().1);
    bench.node.nri().unwrap().stop().await.unwrap();
    assert_eventually!(bench.page("/readyz").await.contains("the container runtime is not connected"));
    bench.node.nri().unwrap().start().unwrap();
    assert_eventually!(bench.page("/readyz").await.ends_with("ok"));
}
