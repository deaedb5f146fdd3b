//! What plugins ask of a pod sandbox.

use std::path::Path;

use drakkar_nri_api::v1alpha1::PodSandbox;

/// Questions about a pod sandbox.
pub trait PodSandboxExt {
    /// Returns the path of the pod's network namespace, such as `/var/run/netns/cni-…`.
    ///
    /// `None` for a pod in the host's network; and in `StopPodSandbox` and `RemovePodSandbox` with containerd 1.7 and 2.0,
    /// which have forgotten it: remember it from `RunPodSandbox`. The path may lead to nothing by then.
    fn network_namespace(&self) -> Option<&Path>;

    /// Returns the UID of the pod in Kubernetes, which a claim's `status.reservedFor` names. `None` if it is empty.
    fn pod_uid(&self) -> Option<&str>;

    /// Returns the pod as `namespace/name`, for messages.
    fn pod_name(&self) -> String;
}

impl PodSandboxExt for PodSandbox {
    fn network_namespace(&self) -> Option<&Path> {
        let namespaces = self.linux.iter().flat_map(|linux| &linux.namespaces);
        namespaces
            .filter(|namespace| namespace.r#type == "network" && !namespace.path.is_empty())
            .map(|namespace| Path::new(&namespace.path))
            .next()
    }

    fn pod_uid(&self) -> Option<&str> {
        Some(self.uid.as_str()).filter(|uid| !uid.is_empty())
    }

    fn pod_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
