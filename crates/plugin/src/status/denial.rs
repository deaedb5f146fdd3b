//! Rejections of a status report by the API server, and the RBAC rule that would permit it.
//!
//! The API server checks two permissions: RBAC for the status subresource, rejected with 403; and since Kubernetes 1.36 one
//! for each driver whose entries change, rejected with 422 and a cause at `status.devices`. The latter has the verbs
//! `associated-node:patch`, for a driver that runs on the node that the claim is allocated for, and `arbitrary-node:patch`
//! for any other.

use std::fmt;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

/// Why the API server rejected a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rejection {
    /// A permission is missing.
    Denied(MissingPermission),
    /// Another claim with the same name has replaced the claim.
    Replaced,
    /// The server rejects the request for another reason, for example invalid values.
    Invalid {
        /// The HTTP status.
        code: StatusCode,
        /// The server's message.
        message: String,
    },
}

/// A permission that the driver lacks. Displays the RBAC rule that grants it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not permitted; add this rule to the driver's ClusterRole: {rule}{hint} ({message})")]
pub(super) struct MissingPermission {
    rule: Rule,
    /// An alternative to the rule.
    hint: &'static str,
    /// The server's message.
    message: String,
}

impl MissingPermission {
    /// Returns the permission that a driver lacks if it may not read a claim.
    pub(super) fn get_claim(message: String) -> Self {
        Self { rule: Rule { resource: "resourceclaims", resource_name: None, verb: "get" }, hint: "", message }
    }
}

/// A rule of a `ClusterRole`. Displays as one line of YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    resource: &'static str,
    resource_name: Option<String>,
    verb: &'static str,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, resource_name, verb } = self;
        write!(f, "- {{apiGroups: [\"resource.k8s.io\"], resources: [\"{resource}\"], ")?;
        if let Some(name) = resource_name {
            write!(f, "resourceNames: [\"{name}\"], ")?;
        }
        write!(f, "verbs: [\"{verb}\"]}}")
    }
}

/// Classifies a response that is neither a success nor transient.
pub(super) fn classify_rejection(code: StatusCode, status: &Status, driver: &str) -> Rejection {
    let message = status.message.clone().unwrap_or_default();
    // The authorizer and admission both return 403 with the same fields; only the message tells them apart. No RBAC rule
    // helps against admission.
    if code == StatusCode::FORBIDDEN && message.contains("cannot patch resource") {
        let rule = Rule { resource: "resourceclaims/status", resource_name: None, verb: "patch" };
        return Rejection::Denied(MissingPermission { rule, hint: "", message });
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_deref()).unwrap_or_default();
    let cause_at = |field: &str| causes.iter().find(|cause| cause.field.as_deref() == Some(field));
    if cause_at("metadata.uid").is_some() {
        return Rejection::Replaced;
    }
    match cause_at("status.devices").filter(|cause| cause.reason.as_deref() == Some("FieldValueForbidden")) {
        Some(cause) => {
            let message = cause.message.clone().unwrap_or(message);
            // Which verbs would do depends on the driver's token. The server says so in the message and nowhere else.
            let (verb, hint) = if message.contains("associated-node:patch") {
                ("associated-node:patch", "")
            } else {
                (
                    "arbitrary-node:patch",
                    "; or, where the claim is allocated for just this node, let the driver use the token of its pod and \
                     add the verb \"associated-node:patch\" instead",
                )
            };
            let rule = Rule { resource: "resourceclaims/driver", resource_name: Some(driver.to_owned()), verb };
            Rejection::Denied(MissingPermission { rule, hint, message })
        }
        None => Rejection::Invalid { code, message },
    }
}
