//! `pods/log` and `pods/exec`: the server finds the container and its kubelet, and passes on what the kubelet returns.

mod channels;
mod exec;
mod logs;

use std::sync::Arc;

use serde_json::Value;

use super::call::Call;
use super::kubelet::{ContainerRef, Kubelet, KubeletError};
use super::read;
use super::status::Failure;

pub(crate) use exec::{Upgraded, exec};
pub(crate) use logs::logs;

/// A container that a request names.
struct Located {
    container: ContainerRef,
    /// The node of the pod; `None` if the pod is not bound to one.
    node: Option<String>,
}

impl Located {
    /// Finds the container that a request names, or the only one of the pod.
    fn find(call: &Call) -> Result<Self, Failure> {
        let pod = read::find(call)?;
        call.authorize_object(&pod.value)?;
        let pod = &pod.value;
        let name = call.name();
        let containers = names(pod, "containers");
        let all = ["containers", "initContainers", "ephemeralContainers"].map(|list| names(pod, list)).concat();
        let container = match (call.query.get("container"), containers.as_slice()) {
            (Some(wanted), _) if all.iter().any(|known| known == wanted) => wanted.to_owned(),
            (Some(wanted), _) => {
                return Err(Failure::bad_request(format!("container {wanted} is not valid for pod {name}")));
            }
            (None, [only]) if all.len() == 1 => only.clone(),
            (None, many) => {
                let mut message =
                    format!("a container name must be specified for pod {name}, choose one of: [{}]", many.join(" "));
                let init = names(pod, "initContainers");
                if !init.is_empty() {
                    message += &format!(" or one of the init containers: [{}]", init.join(" "));
                }
                return Err(Failure::bad_request(message));
            }
        };
        let text = |path: [&str; 2]| pod[path[0]][path[1]].as_str().unwrap_or_default().to_owned();
        let container = ContainerRef {
            namespace: text(["metadata", "namespace"]),
            pod: name.to_owned(),
            pod_uid: text(["metadata", "uid"]),
            container,
        };
        let node = Some(text(["spec", "nodeName"])).filter(|node| !node.is_empty());
        Ok(Self { container, node })
    }
}

/// Returns the kubelet of a node.
fn kubelet(call: &Call, node: &str) -> Result<Arc<dyn Kubelet>, Failure> {
    let refused = || Failure::internal(format!("connect to the kubelet of node {node}: connection refused"));
    call.core.kubelets.get(node).ok_or_else(refused)
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let containers = pod["spec"][list].as_array().into_iter().flatten();
    containers.filter_map(|container| container["name"].as_str()).map(str::to_owned).collect()
}

impl From<KubeletError> for Failure {
    fn from(error: KubeletError) -> Self {
        match error {
            KubeletError::BadRequest(message) => Self::bad_request(message),
            KubeletError::NotFound(message) => Self::no_container(message),
            KubeletError::Internal(message) => Self::internal(message),
        }
    }
}
