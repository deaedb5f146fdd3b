use rstest::rstest;
use serde_json::json;

use super::*;

fn request(claim: &str, request: &str) -> Option<ClaimRequest> {
    Some(ClaimRequest { claim_name: claim.to_owned(), request_name: request.to_owned() })
}

/// A claim request is there as soon as one of its keys is, whatever the value.
#[rstest]
#[case::name_only(json!({"name": "g"}), None, false, false)]
#[case::device_plugin(json!({"name": "g", "deviceName": "x/y"}), None, false, true)]
#[case::claim(json!({"name": "g", "claimName": "c", "requestName": "r"}), request("c", "r"), true, false)]
#[case::empty_claim_name(json!({"name": "g", "claimName": ""}), request("", ""), true, false)]
#[case::null_claim_name(json!({"name": "g", "claimName": null}), request("", ""), true, false)]
#[case::null_request_name(json!({"name": "g", "requestName": null}), request("", ""), true, false)]
#[case::request_name_only(json!({"name": "g", "requestName": "r"}), request("", "r"), true, false)]
#[case::both_sources(
    json!({"name": "g", "deviceName": "x/y", "claimName": "c", "requestName": "r"}), request("c", "r"), false, false
)]
fn presence_of_a_claim_request(
    #[case] entry: serde_json::Value,
    #[case] expected: Option<ClaimRequest>,
    #[case] is_dra: bool,
    #[case] is_device_plugin: bool,
) {
    let text = entry.to_string();
    let gpu: Gpu = serde_json::from_str(&text).unwrap();
    let host_device: HostDevice = serde_json::from_str(&text).unwrap();
    assert_eq!((&gpu.claim_request, &host_device.claim_request), (&expected, &expected));
    assert_eq!((gpu.is_dra(), host_device.is_dra()), (is_dra, is_dra));
    assert_eq!((gpu.is_device_plugin(), host_device.is_device_plugin()), (is_device_plugin, is_device_plugin));
    assert_eq!(serde_saphyr::from_str::<Gpu>(&text).unwrap(), gpu, "YAML is read alike");
}

#[rstest]
#[case::yaml_null("{name: g, claimName: ~}")]
#[case::yaml_nothing("name: g\nclaimName:\n")]
fn an_empty_value_in_yaml_is_a_present_key(#[case] text: &str) {
    let gpu: Gpu = serde_saphyr::from_str(text).unwrap();
    assert_eq!(gpu.claim_request, request("", ""));
}

