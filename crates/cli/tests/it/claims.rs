//! `read` and `get` of a whole claim, and `get -o json`.

use drakkar_metadata::{DeviceAttribute, Versions, encode};
use snapbox::str;

use crate::support::{Container, claim, device, gpus, metadata, nic, template};

/// A claim with two requests, beside another claim.
fn container() -> Container {
    let container = Container::with_gpus();
    let mut port = nic();
    port.pod_claim_name = Some("devices".into());
    port.metadata = gpus().metadata;
    container.write(&template("devices", "nic", "net.example.com"), encode(&port, &Versions::default()));
    container.write(&claim("net", "eth", "net.example.com"), encode(&nic(), &Versions::default()));
    container
}

#[test]
fn read_shows_all_requests_of_a_claim() {
    container().drakkar(["read", "devices"]).assert().success().stderr_eq("").stdout_eq(str![[r#"
devices  claim default/trainer-devices-x7x2k, generation 1, from gpu.example.com
  gpu  gpu.example.com/worker-0/gpu-0
    ATTRIBUTE                        KIND    VALUE
    model                            string  LATEST-GPU-MODEL
    resource.kubernetes.io/pciBusID  string  0000:03:00.0
  gpu  gpu.example.com/worker-0/gpu-1
    ATTRIBUTE                        KIND    VALUE
    model                            string  LATEST-GPU-MODEL
    resource.kubernetes.io/pciBusID  string  0000:04:00.0
devices  claim default/trainer-devices-x7x2k, generation 1, from net.example.com
  eth  net.example.com/worker-0/eth1
    ATTRIBUTE                    KIND     VALUE
    networkData.interfaceName    string   net1
    networkData.ips              strings  10.9.0.5/24,fd00:9::5/64
    networkData.hardwareAddress  string   02:00:00:00:00:05

"#]]);
}

#[test]
fn a_claim_as_json_is_one_document_with_all_requests() {
    let output = container().drakkar(["read", "devices", "-o", "json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["podClaimName"], "devices");
    let names: Vec<_> = document["requests"].as_array().unwrap().iter().map(|request| &request["name"]).collect();
    assert_eq!(names, ["gpu", "eth"]);
    let of_driver = ["read", "devices", "-o", "json", "--driver", "net.example.com"];
    let output = container().drakkar(of_driver).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["requests"].as_array().unwrap().len(), 1);
}

#[test]
fn a_claim_that_is_partly_written_is_shown_and_reported() {
    let container = Container::with_gpus();
    container.write(&template("devices", "nic", "net.example.com"), "");
    let assert = container.drakkar(["read", "devices"]).assert().code(4);
    let output = assert.get_output();
    assert!(String::from_utf8_lossy(&output.stdout).contains("gpu-1"));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("devices/nic/net.example.com-metadata.json: not written yet")
    );
}

#[test]
fn get_of_a_claim_lists_its_requests_and_of_a_request_its_attributes() {
    let container = container();
    container.write(&template("devices", "later", "net.example.com"), "");
    container.drakkar(["get", "devices"]).assert().success().stdout_eq("gpu\nlater\nnic\n");
    container.drakkar(["get", "net/eth"]).assert().success().stdout_eq("hardwareAddress\ninterfaceName\nips\n");
    container.drakkar(["get", "devices/gpu"]).assert().success().stdout_eq(str![[r#"
model
resource.kubernetes.io/pciBusID

"#]]);
    container.drakkar(["get", "net", "-o", "json"]).assert().success().stdout_eq("[\n  \"eth\"\n]\n");
    container.drakkar(["get", "devices", "pciBusID"]).assert().code(2).stdout_eq("").stderr_eq(str![[r#"
drakkar: devices is a claim; an attribute belongs to one of its requests
hint: the requests of devices are: gpu, later, nic

"#]]);
    container.drakkar(["get", "absent"]).assert().code(3).stderr_eq(str![[r#"
drakkar: no metadata for absent: looked in [..]
hint: `drakkar list` shows the requests of this container

"#]]);
}

#[test]
fn values_as_json_have_their_types_and_their_devices() {
    let container = Container::new();
    let mut metadata = metadata("c", "u", "r", vec![device("a.example.com", "d")]);
    let attributes = &mut metadata.requests[0].devices[0].attributes;
    attributes.insert("count".into(), DeviceAttribute::from(3));
    attributes.insert("links".into(), DeviceAttribute::from(vec![true, false]));
    attributes.insert("text".into(), DeviceAttribute::from("a\nb"));
    container.write(&claim("c", "r", "a.example.com"), encode(&metadata, &Versions::default()));
    let value = |attribute: &str| -> serde_json::Value {
        let output = container.drakkar(["get", "c/r", attribute, "-o", "json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let expected = |value: serde_json::Value| serde_json::json!([{"device": "d", "driver": "a.example.com", "pool": "worker-0", "value": value}]);
    assert_eq!(value("count"), expected(3.into()));
    assert_eq!(value("links"), expected(vec![true, false].into()));
    // A control character is safe in JSON.
    assert_eq!(value("text"), expected("a\nb".into()));
}
