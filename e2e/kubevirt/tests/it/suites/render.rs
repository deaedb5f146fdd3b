//! The launcher's pod: claims, device resources, memory for devices.

use drakkar_kubevirt::FeatureGates;
use drakkar_kubevirt::render::{ContainerClaim, NETWORK_INFO_VOLUME, render};
use serde_json::{Map, Value, json};

use super::{configuration, file, kubevirt, vmi};
use crate::suite::Suite;

/// Resources that every launcher pod has, or whose amount the controller computes from more than devices.
const OTHERS: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "devices.kubevirt.io/kvm",
    "devices.kubevirt.io/tun",
    "devices.kubevirt.io/vhost-net",
];

pub const RENDER: Suite = Suite {
    name: "render",
    full: true,
    cases: || file("render"),
    question: |case| json!({"kind": "render", "configuration": configuration(case), "vmi": case["vmi"]}),
    ours: |case, _, _| {
        let kubevirt = kubevirt(case);
        let permitted = kubevirt.spec.configuration.permitted_host_devices.as_ref();
        match render(&vmi(case), &FeatureGates::from_kubevirt(&kubevirt), permitted) {
            Err(error) => json!({"error": error.to_string()}),
            Ok(pod) => {
                let json = serde_json::to_value(&pod).unwrap();
                json!({
                    "resourceClaims": list(&json["resourceClaims"]),
                    "claims": pod.claims.iter().map(claim).collect::<Vec<_>>(),
                    "limits": devices(&json["limits"]),
                    "requests": devices(&json["requests"]),
                    "memory": pod.memory_overhead,
                    "network_info": pod.network_info,
                    "others": {},
                })
            }
        }
    },
    theirs: |answer| {
        let pod = match answer.get("answer") {
            None => return json!({"error": answer["error"]}),
            Some(pod) => pod,
        };
        json!({
            "resourceClaims": list(&pod["resourceClaims"]),
            "claims": list(&pod["claims"]),
            "limits": devices(&pod["limits"]),
            "requests": devices(&pod["requests"]),
            "memory": pod["deviceOverhead"],
            "network_info": pod["volumes"].as_array().unwrap().contains(&NETWORK_INFO_VOLUME.into()),
            "others": pod["others"],
        })
    },
};

/// A list; an absent one is empty.
fn list(value: &Value) -> Value {
    if value.is_null() { json!([]) } else { value.clone() }
}

/// A claim of the container, as Kubernetes writes it: without an empty request. Only VMIs that no webhook admits have one.
fn claim(claim: &ContainerClaim) -> Value {
    let mut entry = serde_json::to_value(claim).unwrap();
    if claim.request.is_empty() {
        entry.as_object_mut().unwrap().remove("request");
    }
    entry
}

/// The resources of devices.
fn devices(resources: &Value) -> Value {
    let devices = resources.as_object().into_iter().flatten().filter(|(name, _)| !OTHERS.contains(&name.as_str()));
    Value::Object(devices.map(|(name, amount)| (name.clone(), amount.clone())).collect::<Map<_, _>>())
}