#[test]
fn a_list_of_host_devices_is_absent_null_or_empty() {
    let list = |text| serde_json::from_str::<Devices>(text).unwrap().host_devices;
    assert_eq!(list("{}"), None);
    assert_eq!(list(r#"{"hostDevices": null}"#), None);
    assert_eq!(list(r#"{"hostDevices": []}"#), Some(Vec::new()));
}

const VM: &str = "
spec:
  runStrategy: Always
  template:
    metadata:
      creationTimestamp: null
      annotations: {a: b}
    spec:
      architecture: arm64
      resourceClaims: [{name: c, resourceClaimName: ~, resourceClaimTemplateName: t}]
      networks:
      - {name: default, pod: {}}
      - {name: net, resourceClaim: {claimName: c, requestName: vf}}
      - {name: blue, multus: {networkName: blue}}
      domain:
        cpu: {cores: 2, dedicatedCpuPlacement: true, numa: {guestMappingPassthrough: {}}}
        memory: {guest: 1Gi, hugepages: {pageSize: 2Mi}}
        resources: {requests: {memory: 1Gi, cpu: 2, example.com/a: 1.5}}
        devices:
          gpus: [{name: v, deviceName: x/y, virtualGPUOptions: {display: {ramFB: {enabled: false}}}}]
          interfaces:
          - {name: default, masquerade: {}}
          - {name: net, sriov: {}, bootOrder: 1, pciAddress: '0000:20:00.0'}
          - {name: blue, binding: {name: plugin}}
          managedClaim: unknown
metadata: {name: vm, namespace: lab, uid: u}
kind: VirtualMachine
apiVersion: kubevirt.io/v1
";

#[test]
fn a_virtual_machine_in_yaml() {
    let workload = Workload::from_yaml(VM).unwrap();
    assert_eq!((workload.kind(), workload.field_prefix()), ("VirtualMachine", "spec.template.spec"));
    assert_eq!(workload.metadata().uid, "u");
    let VirtualMachineInstance { metadata, spec } = workload.vmi();
    assert_eq!((&*metadata.name, &*metadata.namespace), ("vm", "lab"), "the VMI has the name of its VM");
    assert_eq!(metadata.annotations["a"], "b");
    assert_eq!(spec.architecture, "arm64");
    assert_eq!(spec.resource_claims[0].resource_claim_name, None);
    assert_eq!(spec.resource_claims[0].resource_claim_template_name.as_deref(), Some("t"));
    assert!(spec.networks[0].pod);
    assert_eq!(spec.networks[1].resource_claim, request("c", "vf"));
    assert_eq!(spec.networks[2].multus.as_ref().unwrap().network_name, "blue");
    let cpu = spec.domain.cpu.as_ref().unwrap();
    assert!(cpu.cores == 2 && cpu.dedicated_cpu_placement && cpu.numa.as_ref().unwrap().guest_mapping_passthrough);
    assert_eq!(spec.domain.memory.as_ref().unwrap().hugepages.as_ref().unwrap().page_size, "2Mi");
    let requests = &spec.domain.resources.requests;
    let quantities: Vec<&str> = requests.values().map(|quantity| &*quantity.0).collect();
    assert_eq!(quantities, ["2", "1.5", "1Gi"]);
    let display = spec.domain.devices.gpus[0].display().unwrap();
    assert!(display.is_enabled() && !display.is_ram_fb_enabled());
    let interfaces = &spec.domain.devices.interfaces;
    assert!(interfaces[0].masquerade && interfaces[1].sriov && interfaces[2].binding);
    assert!(interfaces.iter().all(|interface| interface.bindings() == 1));
    assert_eq!((interfaces[1].boot_order, &*interfaces[1].pci_address), (Some(1), "0000:20:00.0"));
}

#[rstest]
#[case::other_kind(r#"{"kind": "Pod", "apiVersion": "v1"}"#, "API group kubevirt.io, found apiVersion \"v1\"")]
#[case::no_kind("{}", "VirtualMachineInstance or VirtualMachine, found kind \"\"")]
#[case::replica_set(
    r#"{"kind": "VirtualMachineInstanceReplicaSet", "apiVersion": "kubevirt.io/v1"}"#,
    "found kind \"VirtualMachineInstanceReplicaSet\""
)]
#[case::wrong_type(
    r#"{"kind": "VirtualMachineInstance", "spec": {"networks": 5}}"#,
    "spec.networks: is the number 5, must be a list"
)]
fn what_is_no_virtual_machine(#[case] text: &str, #[case] part: &str) {
    for error in [Workload::from_json(text).unwrap_err(), Workload::from_yaml(text).unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// The status that KubeVirt 1.6 and 1.7 wrote, and fields that are not there yet, are no obstacle.
#[test]
fn unknown_fields_are_skipped() {
    let text = r#"{"kind": "VirtualMachineInstance",
        "spec": {"resourceClaims": [{"name": "c", "managedClaim": {}}],
                 "domain": {"devices": {"gpus": [{"name": "g", "deviceClassName": "x"}]}, "cpu": {"dra": {}}}},
        "status": {"deviceStatus": {"gpuStatuses": [{"name": "g", "deviceResourceClaimStatus": {}}]}}}"#;
    let workload = Workload::from_json(text).unwrap();
    assert_eq!(workload.vmi().spec.resource_claims[0].name, "c");
}
