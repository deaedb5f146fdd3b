//! Host devices: from claims, device plugins and networks to the elements of the domain, compared with all attributes.

use drakkar_kubevirt::device_plugin::{AddressPool, Environment, ResourceKind};
use drakkar_kubevirt::hostdev::{HostDev, HostDevError, Options, dra_gpus, dra_host_devices, host_devices};
use drakkar_kubevirt::placement::HostTopology;
use drakkar_kubevirt::placement::numa::{NumaOptions, place};
use drakkar_kubevirt::xml::{Form, edit, write, write_controllers};
use serde_json::{Value, json};

use super::metadata::resolver;
use super::{failed, file, vmi};
use crate::suite::Suite;
use crate::xml::{children, elements};

/// The host devices of DRA GPUs and of DRA host devices.
pub const DRA: Suite = Suite {
    name: "dra-devices",
    full: false,
    cases: || file("hostdev").into_iter().filter(|(id, _)| id != UNDEFAULTED_CASE).collect(),
    question: |case| json!({"kind": "dra-devices", "vmi": case["vmi"]}),
    ours: |case, root, behaviour| {
        let spec = vmi(case).spec;
        json!({
            "hostDevices": comparable(dra_host_devices(&spec, &resolver(root, behaviour))),
            "gpus": comparable(dra_gpus(&spec, &resolver(root, behaviour))),
        })
    },
    theirs: |answer| {
        let outcome = |list: &str| match answer["answer"][list]["value"].as_str() {
            Some(xml) => children(xml),
            None => failed(()),
        };
        json!({"hostDevices": outcome("hostDevices"), "gpus": outcome("gpus")})
    },
};

/// A case that needs the defaults of the mutating webhook: KubeVirt follows a nil pointer without them. The suite of domains
/// has it too, with the defaults.
pub const UNDEFAULTED: Suite = Suite {
    name: "undefaulted",
    cases: || file("hostdev").into_iter().filter(|(id, _)| id == UNDEFAULTED_CASE).collect(),
    ..DRA
};
const UNDEFAULTED_CASE: &str = "X10";

/// All host devices of a domain, with the defaults of the mutating webhook.
pub const DOMAIN: Suite = Suite {
    name: "domain",
    full: true,
    cases: || {
        let environment = file("environment").into_iter().filter(|(_, case)| case.get("vmi").is_some());
        file("hostdev").into_iter().chain(environment).collect()
    },
    question: |case| {
        let mut vmi = case["vmi"].clone();
        let devices = &mut vmi["spec"]["domain"]["devices"];
        // Else the webhook adds a pod network and its interface.
        devices["autoattachPodInterface"] = false.into();
        json!({"kind": "domain", "vmi": vmi, "environment": case["env"]})
    },
    ours: |case, root, behaviour| {
        comparable(host_devices(&vmi(case), &resolver(root, behaviour), &environment(case), &Options::default()))
    },
    theirs: |answer| answer["answer"].as_str().map_or_else(|| failed(()), children),
};

/// Addresses that device plugins put into the environment.
pub const POOL: Suite = Suite {
    name: "address-pool",
    full: true,
    cases: || file("environment").into_iter().filter(|(_, case)| case.get("pops").is_some()).collect(),
    question: |case| {
        assert_eq!(case["kind"], "pci");
        json!({
            "kind": "pool",
            "prefix": "PCI_RESOURCE",
            "environment": case["env"],
            "resources": case["resources"],
            "pops": pops(case),
        })
    },
    ours: |case, _, _| {
        let resources: Vec<&str> = case["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let mut pool = AddressPool::load(ResourceKind::Pci, resources, &environment(case));
        pops(case).iter().map(|resource| pool.pop(resource).map_or_else(failed, Value::from)).collect()
    },
    theirs: |answer| {
        let outcome = |outcome: &Value| outcome.get("value").cloned().unwrap_or_else(|| failed(()));
        answer["answer"].as_array().unwrap().iter().map(outcome).collect()
    },
};

/// Placement by NUMA node: the controllers that it adds, and the host devices of a domain document.
pub const NUMA: Suite = Suite {
    name: "numa",
    full: true,
    cases: super::numa::cases,
    question: |case| json!({"kind": "numa", "domain": case["domain"], "strict": case["strict"]}),
    ours: |case, root, behaviour| {
        let document = case["domain"].as_str().unwrap();
        let existing = edit::host_devices(document).unwrap();
        let mut devices: Vec<HostDev> = existing.into_iter().map(|existing| existing.device).collect();
        let options = NumaOptions::new(case["strict"] == true, behaviour);
        let host = HostTopology::new(&root.join("sys"));
        let placed = place(&mut devices, &edit::topology(document).unwrap(), &host, options);
        placed.map_or_else(failed, |placed| {
            let controllers = write_controllers(&placed.controllers, Form::Kubevirt);
            elements(&format!("{controllers}{}", write(&devices, Form::Kubevirt)))
        })
    },
    theirs: |answer| answer["answer"].as_str().map_or_else(|| failed(()), children),
};

fn comparable(devices: Result<Vec<HostDev>, HostDevError>) -> Value {
    devices.map_or_else(failed, |devices| elements(&write(&devices, Form::Kubevirt)))
}

fn environment(case: &Value) -> Environment {
    let variables = case.get("env").and_then(Value::as_object).into_iter().flatten();
    variables.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect()
}

fn pops(case: &Value) -> Vec<&str> {
    case["pops"].as_array().unwrap().iter().map(|pop| pop["resource"].as_str().unwrap()).collect()
}
