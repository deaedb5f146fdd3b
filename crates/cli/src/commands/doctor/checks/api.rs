//! The API server: connection, clock, versions, and the objects that a driver needs there.

use serde_json::Value;

use crate::commands::doctor::finding::{Finding, count};
use crate::commands::doctor::kind::Kind;
use crate::node_facts::Facts;
use crate::node_facts::api::{Answer, Api, ApiFacts, ApiFailure};

/// The difference between clocks that is a problem: certificates and tokens are then refused, or accepted too long.
const MAX_SKEW_SECONDS: i64 = 60;
/// The oldest minor release of Kubernetes 1 with DRA as drivers use it.
const OLDEST_MINOR: u32 = 32;

pub(super) fn connection(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.api {
        Api::Off(reason) => Finding::skipped(format!("the API server is not asked: {reason}")),
        Api::Failed(ApiFailure::Config(message)) => {
            Finding::problem(Kind::ApiConfigInvalid, message, "give a kubeconfig that kubectl can use: --kubeconfig")
        }
        Api::Failed(ApiFailure::Unreachable(message)) => Finding::problem(
            Kind::ApiUnreachable,
            message,
            "check the address in the kubeconfig, and the network: kubectl get --raw /readyz",
        ),
        Api::Failed(ApiFailure::Unauthorized(message)) => Finding::problem(
            Kind::ApiUnauthorized,
            message,
            "renew the token or certificate; in a pod, check its service account: kubectl auth whoami",
        ),
        Api::Up(api) => Finding::ok(format!("{} answers", api.server)),
    }]
}

pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    let Some(ahead) = facts.api.facts().and_then(|api| api.ahead) else { return Vec::new() };
    if ahead.abs() <= MAX_SKEW_SECONDS {
        return vec![Finding::ok("the clocks of this node and the API server agree")];
    }
    let relation = if ahead > 0 { "behind" } else { "ahead of" };
    vec![Finding::problem(
        Kind::ClockSkew,
        format!("the clock here is {} s {relation} that of the API server", ahead.abs()),
        "check the time service of both: timedatectl status",
    )]
}

pub(super) fn versions(facts: &Facts) -> Vec<Finding> {
    let Some(api) = facts.api.facts() else { return Vec::new() };
    let mut findings = vec![match &api.dra_versions {
        Answer::Got(versions) if versions.is_empty() => Finding::problem(
            Kind::DraNotServed,
            "the API server does not serve resource.k8s.io",
            "use Kubernetes 1.34 or newer, or enable the feature gate DynamicResourceAllocation and the API group",
        ),
        Answer::Got(versions) => Finding::ok(format!("resource.k8s.io is served: {}", versions.join(", "))),
        Answer::Forbidden(message) | Answer::Failed(message) => Finding::skipped(format!("resource.k8s.io: {message}")),
    }];
    let kubelet = node_of(api).and_then(|node| node.pointer("/status/nodeInfo/kubeletVersion")?.as_str());
    let known = [("the API server", api.version.as_deref()), ("the kubelet", kubelet)];
    for (who, version) in known.into_iter().filter_map(|(who, version)| Some((who, version?))) {
        findings.push(match minor(version) {
            Some(minor) if minor < OLDEST_MINOR => Finding::problem(
                Kind::VersionTooOld,
                format!("{who} is {version}"),
                format!("update it: drivers on this framework are tested with 1.{OLDEST_MINOR} and newer"),
            ),
            _ => Finding::ok(format!("{who} is {version}")),
        });
    }
    if api.kubelet_gates.got().is_some_and(|gates| gates.get("DynamicResourceAllocation") == Some(&false)) {
        findings.push(Finding::problem(
            Kind::FeatureGateOff,
            "the kubelet's feature gate DynamicResourceAllocation is off",
            "remove it from featureGates in the kubelet's configuration, then restart the kubelet",
        ));
    }
    findings
}

fn node_of(api: &ApiFacts) -> Option<&Value> {
    api.node.got()?.as_ref()
}

/// Returns the minor release of `v1.37.1`.
fn minor(version: &str) -> Option<u32> {
    version.trim_start_matches('v').strip_prefix("1.")?.split('.').next()?.parse().ok()
}

