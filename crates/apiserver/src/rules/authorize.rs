//! Authorization: RBAC, and the restrictions of nodes.
//!
//! Kubelets are users `system:node:NAME` in the group `system:nodes`. Their permissions depend on the object, which rules of a
//! [`Policy`] cannot express.

use serde_json::Value;

use super::super::resource::Resource;
use super::policy::{Policy, Request};
use super::value::at;
use super::{AccessRequest, User};

/// Authorizes a request by the rules for nodes and by RBAC. The error is the message of the 403, here and below.
pub(crate) fn authorize(user: &User, access: &AccessRequest<'_>, policy: &Policy) -> Result<(), String> {
    let resource = full_name(access.resource, access.subresource);
    let request = Request { verb: access.verb, resource: &resource, namespace: access.namespace, name: access.name };
    let reason = match node_of(user) {
        Some(node) => match authorize_node(node, access) {
            Ok(()) => return Ok(()),
            Err(reason) => reason,
        },
        None => String::new(),
    };
    if policy.allows(user, &request) { Ok(()) } else { Err(refusal(user, access.resource, &request, &reason)) }
}

/// Authorizes a request to a resource that this server may not have, by RBAC alone.
pub(crate) fn is_allowed(
    user: &User,
    verb: &str,
    resource: &str,
    namespace: Option<&str>,
    name: Option<&str>,
    policy: &Policy,
) -> bool {
    policy.allows(user, &Request { verb, resource, namespace, name })
}

/// Authorizes a list, watch or collection delete, after [`authorize`]: a node must select its own name with a field selector
/// for `spec.nodeName`.
pub(crate) fn authorize_selection(
    user: &User,
    access: &AccessRequest<'_>,
    node_name: Option<&str>,
    policy: &Policy,
) -> Result<(), String> {
    let Some(node) = node_of(user) else { return Ok(()) };
    let reason = match (access.resource, access.verb) {
        (Resource::ResourceSlice, "list" | "watch" | "deletecollection") => {
            "can only list/watch/deletecollection resourceslices with nodeName field selector"
        }
        (Resource::Pod, "list" | "watch") => "can only list/watch pods with spec.nodeName field selector",
        _ => return Ok(()),
    };
    let resource = full_name(access.resource, access.subresource);
    let request = Request { verb: access.verb, resource: &resource, namespace: access.namespace, name: access.name };
    if node_name == Some(node) || policy.allows(user, &request) {
        return Ok(());
    }
    Err(refusal(user, access.resource, &request, reason))
}

/// Authorizes access to an object: a node is limited to itself, its slices and its pods. The object is the new one for
/// `create`, the stored one otherwise.
pub(crate) fn authorize_object(
    user: &User,
    resource: Resource,
    subresource: Option<&str>,
    verb: &str,
    object: &Value,
) -> Result<(), String> {
    let Some(node) = node_of(user) else { return Ok(()) };
    let name = at(object, &["metadata", "name"]).and_then(Value::as_str).unwrap_or_default();
    let is_own = at(object, &["spec", "nodeName"]).and_then(Value::as_str) == Some(node);
    let reason = match (resource, subresource, verb) {
        (Resource::ResourceSlice, ..) => return authorize_slice(user, verb, object),
        (Resource::Node, _, "create" | "update" | "patch") if name != node => {
            format!("node \"{node}\" is not allowed to modify node \"{name}\"")
        }
        (Resource::Pod, None, "create")
            if at(object, &["metadata", "annotations", "kubernetes.io/config.mirror"]).is_none() =>
        {
            let annotation = "\"kubernetes.io/config.mirror\" annotation";
            format!("pod does not have {annotation}, node \"{node}\" can only create mirror pods")
        }
        (Resource::Pod, None, "get") if !is_own => {
            let namespace = at(object, &["metadata", "namespace"]).and_then(Value::as_str);
            let request = Request { verb, resource: resource.plural(), namespace, name: Some(name) };
            return Err(refusal(user, resource, &request, &unrelated(node)));
        }
        (Resource::Pod, None, "delete") if !is_own => {
            format!("node \"{node}\" can only delete pods with spec.nodeName set to itself")
        }
        (Resource::Pod, Some("status"), _) if !is_own => {
            format!("node \"{node}\" can only update pod status for pods with spec.nodeName set to itself")
        }
        _ => return Ok(()),
    };
    Err(forbidden(resource, Some(name), &reason))
}

