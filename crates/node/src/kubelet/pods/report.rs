//! The requests of a worker to the API server: the pod's status, and its deletion.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Status;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::plan::Phase;
use super::status::{View, status};
use super::worker::Worker;

impl Worker {
    /// Reports the status, if it has changed. Returns the time of the next attempt if that fails.
    pub(super) async fn report(&mut self, ended: Option<Phase>) -> Option<Instant> {
        let gone = self.latest.borrow().is_none();
        let pod = self.pod.clone().filter(|_| !gone)?;
        if self.reported_phase().is_some() {
            return None;
        }
        let context = self.context();
        let infos = context.containers.list(&self.uid);
        let view = View {
            pod: &pod,
            infos: &infos,
            records: &self.records,
            ready: self.ready,
            ips: context.containers.pod_ips(&self.uid),
            ended,
            start_time: &self.start_time,
            conditions: &self.conditions,
        };
        let status = status(&view, |container| context.manager.resource_statuses(&pod, container));
        if self.reported.as_ref() == Some(&status) {
            return None;
        }
        let metadata = &pod.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
        let patch = json!({"metadata": {"uid": self.uid}, "status": status});
        match api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {
                self.conditions = serde_json::from_value(status["conditions"].clone()).unwrap_or_default();
                self.reported = Some(status);
                None
            }
            Err(kube::Error::Api(answer))
                if answer.is_not_found() || answer.is_conflict() || is_of_another_pod(&answer) =>
            {
                None
            }
            Err(error) => {
                tracing::warn!(namespace, pod = name, %error, "kubelet: reporting a pod's status failed, retrying");
                Some(Instant::now() + context.timing.api_backoff.retry().next_delay())
            }
        }
    }

    /// Reports the final phase; retries until that succeeds or the pod is gone.
    pub(super) async fn report_end(&mut self, phase: Phase) {
        while let Some(retry) = self.report(Some(phase)).await {
            sleep_until(retry).await;
        }
    }

    /// Deletes the pod without grace period, and waits until it is gone.
    pub(super) async fn delete(&mut self) {
        let context = self.context();
        let mut retry = context.timing.api_backoff.retry();
        while self.latest.borrow().is_some() {
            let Some(pod) = &self.pod else { return };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
            let preconditions = Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() };
            let parameters = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(preconditions),
                ..DeleteParams::default()
            };
            let mut latest = self.latest.clone();
            let gone = async {
                // The sender lives as long as the worker.
                let _ = latest.wait_for(Option::is_none).await;
            };
            match api.delete(name, &parameters).await {
                Ok(_) => return gone.await,
                Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => return gone.await,
                Err(error) => tracing::warn!(namespace, pod = name, %error, "kubelet: deleting a pod failed, retrying"),
            }
            sleep(retry.next_delay()).await;
        }
    }
}

/// Reports whether a patch was refused because another pod has the name by now.
fn is_of_another_pod(answer: &Status) -> bool {
    answer.details.iter().flat_map(|details| &details.causes).any(|cause| cause.field == "metadata.uid")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of an API server of 1.37 to a patch with the UID of an earlier pod.
    #[test]
    fn a_patch_of_an_earlier_pod_is_distinguished_from_an_invalid_one() {
        let refused = |field: &str| -> Status {
            let cause = json!({"reason": "FieldValueInvalid", "message": "field is immutable", "field": field});
            let status = json!({"status": "Failure", "message": "invalid", "reason": "Invalid", "code": 422,
                "details": {"name": "p", "group": "", "kind": "Pod", "causes": [cause]}});
            serde_json::from_value(status).unwrap()
        };
        assert!(is_of_another_pod(&refused("metadata.uid")) && !is_of_another_pod(&refused("status.phase")));
    }
}
