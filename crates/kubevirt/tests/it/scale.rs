//! A thousand virtual machines with eight devices each, from YAML to host devices.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use drakkar_kubevirt::admission::{as_remarshalled, validate, warnings};
use drakkar_kubevirt::hostdev::{Options, host_devices};
use drakkar_kubevirt::render::render;
use drakkar_kubevirt::resolve::Resolver;
use drakkar_kubevirt::vmi::Workload;
use drakkar_kubevirt::{Behaviour, FeatureGates};

use crate::tree::released_tree;

const MACHINES: usize = 1_000;
const DEVICES: usize = 8;
/// Several machines read the same files, since writing them takes longer than all the rest.
const CLAIMS: usize = 100;

fn yaml(machine: usize) -> String {
    let claim = machine % CLAIMS;
    let mut yaml = format!(
        "kind: VirtualMachineInstance\nmetadata: {{name: vm-{machine}, namespace: lab}}\nspec:\n  resourceClaims:\n  \
         - {{name: gpus, resourceClaimName: gpus-{claim}}}\n  domain:\n    devices:\n      gpus:\n"
    );
    for device in 0..DEVICES {
        writeln!(yaml, "      - {{name: gpu-{device}, claimName: gpus, requestName: r{device}}}").unwrap();
    }
    yaml
}

fn file(claim: usize, device: usize) -> (String, Option<String>) {
    let address = format!("{claim:04x}:{device:02x}:00.0");
    let content = format!(
        r#"{{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "metadata": {{"name": "gpus-{claim}"}},
            "requests": [{{"name": "r{device}", "devices": [{{"driver": "gpu.example", "pool": "p", "name": "d{device}",
              "attributes": {{"resource.kubernetes.io/pciBusID": {{"string": "{address}"}}}}}}]}}]}}"#
    );
    (format!("resourceclaims/gpus-{claim}/r{device}/gpu.example-metadata.json"), Some(content))
}

#[test]
fn a_thousand_machines_with_eight_devices_each() {
    let files: BTreeMap<_, _> =
        (0..CLAIMS).flat_map(|claim| (0..DEVICES).map(move |device| file(claim, device))).collect();
    let root = released_tree(&files);
    let resolver = Resolver::with_root(root.path()).unwrap();
    let gates = FeatureGates::default();
    let mut sources = HashSet::new();
    for machine in 0..MACHINES {
        let workload = as_remarshalled(Workload::from_yaml(&yaml(machine)).unwrap());
        assert_eq!(validate(&workload, &gates, Behaviour::Extended), []);
        assert_eq!(warnings(&workload), []);
        let pod = render(workload.vmi(), &gates, None).unwrap();
        assert_eq!((pod.resource_claims.len(), pod.claims.len()), (1, DEVICES));
        let environment = [("", "")].into_iter().collect();
        let devices = host_devices(workload.vmi(), &resolver, &environment, &Options::default()).unwrap();
        sources.extend(devices.into_iter().map(|device| format!("{:?}", device.source)));
    }
    assert_eq!(sources.len(), CLAIMS * DEVICES, "every device is found");
}
