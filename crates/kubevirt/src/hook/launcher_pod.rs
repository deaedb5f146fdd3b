//! The claims of a launcher pod's containers, changed so that the hook sees the metadata files.
//!
//! KubeVirt gives claims to the launcher's container `compute` alone, and only those that its own devices refer to. Here
//! `compute` also gets the requests that the annotations name, whose devices the hook adds to the domain, and the hook's
//! container gets all requests of `compute`: the metadata files come with them. Containers of other hooks get nothing.
//!
//! Applied when a launcher pod is created: by the admission policy in `manifests/hook-sidecar.yaml` (Kubernetes 1.36 and
//! newer), which does the same in CEL, or by a mutating webhook that answers with these operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::annotation::{AnnotationError, annotated_devices};
use crate::vmi::null_as_default;

/// The label of a launcher pod, and its value.
const LAUNCHER_LABEL: (&str, &str) = ("kubevirt.io", "virt-launcher");
/// The container with the launcher.
const COMPUTE: &str = "compute";
/// The start of the names that KubeVirt gives to the containers of hook sidecars.
const SIDECAR_PREFIX: &str = "hook-sidecar-";
/// What the command line of our hook contains.
const HOOK_COMMAND: &str = "kubevirt hook";

/// An operation of a JSON patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PatchOperation {
    /// The operation: `add`, which also replaces.
    pub op: &'static str,
    /// The location, as a JSON pointer.
    pub path: String,
    /// The value.
    pub value: Value,
}

/// A launcher pod that cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum LauncherPodError {
    /// The object is not a pod.
    #[error("launcher pod: {0}")]
    Pod(#[source] serde_json::Error),
    /// The annotations of the pod, which are those of the VMI, cannot be understood.
    #[error("launcher pod: {0}")]
    Annotation(#[from] AnnotationError),
    /// An annotation names a claim that the VMI does not have.
    #[error(
        "launcher pod: annotation {annotation}: claim {claim:?} is not in spec.resourceClaims of the VMI: add it there"
    )]
    UnknownClaim {
        /// The annotation.
        annotation: &'static str,
        /// The claim.
        claim: String,
    },
}

/// Returns the changes of a pod that is about to be created: none unless it is a launcher pod that runs the hook as a
/// sidecar. Applying them twice is the same as applying them once.
pub fn mutate_launcher_pod(pod: &Value) -> Result<Vec<PatchOperation>, LauncherPodError> {
    let pod = Pod::deserialize(pod).map_err(LauncherPodError::Pod)?;
    let is_launcher = pod.metadata.labels.get(LAUNCHER_LABEL.0).is_some_and(|value| value == LAUNCHER_LABEL.1);
    if !is_launcher || !pod.spec.containers.iter().any(Container::is_hook) {
        return Ok(vec![]);
    }
    let mut claims =
        pod.spec.containers.iter().find(|container| container.name == COMPUTE).map_or_else(Vec::new, |compute| {
            compute.resources.as_ref().map_or_else(Vec::new, |resources| resources.claims.clone())
        });
    for device in annotated_devices(&pod.metadata.annotations)? {
        let claim = ContainerClaim { name: device.request.claim_name, request: device.request.request_name };
        if !pod.spec.resource_claims.iter().any(|known| known.name == claim.name) {
            return Err(LauncherPodError::UnknownClaim { annotation: device.kind.annotation(), claim: claim.name });
        }
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }
    let receivers = pod.spec.containers.iter().enumerate().filter(|(_, it)| it.name == COMPUTE || it.is_hook());
    Ok(receivers.filter_map(|(index, container)| container.patch(index, &claims)).collect())
}

#[derive(Debug, Deserialize)]
struct Pod {
    #[serde(default)]
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "null_as_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_as_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default, deserialize_with = "null_as_default")]
    containers: Vec<Container>,
    #[serde(default, deserialize_with = "null_as_default")]
    resource_claims: Vec<PodClaim>,
}

#[derive(Debug, Deserialize)]
struct PodClaim {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    command: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    args: Vec<String>,
    resources: Option<Resources>,
}

#[derive(Debug, Deserialize)]
struct Resources {
    #[serde(default, deserialize_with = "null_as_default")]
    claims: Vec<ContainerClaim>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
struct ContainerClaim {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    request: String,
}

impl Container {
    /// Whether this is our hook, as a sidecar that KubeVirt has added.
    fn is_hook(&self) -> bool {
        let command: Vec<&str> = self.command.iter().chain(&self.args).map(String::as_str).collect();
        self.name.starts_with(SIDECAR_PREFIX) && command.join(" ").contains(HOOK_COMMAND)
    }

    /// The operation that gives the container these claims, if it does not have them.
    fn patch(&self, index: usize, claims: &[ContainerClaim]) -> Option<PatchOperation> {
        let path = format!("/spec/containers/{index}/resources");
        match &self.resources {
            Some(resources) if resources.claims == claims => None,
            None if claims.is_empty() => None,
            None => Some(PatchOperation { op: "add", path, value: json!({ "claims": claims }) }),
            Some(_) => Some(PatchOperation { op: "add", path: format!("{path}/claims"), value: json!(claims) }),
        }
    }
}

#[cfg(test)]
mod tests;
