//! Permissions beyond those of the endpoint: allocating claims, reporting device status for a driver, and admin access.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::resource::Resource;
use super::User;
use super::authorize::refusal;
use super::claim::device_id;
use super::field::{Errors, FieldError, Path};
use super::gates::Gates;
use super::names::{self, Wording};
use super::policy::{Policy, Request};
use super::value::{at, entries, flag, get, list, same, text, texts};

/// The user info with the node of the pod that a service account token is bound to.
const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";
/// The label of namespaces that allow admin access.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";

/// Authorizes the changes of a claim's status: allocation and reservations, and the device status of each driver. The verb
/// is that of the request, `update` or `patch`.
pub(crate) fn authorize_claim_status(
    user: &User,
    verb: &str,
    new: &Value,
    old: &Value,
    policy: &Policy,
    gates: &Gates,
) -> Vec<FieldError> {
    if !gates.enabled("DRAResourceClaimGranularStatusAuthorization") {
        return Vec::new();
    }
    let mut errors = Errors::default();
    let namespace = at(new, &["metadata", "namespace"]).and_then(Value::as_str);
    let [new, old] = [new, old].map(|claim| get(claim, "status").unwrap_or(&Value::Null));
    let path = Path::root("status");
    if ["allocation", "reservedFor"].iter().any(|field| !same(get(new, field), get(old, field))) {
        let request = Request { verb, resource: "resourceclaims/binding", namespace: None, name: None };
        if !policy.allows(user, &request) {
            let refusal = refusal(user, Resource::ResourceClaim, &request, "");
            let detail = format!(
                "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {refusal}"
            );
            errors.forbidden(&path.child("allocation"), &detail);
        }
    }
    // Without an allocation the server drops the device status.
    let Some(allocation) = get(new, "allocation").filter(|_| gates.enabled("DRAResourceClaimDeviceStatus")) else {
        return errors.into_vec();
    };
    let mut verbs = vec![format!("arbitrary-node:{verb}")];
    if is_on_node_of(user, allocation) {
        verbs.insert(0, format!("associated-node:{verb}"));
    }
    for driver in changed_drivers(new, old) {
        let requests =
            verbs.iter().map(|verb| Request { verb, resource: "resourceclaims/driver", namespace, name: Some(driver) });
        if requests.clone().any(|request| policy.allows(user, &request)) {
            continue;
        }
        let refusal = requests.take(1).map(|request| refusal(user, Resource::ResourceClaim, &request, ""));
        let detail = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {}",
            verbs.join(" "),
            refusal.collect::<String>()
        );
        errors.forbidden(&path.child("devices"), &detail);
    }
    errors.into_vec()
}

/// Returns the drivers whose device status has changed.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let [new, old] = [new, old].map(|status| list(status, "devices"));
    let is_in = |devices: &[Value], device: &Value| {
        devices.iter().any(|other| device_id(other) == device_id(device) && same(Some(other), Some(device)))
    };
    let changed = new.iter().filter(|device| !is_in(old, device));
    let removed = old.iter().filter(|device| !is_in(new, device));
    changed.chain(removed).map(|device| text(device, "driver")).collect()
}

/// Whether the user is a service account of a pod on the node that the claim is allocated for.
fn is_on_node_of(user: &User, allocation: &Value) -> bool {
    let account = user.name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    let is_account = account.is_some_and(|(namespace, name)| {
        names::label(namespace, Wording::Bytes).is_empty() && names::subdomain(name, Wording::Bytes).is_empty()
    });
    let nodes = user.extra.get(NODE_NAME_EXTRA).map(Vec::as_slice).unwrap_or_default();
    match (is_account, nodes, node_of_allocation(allocation)) {
        (true, [node], Some(allocated)) => node == allocated && names::subdomain(node, Wording::Bytes).is_empty(),
        _ => false,
    }
}

/// Returns the node of an allocation whose node selector is exactly one node name.
fn node_of_allocation(allocation: &Value) -> Option<&str> {
    let [term] = list(get(allocation, "nodeSelector")?, "nodeSelectorTerms") else { return None };
    let ([], [field]) = (list(term, "matchExpressions"), list(term, "matchFields")) else { return None };
    let by_name = text(field, "key") == "metadata.name" && text(field, "operator") == "In";
    match texts(field, "values")[..] {
        [node] if by_name && !node.is_empty() => Some(node),
        _ => None,
    }
}

/// Checks that the namespace allows the admin access of a new claim, template or allocation.
pub(crate) fn admin_access(resource: Resource, new: &Value, old: Option<&Value>, namespace: &Value) -> Vec<FieldError> {
    let labels = at(namespace, &["metadata"]).unwrap_or(&Value::Null);
    if entries(labels, "labels").any(|(key, value)| key == ADMIN_LABEL && value == "true") {
        return Vec::new();
    }
    let results = |claim: &Value| {
        let devices = at(claim, &["status", "allocation", "devices"]).unwrap_or(&Value::Null);
        list(devices, "results").iter().position(|result| flag(result, "adminAccess") == Some(true))
    };
    let requests = |path: &[&str]| {
        let devices = at(new, path).unwrap_or(&Value::Null);
        let asks = |request| get(request, "exactly").and_then(|exactly| flag(exactly, "adminAccess")) == Some(true);
        list(devices, "requests").iter().position(asks)
    };
    // The kube-apiserver reports the path in a claim also for templates.
    let in_spec = |index| Path::root("spec").child("devices").child("requests").index(index);
    let in_status = |index| Path::root("status").child("allocation").child("devices").child("results").index(index);
    let path = match (resource, old) {
        (Resource::ResourceClaim, None) => requests(&["spec", "devices"]).map(in_spec),
        (Resource::ResourceClaimTemplate, None) => requests(&["spec", "spec", "devices"]).map(in_spec),
        (Resource::ResourceClaim, Some(old)) if results(old).is_none() => results(new).map(in_status),
        _ => None,
    };
    let mut errors = Errors::default();
    if let Some(path) = path {
        let detail =
            format!("admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace");
        errors.forbidden(&path.child("adminAccess"), &detail);
    }
    errors.into_vec()
}
