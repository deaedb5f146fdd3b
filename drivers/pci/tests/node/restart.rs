//! The driver as a process that is killed and started again.

use std::process::Command;

use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually};
use drakkar_pci::DRIVER_NAME;
use serde_json::json;

use crate::support::{HOST, RULES, by};

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_goes_on_with_its_prepared_claims() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    let host = directory.path().join("host.yaml");
    std::fs::write(&config, format!("apiVersion: pci.drakkar.dev/v1alpha1\nkind: DriverConfig\ndevices:\n{RULES}"))
        .unwrap();
    std::fs::write(&host, HOST).unwrap();
    let node = Node::start().await.unwrap();
    node.create(drakkar_node::device_class(DRIVER_NAME)).await.unwrap();
    let spawn = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drakkar-pci"));
        command.args(["run", "--enable-device-metadata", "--config"]).arg(&config).arg("--simulate").arg(&host);
        node.spawn(DRIVER_NAME, command).unwrap()
    };
    let driver = spawn();
    node.wait_registered(DRIVER_NAME).await.unwrap();
    node.wait_published(DRIVER_NAME).await.unwrap();
    let mut claim = ClaimSpec::default().request("device", DRIVER_NAME, 1).claim("vm");
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] =
        json!([{"cel": {"expression": by("kind", "pci")}}]);
    node.create(claim).await.unwrap();
    let pod = |name: &str| {
        let main = Container::new("main", ["sleep", "infinity"]).claim("devices");
        Pod::new(name).claim("devices", "vm").container(main)
    };
    let first = node.create_pod(pod("first")).await.unwrap();
    first.running().await.unwrap();
    let link = node
        .kubelet_root()
        .join("plugins")
        .join(DRIVER_NAME)
        .join("simulation/sys/bus/pci/devices/0000:65:00.0/driver");
    let kernel_driver = || std::fs::read_link(&link).unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(kernel_driver(), "vfio-pci");

    driver.kill().await.unwrap();
    let driver = spawn();
    assert_eventually!(driver.log().unwrap().contains("claim of an earlier process kept"), "{:?}", driver.log());
    node.wait_registered(DRIVER_NAME).await.unwrap();
    assert_eq!(kernel_driver(), "vfio-pci");
    let second = node.create_pod(pod("second")).await.unwrap();
    second.running().await.unwrap();
    first.delete().await.unwrap();
    assert_eq!(kernel_driver(), "vfio-pci", "another pod uses the claim");
    second.delete().await.unwrap();
    assert_eq!(kernel_driver(), "nvidia");
    assert!(driver.terminate().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_does_not_start_beside_the_first() {
    let bench = crate::support::Bench::start().await;
    let builder = drakkar_plugin::PluginBuilder::new(DRIVER_NAME).on(bench.node.environment(DRIVER_NAME).unwrap());
    let error = drakkar_pci::start(builder, bench.options()).await.unwrap_err().to_string();
    assert!(error.contains("another instance of the driver runs on this node"), "{error}");
}
