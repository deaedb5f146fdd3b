//! The suites: which cases there are, and how both sides answer them.

pub mod admission;
pub mod devices;
pub mod gates;
pub mod metadata;
pub mod numa;
pub mod render;

use std::fs;

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::repository;

/// All suites.
pub const SUITES: &[Suite] = &[
    gates::GATES,
    admission::RULES,
    admission::LIVE,
    admission::UNMUTATED,
    admission::VIRTUAL_MACHINE,
    render::RENDER,
    metadata::RESOLUTION,
    metadata::PCI_TEXT,
    devices::DRA,
    devices::DOMAIN,
    devices::POOL,
    devices::NUMA,
];

/// Suites in which ours differ from KubeVirt's in both behaviours.
pub const UNLIKE: &[Suite] = &[metadata::PATTERNS, devices::UNDEFAULTED];

/// The cases of a file in `crates/kubevirt/testdata/cases`, by their ids.
fn file(name: &str) -> Vec<(String, Value)> {
    let path = repository("crates/kubevirt/testdata/cases").join(format!("{name}.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    cases.into_iter().map(|case| (case["id"].as_str().unwrap().to_owned(), case)).collect()
}

/// `spec.configuration` of the KubeVirt object of a case: given as such, or as lists of gates and permitted devices.
fn configuration(case: &Value) -> Value {
    if let Some(configuration) = case.get("configuration") {
        return configuration.clone();
    }
    let gates = |list: &str| case["gates"].get(list).cloned().unwrap_or_else(|| json!([]));
    let mut configuration = json!({"developerConfiguration": {"featureGates": gates("enabled"), "disabledFeatureGates": gates("disabled")}});
    if let Some(permitted) = case.get("permitted") {
        configuration["permittedHostDevices"] = permitted.clone();
    }
    configuration
}

/// The KubeVirt object of a case.
fn kubevirt(case: &Value) -> drakkar_kubevirt::vmi::KubeVirt {
    serde_json::from_value(json!({"spec": {"configuration": configuration(case)}})).unwrap()
}

/// The VMI of a case.
fn vmi(case: &Value) -> drakkar_kubevirt::vmi::VirtualMachineInstance {
    serde_json::from_value(case["vmi"].clone()).unwrap()
}

/// An outcome without a value. Error texts are not compared.
fn failed<E>(_: E) -> Value {
    json!({"error": true})
}

/// A VMI with this specification.
pub fn new_vmi(spec: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": spec,
    })
}
