//! What is admitted and warned about.

use super::*;

fn warned(yaml: &str) -> Vec<String> {
    let workload = Workload::from_yaml(yaml).unwrap();
    assert_eq!(validate(&workload, &FeatureGates::default().with(Gate::HostDevices, true), Behaviour::Extended), []);
    warnings(&workload).iter().map(ToString::to_string).collect()
}

#[test]
fn an_unused_claim() {
    let yaml = "
kind: VirtualMachineInstance
spec:
  resourceClaims:
  - {name: used, resourceClaimName: a}
  - {name: idle, resourceClaimName: b}
  domain: {devices: {gpus: [{name: g, claimName: used, requestName: r}]}}
";
    let text = r#"spec.resourceClaims[1]: no device uses claim "idle", but it is allocated to the pod all the same"#;
    assert_eq!(warned(yaml), [text]);
}

/// What the hook's guide shows: the annotation uses the claim.
#[test]
fn a_claim_of_an_annotation_is_used() {
    let yaml = "
kind: VirtualMachine
spec:
  template:
    metadata: {annotations: {drakkar.dev/gpus: gpu=train/gpus, drakkar.dev/host-devices: nic=net/vf}}
    spec:
      resourceClaims:
      - {name: train, resourceClaimName: a}
      - {name: net, resourceClaimName: b}
";
    assert_eq!(warned(yaml), [""; 0]);
    let text = r#"spec.template.metadata.annotations: annotation drakkar.dev/gpus: entry "gpu": must be NAME=CLAIM/REQUEST, for example gpus=train/gpus"#;
    assert_eq!(warned(&yaml.replace("gpu=train/gpus", "gpu")), [text]);
}

/// The devices of an instance type are not in the document.
#[test]
fn a_vm_with_an_instance_type_may_use_its_claims_there() {
    let yaml = "
kind: VirtualMachine
spec:
  instancetype: {name: u1.gpu}
  template: {spec: {resourceClaims: [{name: c, resourceClaimName: a}]}}
";
    assert_eq!(warned(yaml), [""; 0]);
    assert_eq!(warned(&yaml.replace("instancetype: {name: u1.gpu}", "instancetype: null")).len(), 1);
}

#[test]
fn names_that_the_pod_or_libvirt_refuses() {
    let yaml = r#"
kind: VirtualMachine
spec:
  template:
    spec:
      resourceClaims:
      - {name: c, resourceClaimTemplateName: t}
      domain:
        devices:
          gpus:
          - {name: g, claimName: c, requestName: gpu/high}
          - {name: g, claimName: c, requestName: r1}
          - {name: "a b", claimName: c, requestName: r2, tag: x}
          - {claimName: c, requestName: r3}
          hostDevices:
          - {name: g, claimName: c, requestName: r4}
          - {name: g, deviceName: vendor.example/d, tag: x}
"#;
    let gpus = "spec.template.spec.domain.devices.gpus";
    assert_eq!(
        warned(yaml),
        [
            format!(r#"{gpus}[0].requestName: "gpu/high" is not a DNS label, so the launcher pod will be refused"#),
            format!(
                r#"{gpus}[1].name: "g" is repeated, so libvirt will refuse the domain: give each device its own name"#
            ),
            format!(r#"{gpus}[2].name: "a b" cannot be a libvirt alias: use letters, digits and -_. only"#),
            format!("{gpus}[2].tag: has no effect on a device of a claim"),
            format!(r#"{gpus}[3].name: "" cannot be a libvirt alias: use letters, digits and -_. only"#),
        ]
    );
}

/// Warnings are for headers of HTTP: the API server cuts them at 256 bytes.
#[test]
fn a_warning_is_short() {
    let name = "n".repeat(63);
    let field = "spec.template.spec.domain.devices.hostDevices[100].name".to_owned();
    let warning = Warning::RepeatedDeviceName { field, name };
    assert!(warning.to_string().len() < 256);
}
