//! `list`, `read` and `get`.

use drakkar_metadata::{DeviceAttribute, Versions, encode};
use snapbox::str;

use crate::support::{Container, claim, device, gpus, kep, metadata, nic, template};

#[test]
fn list_shows_each_device_once_if_both_layouts_are_mounted() {
    Container::with_gpus().drakkar(["list"]).assert().success().stderr_eq("").stdout_eq(str![[r#"
CLAIM    REQUEST  DRIVER           DEVICE  DETAILS
devices  gpu      gpu.example.com  gpu-0   pci 0000:03:00.0
devices  gpu      gpu.example.com  gpu-1   pci 0000:04:00.0

"#]]);
}

#[test]
fn list_shows_files_that_are_not_written_yet_without_an_error() {
    let container = Container::with_gpus();
    container.write(&claim("net", "eth", "net.example.com"), "");
    container.drakkar(["list"]).assert().success().stdout_eq(str![[r#"
CLAIM    REQUEST  DRIVER           DEVICE  DETAILS
devices  gpu      gpu.example.com  gpu-0   pci 0000:03:00.0
devices  gpu      gpu.example.com  gpu-1   pci 0000:04:00.0
net      eth      net.example.com  -       not written yet

"#]]);
}

#[test]
fn a_claim_with_a_request_that_is_not_written_yet_is_one_claim() {
    let container = Container::new();
    let written = encode(&metadata("c", "u", "gpu", vec![device("a.example.com", "d")]), &Versions::default());
    container.write(&claim("c", "gpu", "a.example.com"), written);
    container.write(&claim("c", "gpu", "b.example.com"), "");
    container.write(&claim("c", "nic", "b.example.com"), "");
    container.drakkar(["list"]).assert().success().stdout_eq(str![[r#"
CLAIM  REQUEST  DRIVER         DEVICE  DETAILS
c      gpu      a.example.com  d       0 attributes
c      gpu      b.example.com  -       not written yet
c      nic      b.example.com  -       not written yet

"#]]);
    container.drakkar(["env"]).assert().code(4);
}

#[test]
fn list_shows_valid_files_and_reports_broken_ones() {
    let container = Container::with_gpus();
    container.write(&claim("net", "eth", "net.example.com"), "{\"kind\":");
    container
        .drakkar(["list"])
        .assert()
        .code(5)
        .stdout_eq(str![[r#"
CLAIM    REQUEST  DRIVER           DEVICE  DETAILS
devices  gpu      gpu.example.com  gpu-0   pci 0000:03:00.0
devices  gpu      gpu.example.com  gpu-1   pci 0000:04:00.0
net      eth      net.example.com  -       broken

"#]])
        .stderr_eq(str![[r#"
drakkar: [..]/resourceclaims/net/eth/net.example.com-metadata.json: not valid JSON: EOF while parsing a value (line 1, column 8)

"#]]);
}

#[test]
fn list_without_metadata_is_not_found() {
    Container::new().drakkar(["list"]).assert().code(3).stdout_eq("").stderr_eq(str![[r#"
drakkar: no device metadata: nothing below /var/run/kubernetes.io/dra-device-attributes or /var/run/dra-device-attributes
hint: a container has metadata if its resources.claims in the pod spec names a claim and the driver writes metadata

"#]]);
}

#[test]
fn list_as_json_has_all_fields() {
    let container = Container::new();
    container.write(&claim("net", "eth", "net.example.com"), encode(&nic(), &Versions::default()));
    container.link(&claim("net", "eth", "net.example.com"), &kep("net", "eth", "net.example.com"));
    container.drakkar(["list", "-o", "json"]).assert().success().stdout_eq(str![[r#"
[
  {
    "alsoAt": [
      "[..]/var/run/dra-device-attributes/net/eth/net.example.com-metadata.json"
    ],
    "claim": "net",
    "claimName": "net",
    "devices": [
      {
        "driver": "net.example.com",
        "name": "eth1",
        "networkData": {
          "hardwareAddress": "02:00:00:00:00:05",
          "interfaceName": "net1",
          "ips": [
            "10.9.0.5/24",
            "fd00:9::5/64"
          ]
        },
        "pool": "worker-0",
        "request": "eth"
      }
    ],
    "driver": "net.example.com",
    "format": "metadata.resource.k8s.io/v1alpha1",
    "generation": 1,
    "namespace": "default",
    "path": "[..]/var/run/kubernetes.io/dra-device-attributes/resourceclaims/net/eth/net.example.com-metadata.json",
    "reference": "resourceclaims/net",
    "request": "eth",
    "status": "written",
    "uid": "b7a5f1de-52a5-4a5e-8e0a-6f0f2f8f5a22"
  }
]

"#]]);
}

#[test]
fn output_has_no_control_characters_of_a_driver() {
    let container = Container::new();
    let mut evil = metadata("net", "uid", "eth", vec![device("net.example.com", "\u{1b}[2J\u{9b}0m")]);
    evil.requests[0].devices[0].attributes.insert("\u{7}".into(), "\r\n\u{1b}]0;x\u{7}".into());
    container.write(&claim("net", "eth", "net.example.com"), encode(&evil, &Versions::default()));
    for arguments in [vec!["list"], vec!["read", "net/eth"], vec!["get", "net/eth", "nope"]] {
        let output = container.drakkar(arguments.clone()).output().unwrap();
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8(shown).unwrap();
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{arguments:?}: {shown:?}");
        assert!(shown.contains("\\u{1b}[2J"), "{arguments:?}: {shown:?}");
    }
}

#[test]
fn read_shows_every_attribute() {
    let container = Container::new();
    let mut both = nic();
    both.requests[0].devices[0].attributes = [
        ("mtu".to_owned(), DeviceAttribute::from(9000)),
        ("example.com/speeds".to_owned(), DeviceAttribute::from(vec![10, 25])),
    ]
    .into();
    container.write(&claim("net", "eth", "net.example.com"), encode(&both, &Versions::default()));
    container.drakkar(["read", "net/eth"]).assert().success().stdout_eq(str![[r#"
net  claim default/net, generation 1, from net.example.com
  eth  net.example.com/worker-0/eth1
    ATTRIBUTE                    KIND     VALUE
    example.com/speeds           ints     10,25
    mtu                          int      9000
    networkData.interfaceName    string   net1
    networkData.ips              strings  10.9.0.5/24,fd00:9::5/64
    networkData.hardwareAddress  string   02:00:00:00:00:05

"#]]);
}

#[test]
fn read_as_json_is_the_file_itself() {
    let output = Container::with_gpus().drakkar(["read", "devices/gpu", "-o", "json"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, encode(&gpus(), &Versions::default()));
}

#[test]
fn read_can_convert_to_another_version() {
    let output =
        Container::with_gpus().drakkar(["read", "devices/gpu", "-o", "json", "--to", "v1beta1"]).output().unwrap();
    assert_eq!(output.stdout, encode(&gpus(), &"v1beta1".parse().unwrap()));
}

#[test]
fn read_as_yaml_has_the_same_content() {
    let output = Container::with_gpus().drakkar(["read", "devices/gpu", "-o", "yaml"]).output().unwrap();
    let yaml: serde_json::Value = serde_saphyr::from_slice(&output.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&encode(&gpus(), &Versions::default())).unwrap();
    assert_eq!(yaml, json);
}

#[test]
fn read_merges_the_drivers_of_a_request_and_reports_the_one_that_is_broken() {
    let container = Container::new();
    let of = |driver: &str| encode(&metadata("c", "u", "r", vec![device(driver, "d")]), &Versions::default());
    container.write(&claim("c", "r", "a.example.com"), of("a.example.com"));
    container.write(&claim("c", "r", "b.example.com"), of("b.example.com"));
    container.write(&claim("c", "r", "c.example.com"), "[]");
    container.drakkar(["get", "c/r", "driver"]).assert().code(5).stdout_eq("");
    container
        .drakkar(["read", "c/r", "-o", "json"])
        .assert()
        .code(5)
        .stdout_eq(str![[r#"
{
  "kind": "DeviceMetadata",
  "apiVersion": "metadata.resource.k8s.io/v1alpha1",
  "metadata": {},
  "requests": [
    {
      "name": "r",
      "devices": [
        {
          "driver": "a.example.com",
          "pool": "worker-0",
          "name": "d"
        },
        {
          "driver": "b.example.com",
          "pool": "worker-0",
          "name": "d"
        }
      ]
    }
  ]
}

"#]])
        .stderr_eq(str![[r#"
drakkar: [..]/resourceclaims/c/r/c.example.com-metadata.json: not a metadata document: invalid type: sequence, expected a JSON object (line 1, column 2)

"#]]);
    container.drakkar(["get", "c/r", "driver", "--driver", "b.example.com"]).assert().success().stdout_eq(str![[r#"
b.example.com

"#]]);
}

#[test]
fn get_prints_a_line_for_each_device_and_element() {
    let container = Container::with_gpus();
    container.write(&claim("net", "eth", "net.example.com"), encode(&nic(), &Versions::default()));
    container.drakkar(["get", "devices/gpu", "pciBusID"]).assert().success().stdout_eq("0000:03:00.0\n0000:04:00.0\n");
    container.drakkar(["get", "devices/gpu", "model", "--device", "gpu-1"]).assert().success().stdout_eq(str![[r#"
LATEST-GPU-MODEL

"#]]);
    container.drakkar(["get", "net/eth", "ips"]).assert().success().stdout_eq("10.9.0.5/24\nfd00:9::5/64\n");
    container.drakkar(["get", "net/eth", "networkData.hardwareAddress"]).assert().success().stdout_eq(str![[r#"
02:00:00:00:00:05

"#]]);
}

#[test]
fn get_lists_the_alternatives_if_an_attribute_or_device_is_missing() {
    let container = Container::with_gpus();
    container.drakkar(["get", "devices/gpu", "modell"]).assert().code(3).stdout_eq("").stderr_eq(str![[r#"
drakkar: device gpu-0 of devices/gpu has no modell; its attributes are: model, resource.kubernetes.io/pciBusID

"#]]);
    container.drakkar(["get", "devices/gpu", "model", "--device", "gpu-7"]).assert().code(3).stderr_eq(str![[r#"
drakkar: devices/gpu has no device gpu-7; it has: gpu-0, gpu-1

"#]]);
    container.drakkar(["get", "devices/gpus", "model"]).assert().code(3).stderr_eq(str![[r#"
drakkar: no metadata for devices/gpus: looked in [..]
hint: `drakkar list` shows the requests of this container

"#]]);
}

#[test]
fn get_from_a_file_that_is_not_written_yet_has_its_own_exit_code() {
    let container = Container::new();
    container.write(&claim("net", "eth", "net.example.com"), "");
    container.drakkar(["get", "net/eth", "ips"]).assert().code(4).stdout_eq("").stderr_eq(str![[r#"
drakkar: [..]/resourceclaims/net/eth/net.example.com-metadata.json: not written yet
hint: `drakkar wait CLAIM/REQUEST` waits until the driver has written it

"#]]);
}

#[test]
fn get_refuses_an_attribute_with_two_values() {
    let container = Container::new();
    let mut two = nic();
    two.requests[0].devices[0]
        .attributes
        .insert("two".into(), DeviceAttribute { int: Some(1), ..DeviceAttribute::from("x") });
    container.write(&claim("net", "eth", "net.example.com"), encode(&two, &Versions::default()));
    container.drakkar(["get", "net/eth", "two"]).assert().code(5).stdout_eq("").stderr_eq(str![[r#"
drakkar: device eth1 of net/eth: two does not have exactly one value
hint: `drakkar read net/eth` shows its values

"#]]);
}

#[test]
fn a_name_of_a_claim_and_a_pod_claim_is_ambiguous() {
    let container = Container::new();
    let content = encode(&metadata("same", "u1", "r", vec![device("a.example.com", "d")]), &Versions::default());
    container.write(&claim("same", "r", "a.example.com"), content);
    let content = encode(&metadata("pod-same-x", "u2", "r", vec![device("a.example.com", "e")]), &Versions::default());
    container.write(&template("same", "r", "a.example.com"), content);
    container.drakkar(["list"]).assert().success().stdout_eq(str![[r#"
CLAIM                        REQUEST  DRIVER         DEVICE  DETAILS
resourceclaims/same          r        a.example.com  d       0 attributes
resourceclaimtemplates/same  r        a.example.com  e       0 attributes

"#]]);
    container.drakkar(["get", "same/r", "name"]).assert().code(2).stderr_eq(str![[r#"
drakkar: same/r is ambiguous: there is a claim and a pod claim of that name; use resourceclaims/same/r or resourceclaimtemplates/same/r

"#]]);
    container.drakkar(["get", "resourceclaims/same/r", "name"]).assert().success().stdout_eq("d\n");
    container.drakkar(["get", "resourceclaimtemplates/same/r", "name"]).assert().success().stdout_eq("e\n");
}