/// Authorizes access to a slice: a node is limited to its own. The object is as for [`authorize_object`].
pub(super) fn authorize_slice(user: &User, verb: &str, slice: &Value) -> Result<(), String> {
    let Some(node) = node_of(user) else { return Ok(()) };
    if at(slice, &["spec", "nodeName"]).and_then(Value::as_str) == Some(node) {
        return Ok(());
    }
    let resource = Resource::ResourceSlice;
    let name = at(slice, &["metadata", "name"]).and_then(Value::as_str);
    if verb == "create" {
        let reason = "can only create ResourceSlice with the same NodeName as the requesting node";
        return Err(forbidden(resource, name, reason));
    }
    let request = Request { verb, resource: resource.plural(), namespace: None, name };
    Err(refusal(user, resource, &request, &unrelated(node)))
}

/// Returns the node name of a kubelet's user.
pub(super) fn node_of(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix("system:node:")?;
    user.groups.iter().any(|group| group == "system:nodes").then_some(name)
}

/// Checks the rules for nodes that do not depend on the object.
fn authorize_node(node: &str, access: &AccessRequest<'_>) -> Result<(), String> {
    let AccessRequest { verb, resource, subresource, name, .. } = *access;
    let allowed = |allowed: bool, reason: &str| if allowed { Ok(()) } else { Err(reason.to_owned()) };
    match (resource, subresource) {
        (Resource::ResourceClaim, _) if verb != "get" => {
            Err("can only get individual resources of this type".to_owned())
        }
        (Resource::ResourceClaim, subresource) => allowed(subresource.is_none(), "cannot get subresource"),
        (Resource::ResourceSlice, None) => Ok(()),
        (Resource::ResourceSlice, Some(_)) => Err("cannot authorize ResourceSlice subresources".to_owned()),
        (Resource::Node, None) => match (verb, name) {
            ("create" | "update" | "patch", _) => Ok(()),
            ("get" | "list" | "watch", Some(name)) if name == node => Ok(()),
            ("get" | "list" | "watch", None) => {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("get" | "list" | "watch", Some(name)) => {
                Err(format!("node '{node}' cannot read '{name}', only its own Node object"))
            }
            _ => Err(String::new()),
        },
        (Resource::Pod, None) => allowed(matches!(verb, "get" | "list" | "watch" | "create" | "delete"), ""),
        (Resource::Node | Resource::Pod, Some("status")) => allowed(matches!(verb, "update" | "patch"), ""),
        (Resource::Pod, Some("eviction")) => allowed(verb == "create", ""),
        (Resource::Event, None) => allowed(matches!(verb, "create" | "update" | "patch"), ""),
        (Resource::Lease, None) => authorize_lease(node, access),
        _ => Err(String::new()),
    }
}

/// Checks the rules for leases: a node has one, in a namespace for leases of nodes.
fn authorize_lease(node: &str, access: &AccessRequest<'_>) -> Result<(), String> {
    let AccessRequest { verb, namespace, name, .. } = *access;
    if !matches!(verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a node lease".to_owned());
    }
    if namespace != Some("kube-node-lease") {
        return Err("can only access leases in the \"kube-node-lease\" system namespace".to_owned());
    }
    if verb != "create" && name != Some(node) {
        return Err("can only access node lease with the same name as the requesting node".to_owned());
    }
    Ok(())
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

/// Returns resource and subresource, for example `resourceclaims/status`.
fn full_name(resource: Resource, subresource: Option<&str>) -> String {
    match subresource {
        Some(subresource) => format!("{}/{subresource}", resource.plural()),
        None => resource.plural().to_owned(),
    }
}

/// Returns the message of a 403, with the reason of the rules for nodes, if any.
pub(super) fn refusal(user: &User, target: Resource, request: &Request<'_>, reason: &str) -> String {
    let Request { verb, resource, namespace, name } = request;
    let scope = match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let group = target.group();
    let mut message =
        format!("User \"{}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {scope}", user.name);
    if !reason.is_empty() {
        message = format!("{message}: node: {reason}");
    }
    forbidden(target, *name, &message)
}

fn forbidden(resource: Resource, name: Option<&str>, reason: &str) -> String {
    let resource = match resource.group() {
        "" => resource.plural().to_owned(),
        group => format!("{}.{group}", resource.plural()),
    };
    match name.filter(|name| !name.is_empty()) {
        Some(name) => format!("{resource} \"{name}\" is forbidden: {reason}"),
        None => format!("{resource} is forbidden: {reason}"),
    }
}
