//! Defaults of missing fields, and the canonical form of quantities.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;
use super::quantity as quantities;
use super::schema::seconds;
use super::value::{at_mut, default_to, get, list, list_mut, remove, text};

pub(super) fn apply(resource: Resource, object: &mut Value) {
    match resource {
        Resource::ResourceSlice => slice(object),
        Resource::ResourceClaim => claim(object),
        Resource::ResourceClaimTemplate => {
            if let Some(spec) = at_mut(object, &["spec", "spec"]) {
                requests(spec);
            }
        }
        Resource::DeviceClass => {}
        Resource::Node => node(object),
        Resource::Pod => pod(object),
        Resource::Service => service(object),
        Resource::Namespace | Resource::Event | Resource::ConfigMap | Resource::Lease => {}
    }
    if let (false, Some(metadata)) = (resource.namespaced(), object.get_mut("metadata")) {
        remove(metadata, &["namespace"]);
    }
}

fn service(object: &mut Value) {
    if let Some(spec) = at_mut(object, &["spec"]) {
        default_to(spec, "type", "ClusterIP");
        default_to(spec, "sessionAffinity", "None");
        for port in list_mut(spec, &["ports"]) {
            default_to(port, "protocol", "TCP");
            let number = get(port, "port").cloned().unwrap_or_default();
            default_to(port, "targetPort", number);
        }
    }
}

fn slice(object: &mut Value) {
    let now = Timestamp::now();
    for device in list_mut(object, &["spec", "devices"]) {
        for capacity in values_mut(device, "capacity") {
            quantity(capacity, "value", true);
            if let Some(policy) = capacity.get_mut("requestPolicy") {
                quantity(policy, "default", false);
                for value in list_mut(policy, &["validValues"]) {
                    canonical(value);
                }
                if let Some(range) = policy.get_mut("validRange") {
                    for field in ["min", "max", "step"] {
                        quantity(range, field, false);
                    }
                }
            }
        }
        for consumption in list_mut(device, &["consumesCounters"]) {
            counters(consumption);
        }
        for taint in list_mut(device, &["taints"]) {
            default_to(taint, "timeAdded", seconds(now));
        }
        for resource in values_mut(device, "nodeAllocatableResources") {
            for (part, fields) in
                [("mapping", ["capacityMultiplier", "deviceMultiplier"]), ("overhead", ["perPod", "perContainer"])]
            {
                if let Some(part) = resource.get_mut(part) {
                    fields.iter().for_each(|field| quantity(part, field, false));
                }
            }
        }
    }
    for set in list_mut(object, &["spec", "sharedCounters"]) {
        counters(set);
    }
}

fn counters(set: &mut Value) {
    for counter in values_mut(set, "counters") {
        quantity(counter, "value", true);
    }
}

fn claim(object: &mut Value) {
    if let Some(spec) = object.get_mut("spec") {
        requests(spec);
    }
    for result in list_mut(object, &["status", "allocation", "devices", "results"]) {
        tolerations(result);
        values_mut(result, "consumedCapacity").for_each(canonical);
    }
}

fn requests(spec: &mut Value) {
    for request in list_mut(spec, &["devices", "requests"]) {
        if let Some(exactly) = request.get_mut("exactly") {
            one_request(exactly);
        }
        list_mut(request, &["firstAvailable"]).iter_mut().for_each(one_request);
    }
}

fn one_request(request: &mut Value) {
    default_to(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        default_to(request, "count", 1);
    }
    tolerations(request);
    if let Some(capacity) = request.get_mut("capacity") {
        values_mut(capacity, "requests").for_each(canonical);
    }
}

fn tolerations(object: &mut Value) {
    for toleration in list_mut(object, &["tolerations"]) {
        default_to(toleration, "operator", "Equal");
    }
}

fn node(node: &mut Value) {
    let Some(status) = node.get_mut("status") else { return };
    for field in ["capacity", "allocatable"] {
        values_mut(status, field).for_each(canonical);
    }
    if let (Some(capacity), None) = (get(status, "capacity").cloned(), get(status, "allocatable")) {
        status["allocatable"] = capacity;
    }
}

/// Applies the defaults of the server and of its admission plugins.
fn pod(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "schedulerName", "default-scheduler");
    for (field, default) in [
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("priority", json!(0)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        if get(spec, field).is_none() {
            spec[field] = default;
        }
    }
    pod_tolerations(spec);
    for field in ["containers", "initContainers"] {
        list_mut(spec, &[field]).iter_mut().filter(|container| container.is_object()).for_each(container);
    }
}

/// Adds the tolerations that keep a pod for five minutes on a node that is not ready or unreachable.
fn pod_tolerations(spec: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerates = |toleration: &Value| {
            ["", key].contains(&text(toleration, "key")) && ["", "NoExecute"].contains(&text(toleration, "effect"))
        };
        if list(spec, "tolerations").iter().any(tolerates) {
            continue;
        }
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
            Some(tolerations) => tolerations.push(toleration),
            None => spec["tolerations"] = json!([toleration]),
        }
    }
}

fn container(container: &mut Value) {
    let image = text(container, "image");
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let pinned = image.contains('@') || tag.is_some_and(|tag| tag != "latest");
    default_to(container, "imagePullPolicy", if pinned { "IfNotPresent" } else { "Always" });
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    let Some(resources) = container.get_mut("resources") else { return };
    for field in ["limits", "requests"] {
        values_mut(resources, field).for_each(canonical);
    }
    if let Some(Value::Object(limits)) = resources.get("limits").cloned() {
        if get(resources, "requests").is_none() {
            resources["requests"] = json!({});
        }
        for (name, amount) in limits {
            default_to(&mut resources["requests"], &name, amount);
        }
    }
}

fn values_mut<'a>(object: &'a mut Value, map: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(map).and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut())
}

/// Brings a quantity into its canonical form. A required one that is missing becomes 0.
fn quantity(object: &mut Value, field: &str, required: bool) {
    match object.get_mut(field) {
        Some(value) if !value.is_null() => canonical(value),
        _ if required => default_to(object, field, "0"),
        _ => {}
    }
}

fn canonical(value: &mut Value) {
    // Validation reports malformed quantities later.
    if let Ok(quantity) = quantities::read(Some(value)) {
        *value = quantity.to_string().into();
    }
}