pub(super) fn node(facts: &Facts) -> Vec<Finding> {
    let Some(api) = facts.api.facts() else { return Vec::new() };
    let name = &facts.node_name;
    vec![match &api.node {
        Answer::Got(Some(node)) => match not_ready(node) {
            None => Finding::ok(format!("this is node {name}")),
            Some(why) => Finding::problem(
                Kind::KubeletUnhealthy,
                format!("node {name} is not ready: {why}"),
                "journalctl -u kubelet; kubectl describe node has all conditions",
            ),
        },
        Answer::Got(None) => Finding::problem(
            Kind::NodeNotFound,
            format!("there is no node {name:?}"),
            "give --node-name as in kubectl get nodes; in a pod, NODE_NAME from spec.nodeName",
        ),
        Answer::Forbidden(message) | Answer::Failed(message) => Finding::skipped(format!("node {name}: {message}")),
    }]
}

/// Returns why a node is not ready, as its kubelet says, or the controller manager of a kubelet that says nothing any more.
fn not_ready(node: &Value) -> Option<String> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let text = |name: &str| ready[name].as_str().unwrap_or_default();
    (text("status") != "True").then(|| format!("{}: {}", text("reason"), text("message")))
}

pub(super) fn device_classes(facts: &Facts) -> Vec<Finding> {
    let Some(api) = facts.api.facts() else { return Vec::new() };
    let classes = match &api.classes {
        Answer::Got(classes) => classes,
        // A driver needs no permission for classes.
        Answer::Forbidden(message) | Answer::Failed(message) => {
            return vec![Finding::skipped(format!("device classes: {message}"))];
        }
    };
    let of_driver = |driver: &str| -> Vec<String> {
        let names = |class: &&Value| {
            let selectors = class.pointer("/spec/selectors").and_then(Value::as_array).into_iter().flatten();
            let mut expressions = selectors.filter_map(|selector| selector.pointer("/cel/expression")?.as_str());
            expressions.any(|expression| expression.contains(driver))
        };
        let name = |class: &Value| Some(class.pointer("/metadata/name")?.as_str()?.to_owned());
        classes.iter().filter(names).filter_map(name).collect()
    };
    let drivers = facts.node.drivers.iter().map(|driver| driver.name.as_str());
    drivers
        .map(|driver| match of_driver(driver) {
            found if found.is_empty() => Finding::problem(
                Kind::DeviceClassMissing,
                format!("no DeviceClass names {driver} in a selector, so claims can hardly ask for its devices"),
                format!("create one with the selector device.driver == \"{driver}\": the driver's manifests have it"),
            ),
            found => Finding::ok(format!("{driver}: DeviceClass {}", found.join(", "))),
        })
        .collect()
}

pub(super) fn resource_slices(facts: &Facts) -> Vec<Finding> {
    let Some(api) = facts.api.facts() else { return Vec::new() };
    let slices = match &api.slices {
        Answer::Got(slices) => slices,
        Answer::Forbidden(message) => {
            return vec![Finding::problem(
                Kind::ApiForbidden,
                format!("list resourceslices: {message}"),
                "a driver needs this permission: see the RBAC rules of its manifests",
            )];
        }
        Answer::Failed(message) => return vec![Finding::skipped(format!("resource slices: {message}"))],
    };
    let is_here = |slice: &&Value| {
        let spec = &slice["spec"];
        // A slice for other nodes is for this one too if it is for all, or selects by labels.
        spec["nodeName"] == facts.node_name.as_str() || spec.get("nodeName").is_none()
    };
    let drivers = facts.node.drivers.iter().map(|driver| driver.name.as_str());
    drivers
        .map(|driver| {
            let here: Vec<&Value> =
                slices.iter().filter(|slice| slice["spec"]["driver"] == driver).filter(is_here).collect();
            let devices = here.iter().filter_map(|slice| Some(slice.pointer("/spec/devices")?.as_array()?.len()));
            let devices: usize = devices.sum();
            if here.is_empty() {
                return Finding::problem(
                    Kind::ResourceSliceMissing,
                    format!(
                        "{driver} has no ResourceSlice for node {}, so no pod with its devices is scheduled here",
                        facts.node_name
                    ),
                    "look at the driver's log for `publishing failed`, and at its /readyz",
                );
            }
            let (slices, devices) = (count(here.len(), "ResourceSlice"), count(devices, "device"));
            Finding::ok(format!("{driver}: {slices} with {devices} for this node"))
        })
        .collect()
}
