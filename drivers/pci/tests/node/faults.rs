//! What goes wrong in the kernel, as a pod sees it.

use std::time::Duration;

use drakkar_node::assert_eventually;
use drakkar_sysfs::simulation::{Effect, Fault, When};
use rustix::io::Errno;

use crate::support::{Bench, PodEvents as _, by};

#[tokio::test(flavor = "multi_thread")]
async fn an_unbind_that_fails_is_reported_to_the_pod_and_tried_again() {
    let bench = Bench::start().await;
    bench.simulation.inject(Fault::always(When::Path("nvidia/unbind".into()), Effect::Fails(Errno::IO)));
    let pod = bench.pod("vm", &by("kind", "pci")).await;
    assert_eventually!(pod.has_event(&["0000:65:00.0", "unbind"]).await, "{:?}", pod.events().await);
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("nvidia"), "back where it was");
    bench.simulation.clear_faults();
    pod.running().await.unwrap();
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("vfio-pci"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_mediated_device_is_reported_to_the_pod_and_tried_again() {
    let bench = Bench::start().await;
    bench.simulation.inject(Fault::always(When::Path("nvidia-64/create".into()), Effect::Fails(Errno::NOSPC)));
    let pod = bench.pod("vgpu", &by("mdevType", "nvidia-64")).await;
    assert_eventually!(pod.has_event(&["nvidia-64", "0000:b3:00.0"]).await, "{:?}", pod.events().await);
    bench.simulation.clear_faults();
    pod.running().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_vanishes_between_allocation_and_prepare() {
    let bench = Bench::start().await;
    bench.node.stop_kubelet().await;
    let pod = bench.pod("vm", &by("kind", "pci")).await;
    assert_eq!(pod.allocated().await.unwrap()[0].devices[0].1, "pci-0000-65-00-0");
    bench.simulation.remove_device("0000:65:00.0".parse().unwrap()).unwrap();
    assert_eventually!(bench.metric("drakkar_pci_published_devices ").await.is_some_and(|count| count != "0"));
    bench.node.start_kubelet().await.unwrap();
    assert_eventually!(
        pod.has_event(&["pci-0000-65-00-0", "not published any more"]).await,
        "{:?}",
        pod.events().await
    );
    assert_eventually!(bench.device("pci-0000-65-00-0").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_hangs_stops_no_other_claim() {
    let bench = Bench::start_slow(Duration::from_secs(1)).await;
    bench.simulation.inject(Fault::always(When::Path("nvidia/unbind".into()), Effect::Hangs));
    let stuck = bench.pod("stuck", &by("kind", "pci")).await;
    assert_eventually!(stuck.has_event(&["0000:65:00.0", "has not returned"]).await, "{:?}", stuck.events().await);
    let other = bench.pod("other", &by("kind", "vf")).await;
    other.running().await.unwrap();
    bench.simulation.clear_faults();
    stuck.running().await.unwrap();
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("vfio-pci"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_write_that_hung_has_left_is_taken_back_without_the_kubelet() {
    let bench = Bench::start_slow(Duration::from_secs(1)).await;
    bench.simulation.inject(Fault::once(When::Path("vfio-pci/bind".into()), Effect::Hangs));
    let stuck = bench.pod("stuck", &by("kind", "pci")).await;
    assert_eventually!(stuck.has_event(&["0000:65:00.0", "has not returned"]).await, "{:?}", stuck.events().await);
    assert_eventually!(bench.metric("drakkar_pci_pending_devices ").await.as_deref() == Some("1"));
    bench.node.stop_kubelet().await;
    bench.simulation.clear_faults();
    assert_eventually!(bench.kernel_driver("0000:65:00.0").as_deref() == Some("nvidia"));
    assert_eventually!(bench.metric("drakkar_pci_pending_devices ").await.as_deref() == Some("0"));
}
