//! Containers: none is created with the metadata of an interface that is not in its sandbox.
//!
//! The gate is of a claim, not of a pod. A kubelet that has prepared a claim does not ask again when a second pod refers to it by name,
//! so the driver does not know of that pod, and its containers would start with the file of the first. And a pod can get another
//! sandbox while the runtime is not connected, in which the interfaces are not yet. Runtimes show the mounts of CDI devices to their
//! plugins before a container is created, and the path of the file names the claim, or is of a claim that was made for the pod.

use std::path::Path;

use drakkar_metadata::path::ContainerFile;
use drakkar_nri::PodSandboxExt as _;
use drakkar_nri::api::{Container, PodSandbox};

use super::{HookError, Hooks};
use crate::DRIVER_NAME;
use crate::journal::{Phase, Record};

impl Hooks {
    /// Refuses a container with the metadata of a claim whose interfaces are not in its pod.
    pub(super) fn check_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), HookError> {
        for mount in &container.mounts {
            let Ok(file) = ContainerFile::parse(Path::new(&mount.destination)) else { continue };
            let problem = match file {
                ContainerFile::Claim { claim, driver, .. } if driver.as_str() == DRIVER_NAME => {
                    let record = self.0.claims.find_by_name(&pod.namespace, claim.as_str());
                    let problem =
                        record.map_or_else(|| Some("is not prepared".to_owned()), |record| problem(&record, pod));
                    problem.map(|problem| format!("claim {claim} {problem}"))
                }
                // The name of the claim is not in the path, but all interfaces of a pod are attached together.
                ContainerFile::Template { pod_claim, driver, .. } if driver.as_str() == DRIVER_NAME => {
                    let records = pod.pod_uid().map(|uid| self.0.claims.of_pod(uid)).unwrap_or_default();
                    let problem = records.iter().find_map(|record| problem(record, pod));
                    problem.map(|problem| format!("claim {pod_claim} of the pod {problem}"))
                }
                _ => None,
            };
            if let Some(problem) = problem {
                let pod = pod.pod_name();
                let message = format!("pod {pod}: container {}: {problem}", container.name);
                return Err(HookError::new("NotAttached", message));
            }
        }
        Ok(())
    }
}

/// Returns why the interfaces of a claim are not those of a pod.
fn problem(record: &Record, pod: &PodSandbox) -> Option<String> {
    let mut interfaces = record.interfaces().peekable();
    interfaces.peek()?;
    if !record.is_for(&pod.uid) {
        return Some(
            "has interfaces in another pod, and an interface can be in one pod only: give each pod a claim of its own, from a \
             ResourceClaimTemplate"
                .to_owned(),
        );
    }
    let is_here = |phase: &Phase| matches!(phase, Phase::Attached { place, .. } if place.sandbox.id == pod.id);
    (!interfaces.all(|interface| is_here(&interface.phase)))
        .then(|| "has interfaces that are not in the sandbox yet".to_owned())
}
