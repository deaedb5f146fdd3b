//! The health of interfaces as the kubelet knows it and as pods show it, after what happens to cables.

use drakkar_netlink::{Connection, LinkChange};
use drakkar_node::assert_eventually;
use drakkar_node::kubelet::HealthStatus;
use serde_json::json;

use crate::support::{Bench, network};

#[tokio::test(flavor = "multi_thread")]
async fn a_cable_that_is_pulled_or_removed_makes_its_interface_unhealthy_in_the_pods_status() {
    let Some(bench) = Bench::start().await else { return };
    let pod = bench.pod("pod", "fast0", json!({"interfaceName": "data0"})).await;
    pod.running().await.unwrap();
    assert_eventually!(health(&bench, "if-fast0").await == Some((HealthStatus::Healthy, String::new())));
    // Only a carrier that was seen can be lost: wait for a look that began after the move.
    let before = looks(&bench).await;
    assert_eventually!(looks(&bench).await >= before + 2);

    set_up(&bench, "to-fast0", false);
    let lost = "interface data0 of pod default/pod has lost its carrier";
    assert_eventually!(health(&bench, "if-fast0").await == Some((HealthStatus::Unhealthy, lost.to_owned())));
    assert_eventually!(in_status(&pod).await == json!(["Unhealthy"]));

    set_up(&bench, "to-fast0", true);
    assert_eventually!(health(&bench, "if-fast0").await == Some((HealthStatus::Healthy, String::new())));
    assert_eventually!(in_status(&pod).await == json!(["Healthy"]));

    let mut connection = Connection::open(&network(&pod)).unwrap();
    let data0 = connection.link_by_name("data0").unwrap().unwrap();
    connection.delete_link(&data0).unwrap();
    assert_eventually!(matches!(health(&bench, "if-fast0").await, Some((HealthStatus::Unhealthy, _))));
    assert_eventually!(in_status(&pod).await == json!(["Unhealthy"]));
    pod.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_on_the_host_is_reported_for_the_interface_alone() {
    let Some(bench) = Bench::start().await else { return };
    assert_eventually!(health(&bench, "if-fast1").await == Some((HealthStatus::Healthy, String::new())));
    let before = looks(&bench).await;
    assert_eventually!(looks(&bench).await > before);
    set_up(&bench, "to-fast1", false);
    let lost = (HealthStatus::Unhealthy, "fast1 has lost its carrier".to_owned());
    assert_eventually!(health(&bench, "if-fast1").await == Some(lost.clone()));
    assert_eq!(health(&bench, "if-fast2").await, Some((HealthStatus::Healthy, String::new())));
}

/// Returns what the kubelet knows of a device.
async fn health(bench: &Bench, device: &str) -> Option<(HealthStatus, String)> {
    let known = bench.node.health().await.into_iter().find(|health| health.device == device)?;
    Some((known.health, known.message))
}

/// Returns how often the driver has reported the health of its interfaces.
async fn looks(bench: &Bench) -> u64 {
    let metrics = bench.page("/metrics").await;
    let count = metrics.lines().find_map(|line| line.strip_prefix("drakkar_plugin_health_reports_total "));
    count.unwrap().parse().unwrap()
}

/// Returns the health of the devices of a pod's container, as its status has it.
async fn in_status(pod: &drakkar_node::PodHandle<'_>) -> serde_json::Value {
    let pod = serde_json::to_value(pod.object().await.unwrap()).unwrap();
    let resources = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"];
    resources.as_array().into_iter().flatten().map(|resource| resource["health"].clone()).collect()
}

fn set_up(bench: &Bench, name: &str, is_up: bool) {
    bench.host.change(name, &LinkChange { up: Some(is_up), ..LinkChange::default() });
}
