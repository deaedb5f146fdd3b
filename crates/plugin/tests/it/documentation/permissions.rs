//! A driver with the permissions of the guide's manifest, and no others.

use drakkar_node::api::{Config, Policy, Rule, Subject};
use drakkar_node::{ClaimSpec, Container, Identity, Node, Pod, device_class};
use drakkar_plugin::{Device, DeviceStatus, DriverResources, NodeEnvironment, PluginBuilder, Pool, PublishedDevice};
use serde_json::Value;

use super::{DRIVER, manifests};
use crate::support::TestDriver;

/// Returns the texts of a list in a manifest.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap())
}

/// Returns the policy of an API server on which the manifest was applied.
fn policy(role: &Value, account: &Subject) -> Policy {
    // The embedded server gives all service accounts what a driver needs; a cluster does not.
    let bare = Policy::default().without(&Subject::Group("system:serviceaccounts".into()));
    role["rules"].as_array().unwrap().iter().fold(bare, |policy, rule| {
        let allowed = Rule::new(texts(&rule["resources"]), texts(&rule["verbs"])).named(texts(&rule["resourceNames"]));
        policy.allow(account.clone(), allowed)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_manifest_are_enough_for_all_that_the_text_says() {
    let manifests = manifests();
    let text = |pointer: &str| manifests["ServiceAccount"].pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let namespace = text("/metadata/namespace");
    let name = text("/metadata/name");
    let account = Subject::ServiceAccount { namespace: namespace.clone(), name: name.clone() };
    let config = Config { policy: policy(&manifests["ClusterRole"], &account), ..Config::default() };
    let node = Node::builder().api(config).start().await.unwrap();
    let identity = Identity::Driver { namespace, service_account: name, node_name: node.name().to_owned() };
    let environment = node.environment(DRIVER).unwrap();
    let environment = NodeEnvironment { client: node.api().client(&identity).unwrap(), ..environment };
    let pool = Pool::default().device(PublishedDevice::new("gpu-0"));
    let resources = DriverResources::default().pool(node.name(), pool);
    let start = PluginBuilder::new(DRIVER).on(environment).start_with(|handles| {
        handles.publish_resources(resources)?;
        Ok(TestDriver::preparing(|claim| Ok(claim.results().map(Device::from).collect())))
    });
    let driver = start.await.unwrap();
    node.wait_published(DRIVER).await.unwrap();
    node.create(device_class(DRIVER)).await.unwrap();
    node.create(ClaimSpec::default().request("gpu", DRIVER, 1).claim("mine")).await.unwrap();
    let main = Container::new("main", ["sleep", "infinity"]).claim("gpus");
    let pod = node.create_pod(Pod::new("pod").claim("gpus", "mine").container(main)).await.unwrap();
    pod.running().await.unwrap();
    let claim = node.claim_ref("mine").await.unwrap();
    let status = DeviceStatus::new(node.name(), "gpu-0").ready("Prepared", "it works");
    driver.handles().report_device_status(&claim, [status]).unwrap();
    let devices = node.wait_device_status("mine").await.unwrap();
    assert_eq!(devices[0].device, "gpu-0");
    pod.delete().await.unwrap();
    driver.stop().await.unwrap();
}
