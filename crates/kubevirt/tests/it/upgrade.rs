//! Upgrade and rollback: what happens to virtual machines when gates, KubeVirt or a driver change under them.

use std::collections::BTreeMap;

use drakkar_kubevirt::admission::validate;
use drakkar_kubevirt::hostdev::{Options, host_devices};
use drakkar_kubevirt::render::{LauncherResources, render};
use drakkar_kubevirt::resolve::{Layout, Resolver};
use drakkar_kubevirt::vmi::{PermittedHostDevices, Workload};
use drakkar_kubevirt::{Behaviour, FeatureGates, Gate};
use tempfile::TempDir;

use crate::tree::released_tree;

const VMI: &str = "
kind: VirtualMachineInstance
spec:
  resourceClaims:
  - {name: dyn, resourceClaimTemplateName: pgpu-tmpl}
  domain: {devices: {gpus: [{name: first, claimName: dyn, requestName: t-req}]}}
";

const FILE: &str = "resourceclaimtemplates/dyn/t-req/gpu.example-metadata.json";

fn vmi() -> Workload {
    Workload::from_yaml(VMI).unwrap()
}

fn causes(gates: &FeatureGates) -> usize {
    validate(&vmi(), gates, Behaviour::Extended).len()
}

fn rendered(gates: &FeatureGates) -> LauncherResources {
    render(vmi().vmi(), gates, None).unwrap()
}

fn document(version: &str) -> String {
    let attributes = r#"{"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}}"#;
    format!(
        r#"{{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/{version}", "metadata": {{"name": "x"}},
            "requests": [{{"name": "t-req", "devices": [
              {{"driver": "gpu.example", "pool": "p", "name": "d", "attributes": {attributes}}}]}}]}}"#
    )
}

fn files(content: &str) -> TempDir {
    released_tree(&BTreeMap::from([(FILE.to_owned(), Some(content.to_owned()))]))
}

fn launched(root: &TempDir, layout: Layout, behaviour: Behaviour) -> Result<usize, String> {
    let resolver = Resolver::with_root(root.path()).unwrap().layout(layout).with_behaviour(behaviour);
    let devices = host_devices(vmi().vmi(), &resolver, &[("", "")].into_iter().collect(), &Options::default());
    devices.map(|devices| devices.len()).map_err(|error| error.to_string())
}

/// The claims stay with the pod, the container gets none, and the launcher, which knows no gates, finds no files.
#[test]
fn a_gate_turned_off_takes_the_devices_from_new_pods() {
    let (on, off) = (FeatureGates::default(), FeatureGates::default().with(Gate::GpusWithDra, false));
    assert_eq!((causes(&on), causes(&off)), (0, 1), "new VMIs are refused");
    let (before, after) = (rendered(&on), rendered(&off));
    assert_eq!(before.resource_claims, after.resource_claims);
    assert_eq!((before.claims.len(), after.claims.len()), (1, 0));
    let error = launched(&released_tree(&BTreeMap::new()), Layout::Released, Behaviour::Strict).unwrap_err();
    assert!(error.contains("resourceclaimtemplates/dyn/t-req/*-metadata.json"), "{error}");
}

#[test]
fn a_gate_turned_off_with_permitted_devices_ends_rendering() {
    let off = FeatureGates::default().with(Gate::GpusWithDra, false);
    let permitted = PermittedHostDevices::default();
    let error = render(vmi().vmi(), &off, Some(&permitted)).unwrap_err().to_string();
    assert_eq!(error, "GPU  is not permitted in permittedHostDevices configuration");
    render(vmi().vmi(), &FeatureGates::default(), Some(&permitted)).unwrap();
}

#[test]
fn a_gate_turned_on_again_gives_the_same_pod() {
    let gates = FeatureGates::default();
    let again = gates.with(Gate::GpusWithDra, false).with(Gate::GpusWithDra, true);
    assert_eq!(causes(&again), 0);
    assert_eq!(rendered(&again), rendered(&gates));
}

/// What runs keeps running: the launcher reads files, and no gate decides about them.
#[test]
fn a_running_machine_does_not_see_gates() {
    assert_eq!(launched(&files(&document("v1alpha1")), Layout::Released, Behaviour::Strict), Ok(1));
}

/// Claims alone need no gate, so they survive a rollback of gates.
#[test]
fn claims_without_devices_are_admitted_and_rendered_with_all_gates_off() {
    let off = Gate::ALL.into_iter().fold(FeatureGates::default(), |gates, gate| gates.with(gate, false));
    let mut workload = vmi();
    workload.vmi_mut().spec.domain.devices.gpus.clear();
    assert_eq!(validate(&workload, &off, Behaviour::Strict), []);
    assert_eq!(render(workload.vmi(), &off, None).unwrap().resource_claims.len(), 1);
}

/// KubeVirt 1.8.0 to 1.8.2 look below `/var/run/dra-device-attributes`, where current drivers write nothing.
#[test]
fn an_older_launcher_does_not_find_the_files_of_a_current_driver() {
    let root = files(&document("v1alpha1"));
    let error = launched(&root, Layout::Kep, Behaviour::Strict).unwrap_err();
    assert!(error.contains("/var/run/dra-device-attributes/"), "{error}");
}

/// A driver without device metadata: the pod runs, the launcher fails.
#[test]
fn a_driver_without_metadata_fails_in_the_launcher() {
    assert_eq!(rendered(&FeatureGates::default()).claims.len(), 1);
    launched(&released_tree(&BTreeMap::new()), Layout::Released, Behaviour::Extended).unwrap_err();
}

/// A newer version is fine as long as v1alpha1 is there too; alone, only the extended behaviour reads it.
#[test]
fn a_driver_that_writes_a_newer_version() {
    let both = files(&format!("{}\n{}", document("v1beta1"), document("v1alpha1")));
    let newer = files(&document("v1beta1"));
    for behaviour in [Behaviour::Strict, Behaviour::Extended] {
        assert_eq!(launched(&both, Layout::Released, behaviour), Ok(1));
    }
    assert_eq!(launched(&newer, Layout::Released, Behaviour::Extended), Ok(1));
    let error = launched(&newer, Layout::Released, Behaviour::Strict).unwrap_err();
    assert!(error.contains("metadata.resource.k8s.io/v1beta1"), "{error}");
}
