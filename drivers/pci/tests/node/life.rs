//! Claims from allocation to the end.

use drakkar_node::{ClaimSpec, assert_eventually};
use drakkar_pci::DRIVER_NAME;
use serde_json::json;

use crate::support::{Bench, attributes, by, delete_claim, is_unschedulable};

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_selected_by_model_bound_to_vfio_and_given_back() {
    let bench = Bench::start().await;
    let cel = "device.attributes['pci.drakkar.dev'].vendorID == '10de' && device.attributes['pci.drakkar.dev'].kind == 'pci' \
               && device.attributes['pci.drakkar.dev'].model.contains('A10')";
    let pod = bench.pod("vm", cel).await;
    pod.running().await.unwrap();
    assert_eq!(pod.allocated().await.unwrap()[0].devices[0].1, "pci-0000-65-00-0");
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("vfio-pci"));

    let attributes = attributes(&pod, "vm", "device").await;
    assert_eq!(attributes["resource.kubernetes.io/pciBusID"], json!({"string": "0000:65:00.0"}));
    assert_eq!(attributes["resource.kubernetes.io/pcieRoot"], json!({"string": "pci0000:64"}));
    assert_eq!(attributes["resource.kubernetes.io/numaNode"], json!({"int": 0}));
    assert_eq!(attributes["model"], json!({"string": "GA102GL [A10]"}));
    assert_eq!(attributes["driver"], json!({"string": "vfio-pci"}));
    let nodes = pod.exec("main", ["ls", "/dev/vfio"]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&nodes.stdout), "5\nvfio\n");

    let published = bench.device("pci-0000-65-00-0").await.unwrap().attributes.unwrap();
    assert_eq!(published["driver"].string.as_deref(), Some("nvidia"), "what is published does not change with a claim");
    let status = bench.node.wait_device_status("vm").await.unwrap();
    assert_eq!(status[0].conditions.as_ref().unwrap()[0].type_, "Ready");
    assert_eq!(status[0].data.as_ref().unwrap().0["pciBusID"], "0000:65:00.0");

    pod.delete().await.unwrap();
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("nvidia"));
    let claim = bench.node.claim_ref("vm").await.unwrap();
    let leftovers = bench.node.leftovers_of(DRIVER_NAME, &[claim]).await.unwrap();
    assert!(leftovers.of_claims.is_empty(), "{leftovers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mediated_device_is_made_for_a_claim_and_removed_after_it() {
    let bench = Bench::start().await;
    let pod = bench.pod("vgpu", &by("mdevType", "nvidia-64")).await;
    pod.running().await.unwrap();
    let attributes = attributes(&pod, "vgpu", "device").await;
    let uuid = attributes["mdevUUID"]["string"].as_str().unwrap().to_owned();
    let mdev = bench.simulation.roots().mdev(&uuid);
    assert!(mdev.exists());
    assert!(attributes.get("resource.kubernetes.io/pciBusID").is_none(), "{attributes}");
    assert_eq!(attributes["resource.kubernetes.io/numaNode"], json!({"int": 1}));
    pod.delete().await.unwrap();
    assert!(!mdev.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_functions_are_made_when_the_first_is_needed() {
    let bench = Bench::start().await;
    let first = bench.pod("first", &by("kind", "vf")).await;
    first.running().await.unwrap();
    let attributes_of_first = attributes(&first, "first", "device").await;
    assert_eq!(attributes_of_first["resource.kubernetes.io/pciBusID"], json!({"string": "0000:01:10.0"}));
    assert_eq!(attributes_of_first["deviceID"], json!({"string": "10ca"}));
    assert_eq!(bench.kernel_driver("0000:01:10.0").as_deref(), Some("vfio-pci"));
    let second = bench.pod("second", &by("kind", "vf")).await;
    second.running().await.unwrap();
    let attributes_of_second = attributes(&second, "second", "device").await;
    assert_eq!(attributes_of_second["resource.kubernetes.io/pciBusID"], json!({"string": "0000:01:10.1"}));
    // The whole is not to be had while there are parts.
    let whole = bench.pod("whole", &by("kind", "pf")).await;
    assert_eventually!(is_unschedulable(&whole).await);
    first.delete().await.unwrap();
    second.delete().await.unwrap();
    for claim in ["first", "second"] {
        delete_claim(&bench, claim).await;
    }
    whole.running().await.unwrap();
    assert_eq!(bench.kernel_driver("0000:01:00.0").as_deref(), Some("vfio-pci"));
}

#[tokio::test(flavor = "multi_thread")]
async fn types_of_mediated_devices_share_their_parent() {
    let bench = Bench::start().await;
    // 4 units: one large (2) and two small (1 each) fit, and nothing more.
    for (name, mdev_type) in [("large", "nvidia-64"), ("small", "nvidia-63"), ("small-2", "nvidia-63")] {
        bench.pod(name, &by("mdevType", mdev_type)).await.running().await.unwrap();
    }
    let full = bench.pod("full", &by("mdevType", "nvidia-63")).await;
    assert_eventually!(is_unschedulable(&full).await);
    let small = bench.node.pod("default", "small").await.unwrap();
    small.delete().await.unwrap();
    delete_claim(&bench, "small").await;
    full.running().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_may_ask_for_the_kernel_driver_or_for_nothing() {
    let bench = Bench::start().await;
    for (name, mode) in [("kernel", "kernel"), ("none", "none")] {
        let mut claim = ClaimSpec::default().request("device", DRIVER_NAME, 1).claim(name);
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] =
            json!([{"cel": {"expression": by("kind", "pci")}}]);
        let parameters = json!({"apiVersion": "pci.drakkar.dev/v1alpha1", "kind": "ClaimConfig", "mode": mode});
        claim["spec"]["devices"]["config"] = json!([{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]);
        bench.node.create(claim).await.unwrap();
        let pod = bench.pod_with_claim(name, name).await;
        pod.running().await.unwrap();
        assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("nvidia"));
        assert_eq!(attributes(&pod, name, "device").await["mode"], json!({"string": mode}));
        pod.delete().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parameters_are_an_event_of_the_pod_that_names_the_request() {
    let bench = Bench::start().await;
    let mut claim = ClaimSpec::default().request("device", DRIVER_NAME, 1).claim("wrong");
    let parameters = json!({"apiVersion": "pci.drakkar.dev/v1alpha1", "kind": "ClaimConfig", "mode": "vfoi"});
    claim["spec"]["devices"]["config"] = json!([{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]);
    bench.node.create(claim).await.unwrap();
    let pod = bench.pod_with_claim("wrong", "wrong").await;
    let is_reported =
        |events: Vec<String>| events.iter().any(|event| event.contains("request device") && event.contains("vfoi"));
    assert_eventually!(is_reported(pod.events().await.unwrap()), "{:?}", pod.events().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_device_goes_to_one_claim() {
    let bench = Bench::start().await;
    let cel = "device.attributes['pci.drakkar.dev'].kind == 'pci' \
               && device.attributes['resource.kubernetes.io'].pciBusID == '0000:65:00.0'";
    let first = bench.pod("first", cel).await;
    first.running().await.unwrap();
    let second = bench.pod("second", cel).await;
    assert_eventually!(is_unschedulable(&second).await);
    first.delete().await.unwrap();
    delete_claim(&bench, "first").await;
    second.running().await.unwrap();
    assert_eq!(second.allocated().await.unwrap()[0].devices[0].1, "pci-0000-65-00-0");
    assert_eq!(bench.kernel_driver("0000:65:00.0").as_deref(), Some("vfio-pci"));
}
