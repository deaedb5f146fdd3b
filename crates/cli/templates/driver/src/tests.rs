//! Tests of the driver: by calling it, and on an embedded node with API server, scheduler, kubelet and containers.

use drakkar_node::{ClaimSpec, Container, Node, Pod, assert_eventually, device_class};
use drakkar_plugin::{Claim, DraPlugin, Helper, PluginBuilder};
use serde_json::{Value, json};

use super::driver::{API_VERSION, DRIVER, Driver, KIND};

/// Returns a claim for one device, as the framework would pass it.
fn claim(config: &Value) -> Claim {
    let object = json!({
        "metadata": {"namespace": "default", "name": "mine", "uid": "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"},
        "spec": {},
        "status": {"allocation": {"devices": {
            "results": [{"request": "device", "driver": DRIVER, "pool": "node-1", "device": "device-0"}],
            "config": config,
        }}},
    });
    Claim::from_object(DRIVER, serde_json::from_value(object).unwrap()).unwrap()
}

fn from_claim(parameters: &Value) -> Value {
    json!([{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}])
}

#[tokio::test]
async fn a_device_is_prepared_twice_in_the_same_way() {
    let claim = claim(&json!([]));
    let devices = Driver.prepare(&claim).await.unwrap();
    assert_eq!(devices[0].container_edits.env, ["DEVICE=device-0"]);
    assert_eq!(Driver.prepare(&claim).await.unwrap(), devices);
    Driver.unprepare(claim.reference()).await.unwrap();
}

#[tokio::test]
async fn parameters_of_the_claim_reach_the_device_and_wrong_ones_are_refused() {
    let fast = json!({"apiVersion": API_VERSION, "kind": KIND, "mode": "fast"});
    let devices = Driver.prepare(&claim(&from_claim(&fast))).await.unwrap();
    assert_eq!(devices[0].container_edits.env, ["DEVICE=device-0", "DEVICE_MODE=fast"]);
    let wrong = json!({"apiVersion": API_VERSION, "kind": KIND, "mood": "fast"});
    let error = Driver.prepare(&claim(&from_claim(&wrong))).await.unwrap_err().to_string();
    assert!(error.contains("unknown field `mood`"), "{error}");
}

/// Starts the driver on a node, and waits for its devices.
async fn start(node: &Node) -> Helper {
    let builder = PluginBuilder::new(DRIVER).on(node.environment(DRIVER).unwrap()).device_metadata(true);
    let driver = builder.start_with(|handles| Driver::new(&handles, 2)).await.unwrap();
    node.wait_published(DRIVER).await.unwrap();
    driver
}

#[tokio::test]
async fn a_pod_has_its_device_and_reads_its_metadata() {
    let node = Node::start().await.unwrap();
    let _driver = start(&node).await;
    node.create(device_class(DRIVER)).await.unwrap();
    let parameters = json!({"apiVersion": API_VERSION, "kind": KIND, "mode": "fast"});
    let spec = ClaimSpec::default().request("device", DRIVER, 1).parameters(&["device"], DRIVER, &parameters);
    node.create(spec.claim("mine")).await.unwrap();
    let main = Container::new("main", ["sh", "-c", "echo $DEVICE $DEVICE_MODE; exec sleep infinity"]).claim("devices");
    let pod = node.create_pod(Pod::new("pod").claim("devices", "mine").container(main)).await.unwrap();
    pod.running().await.unwrap();

    assert_eventually!(pod.logs("main").unwrap() == "device-0 fast\n");
    assert!(pod.exec("main", ["test", "-c", "/dev/device-0"]).await.unwrap().status.success());
    let file = format!("/var/run/dra-device-attributes/mine/device/{DRIVER}-metadata.json");
    let metadata = pod.exec("main", ["cat", &file]).await.unwrap().stdout;
    assert!(String::from_utf8_lossy(&metadata).contains("\"string\": \"m1\""));

    pod.delete().await.unwrap();
    assert!(node.leftovers(DRIVER).await.unwrap().is_empty());
}

/// The manifest for users to try the driver with.
#[tokio::test]
async fn the_example_pod_runs() {
    let node = Node::start().await.unwrap();
    let _driver = start(&node).await;
    node.create(device_class(DRIVER)).await.unwrap();
    node.apply(include_str!("../deploy/pod.yaml")).await.unwrap();
    let pod = node.pod("default", "example").await.unwrap();
    pod.running().await.unwrap();
    assert_eventually!(pod.logs("main").unwrap().contains("DEVICE=device-0"));
    pod.delete().await.unwrap();
    assert!(node.leftovers(DRIVER).await.unwrap().is_empty());
}
