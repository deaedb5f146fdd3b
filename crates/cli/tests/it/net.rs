//! `drakkar net`, as a process.

use std::fs;

use snapbox::str;
use tempfile::TempDir;

use crate::support::drakkar;

const GOOD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: not-checked}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fast}
spec:
  spec:
    devices:
      requests: [{name: fast, exactly: {deviceClassName: fast}}]
      config:
      - requests: [fast]
        opaque:
          driver: net.drakkar.dev
          parameters:
            apiVersion: net.drakkar.dev/v1alpha1
            kind: ClaimConfig
            interfaceName: data0
            addresses: [192.0.2.10/24]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
spec: {}
";

const BAD: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: wrong}
spec:
  devices:
    config:
    - opaque:
        driver: net.drakkar.dev
        parameters:
          apiVersion: net.drakkar.dev/v1alpha1
          kind: ClaimConfig
          interfaceName: a-name-that-is-too-long
          addresses: [192.0.2.10/24]
          routes:
          - {destination: 198.51.100.0/24, gateway: 192.0.2.1}
          - {destination: 203.0.113.0/24, gatewy: 192.0.2.1}
---
apiVersion: net.drakkar.dev/v1alpha1
kind: ClaimConfig
macAddress: 01:00:00:00:00:00
";

#[test]
fn validate_prints_every_document_with_all_of_its_errors() {
    let directory = TempDir::new().unwrap();
    let validate = |name: &str, text: &str| {
        fs::write(directory.path().join(name), text).unwrap();
        drakkar().current_dir(directory.path()).args(["net", "validate", name]).assert()
    };
    validate("good.yaml", GOOD).success().stdout_eq(str![[r#"
good.yaml: ResourceClaimTemplate fast: OK
good.yaml: DeviceClass gpus: OK (no parameters for net.drakkar.dev)

"#]]);
    let refused = validate("bad.yaml", BAD).code(5).stdout_eq(str![[r#"
bad.yaml: ResourceClaim wrong: 2 errors
  spec.devices.config[0].opaque.parameters.interfaceName: "a-name-that-is-too-long" is too long: the kernel takes at most 15 bytes
  spec.devices.config[0].opaque.parameters.routes[1].gatewy: unknown field: did you mean gateway?
bad.yaml: net.drakkar.dev/v1alpha1 ClaimConfig: 1 error
  macAddress: 01:00:00:00:00:00 is a multicast address (the lowest bit of the first byte is 1): an interface needs a unicast address, such as 02:00:00:00:00:00

"#]]);
    refused.stderr_eq("drakkar: 2 of 2 documents are not valid\n");
    let other = validate("pod.yaml", "{apiVersion: v1, kind: Pod}").code(5);
    other.stderr_eq("drakkar: pod.yaml: no ResourceClaim, ResourceClaimTemplate, DeviceClass or ClaimConfig\n");
    validate("broken.yaml", "a: [").code(5);
    drakkar().current_dir(directory.path()).args(["net", "validate", "missing.yaml"]).assert().code(3);
}
