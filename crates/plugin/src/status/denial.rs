//! What the API server says when it does not permit a report, and the RBAC rule that would permit it.
//!
//! Two checks have to be passed: RBAC for the status subresource, refused with 403; and from Kubernetes 1.36 on one for each
//! driver whose entries change, refused with 422 and a cause at `status.devices`. The latter knows the verbs
//! `associated-node:patch`, for a driver that runs on the node that the claim is allocated for, and `arbitrary-node:patch`
//! for one that need not.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A permission is missing. The text says which, and what to add.
    Denied(String),
    /// The claim has been replaced by another of the same name.
    Replaced,
    /// What was sent breaks a rule. The text is the server's.
    Invalid(String),
}

/// Understands an answer that is neither success nor trouble that passes.
pub(super) fn refusal(code: StatusCode, status: &Status, driver: &str) -> Refusal {
    let message = status.message.clone().unwrap_or_default();
    // Admission can forbid as well, and then no rule helps.
    if code == StatusCode::FORBIDDEN && message.contains("cannot patch resource") {
        return Refusal::Denied(denied(&message, &rule("resourceclaims/status", None, "patch"), ""));
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_deref()).unwrap_or_default();
    let at = |field: &str| causes.iter().find(|cause| cause.field.as_deref() == Some(field));
    if at("metadata.uid").is_some() {
        return Refusal::Replaced;
    }
    match at("status.devices").filter(|cause| cause.reason.as_deref() == Some("FieldValueForbidden")) {
        Some(cause) => {
            let cause = cause.message.as_deref().unwrap_or(&message);
            let (verb, hint) = match cause.contains("associated-node:patch") {
                true => ("associated-node:patch", ""),
                false => (
                    "arbitrary-node:patch",
                    "; or, where the claim is allocated for just this node, let the driver use the token of its pod and \
                     add the verb \"associated-node:patch\" instead",
                ),
            };
            Refusal::Denied(denied(cause, &rule("resourceclaims/driver", Some(driver), verb), hint))
        }
        None => Refusal::Invalid(format!("the API server answered {code}: {message}")),
    }
}

/// What is missing when a claim may not even be read.
pub(super) fn get_denied(message: &str) -> String {
    denied(message, &rule("resourceclaims", None, "get"), "")
}

fn denied(message: &str, rule: &str, hint: &str) -> String {
    format!("not permitted; add this rule to the driver's ClusterRole: {rule}{hint} ({message})")
}

/// A rule as it stands in a `ClusterRole`, in one line.
fn rule(resource: &str, name: Option<&str>, verb: &str) -> String {
    let name = name.map(|name| format!("resourceNames: [\"{name}\"], ")).unwrap_or_default();
    format!("- {{apiGroups: [\"resource.k8s.io\"], resources: [\"{resource}\"], {name}verbs: [\"{verb}\"]}}")
}
