//! Devices that come and go, and configurations that change, while the driver runs.

use drakkar_node::assert_eventually;
use drakkar_pci::{GONE, UNSELECTED};
use drakkar_sysfs::simulation::Device;

use crate::promtool::check_metrics;
use crate::support::{Bench, RULES, by};

const GPU: &str = "pci-0000-65-00-0";

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_published_when_they_come_and_dropped_when_they_go() {
    let bench = Bench::start().await;
    assert_eventually!(bench.device(GPU).await.is_some());
    let address = "0000:66:00.0".parse().unwrap();
    let mut device = Device::new(address, 0x10de, 0x2236, 0x030200);
    device.iommu_group = Some(66);
    bench.simulation.add_device(&device).unwrap();
    assert_eventually!(bench.device("pci-0000-66-00-0").await.is_some());
    bench.simulation.remove_device(address).unwrap();
    assert_eventually!(bench.device("pci-0000-66-00-0").await.is_none());
    assert!(bench.device(GPU).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_goes_while_a_claim_has_it_is_tainted_until_it_comes_back() {
    let bench = Bench::start().await;
    let pod = bench.pod("vm", &by("kind", "pci")).await;
    pod.running().await.unwrap();
    let address = "0000:65:00.0".parse().unwrap();
    bench.simulation.remove_device(address).unwrap();
    assert_eventually!(bench.has_taint(GPU, GONE, "NoExecute").await);
    let is_unhealthy = |health: Vec<drakkar_node::kubelet::DeviceHealth>| {
        health.iter().any(|health| health.device == GPU && format!("{health:?}").contains("gone"))
    };
    assert_eventually!(is_unhealthy(bench.node.health().await), "{:?}", bench.node.health().await);
    let mut device = Device::new(address, 0x10de, 0x2236, 0x030200);
    device.iommu_group = Some(5);
    bench.simulation.add_device(&device).unwrap();
    assert_eventually!(
        bench.device(GPU).await.is_some_and(|device| device.taints.is_none_or(|taints| taints.is_empty()))
    );
    bench.simulation.remove_device(address).unwrap();
    assert_eventually!(bench.has_taint(GPU, GONE, "NoExecute").await);
    pod.delete().await.unwrap();
    assert_eventually!(bench.device(GPU).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_configuration_is_published_and_an_invalid_one_is_not() {
    let bench = Bench::start().await;
    assert_eventually!(bench.device(GPU).await.is_some());
    assert_eq!(bench.metric("drakkar_pci_config_valid ").await.as_deref(), Some("1"));
    check_metrics(&bench.metrics().await);
    bench.write_config("kind: Nonsense\n");
    assert_eventually!(bench.metric("drakkar_pci_config_valid ").await.as_deref() == Some("0"));
    assert!(bench.device(GPU).await.is_some(), "the old configuration stays in use");
    bench.configure("- {match: {classes: [network]}}");
    assert_eventually!(bench.device(GPU).await.is_none());
    assert_eventually!(bench.metric("drakkar_pci_config_valid ").await.as_deref() == Some("1"));
    bench.configure(RULES);
    assert_eventually!(bench.device(GPU).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_configuration_stops_the_driver_from_following_the_next_one() {
    let bench = Bench::start().await;
    assert_eventually!(bench.device(GPU).await.is_some());
    bench.configure(&format!("- {{match: {{addresses: ['{}{}']}}}}", "{".repeat(260), "}".repeat(260)));
    assert_eventually!(bench.metric("drakkar_pci_config_valid ").await.as_deref() == Some("0"));
    bench.configure("- {match: {classes: [network]}}");
    assert_eventually!(bench.device(GPU).await.is_none());
    assert_eq!(bench.metric("drakkar_pci_config_valid ").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_no_longer_selected_stays_tainted_until_its_claim_ends() {
    let bench = Bench::start().await;
    let pod = bench.pod("vm", &by("kind", "pci")).await;
    pod.running().await.unwrap();
    bench.configure("- {match: {classes: [network]}}");
    assert_eventually!(bench.has_taint(GPU, UNSELECTED, "NoSchedule").await);
    assert!(pod.process("main").is_some(), "its pod goes on");
    pod.delete().await.unwrap();
    assert_eventually!(bench.device(GPU).await.is_none());
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("nvidia"));
}

const TWO_DISKS: &str = "
drivers: [{name: nvme, ids: ['144d:*']}]
devices:
- {address: '0000:01:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 1, nvme: nvme1}
- {address: '0000:02:00.0', vendor: 144d, device: a808, class: '010802', iommuGroup: 2, nvme: nvme0}
files: {proc/1/mountinfo: '22 1 0:25 / / rw - btrfs /dev/nvme1n1 rw'}";

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_may_use_is_not_given_away() {
    let bench = Bench::start_with(TWO_DISKS, "- {match: {classes: [nvme]}}").await;
    assert_eventually!(bench.device("pci-0000-02-00-0").await.is_some());
    bench.node.stop_kubelet().await;
    let pod = bench.pod("vm", &by("subclass", "nvme")).await;
    pod.allocated().await.unwrap();
    // The kubelet asks before the driver looks again, or after.
    std::fs::remove_file(bench.simulation.roots().proc.join("1/mountinfo")).unwrap();
    bench.node.start_kubelet().await.unwrap();
    let is_reported = |events: Vec<String>| {
        let unknown = |event: &String| event.contains("not known any more whether the host uses it");
        events.iter().any(|event| unknown(event) || event.contains("not published any more"))
    };
    assert_eventually!(is_reported(pod.events().await.unwrap()), "{:?}", pod.events().await);
    assert_eq!(bench.kernel_driver("0000:02:00.0").as_deref(), Some("nvme"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_has_begun_to_use_is_not_given_away() {
    let bench = Bench::start_with(TWO_DISKS, "- {match: {classes: [nvme]}}").await;
    assert_eventually!(bench.device("pci-0000-02-00-0").await.is_some());
    let mounts = bench.simulation.roots().proc.join("1/mountinfo");
    std::fs::write(mounts, "22 1 0:25 / / rw - btrfs /dev/nvme1n1 rw\n23 1 0:26 / /data rw - btrfs /dev/nvme0n1 rw\n")
        .unwrap();
    let pod = bench.pod("vm", &by("subclass", "nvme")).await;
    let is_reported =
        |events: Vec<String>| events.iter().any(|event| event.contains("/dev/nvme0n1 is mounted at /data"));
    assert_eventually!(is_reported(pod.events().await.unwrap()), "{:?}", pod.events().await);
    assert_eq!(bench.kernel_driver("0000:02:00.0").as_deref(), Some("nvme"));
}
