//! The life of a container.

use std::time::Duration;

use drakkar_nri_api::v1alpha1::{Container, PodSandbox};

use super::pods::Record;
use super::{PodRuntime, message};
use crate::kubelet::{Containers, StartError};
use crate::nri::{Adjusted, Supported};
use crate::runner::cdi::Edits;
use crate::runner::{ContainerId, ContainerInfo, ContainerSpec, Exit, Extras, Isolation, Runner, State};

/// A container that is created, and about to start.
struct Created {
    spec: ContainerSpec,
    edits: Edits,
    extras: Extras,
    message: Container,
}

impl PodRuntime {
    /// Creates and starts a container. If it runs already, because a kubelet that was killed had asked for it, it is that one.
    pub(super) async fn start_container(&self, spec: ContainerSpec) -> Result<ContainerId, StartError> {
        let not_created = |message: String| StartError { message, created: false };
        let nri = &self.0.nri;
        let lock = self.0.pods.lock_of(&spec.pod_uid);
        // Held until the container runs, as containerd reserves its name.
        let _pod = lock.lock().await;
        let is_same = |info: &ContainerInfo| info.name == spec.name && matches!(info.state, State::Running { .. });
        if let Some(running) = self.0.runner.list(&spec.pod_uid).into_iter().find(is_same) {
            return Ok(running.id);
        }
        let operation = nri.operation().await;
        let interrupted = || not_created("the container runtime was restarted".to_owned());
        let sandbox = self.0.pods.ready(&spec.pod_uid);
        let sandbox = sandbox.ok_or_else(|| not_created("the pod has no sandbox".to_owned()))?;
        let pod = &sandbox.message;
        let edits = self.0.runner.resolve_container(&spec).await.map_err(|error| not_created(error.to_string()))?;
        let id = Runner::new_id(&spec);
        let original = message::container(&id, pod, &spec, &edits);
        let mut extras =
            Extras { pod: sandbox.network.as_ref().map(|network| network.namespaces()), ..Extras::default() };
        let adjusted = self.adjust(pod, original.clone(), spec, edits, &mut extras).await;
        if operation.is_interrupted() {
            return Err(interrupted());
        }
        let Created { spec, edits, extras, mut message } = match adjusted {
            Ok((spec, edits, message)) => Created { spec, edits, extras, message },
            Err(error) => {
                self.undo(pod, &original).await;
                return Err(not_created(error));
            }
        };
        let record = Record { message: message.clone(), pod: pod.clone(), is_removed: false };
        self.0.pods.tables().containers.insert(id.clone(), record);
        if let Err(error) = nri.post_create_container(pod, &message).await {
            tracing::warn!(container = %id, %error, "nri: a plugin failed");
        }
        let started = match nri.start_container(pod, &message).await {
            Ok(()) => self.0.runner.start_resolved(id.clone(), spec, edits, extras).await,
            // The container is created, and its start has failed.
            Err(error) => self.0.runner.add_failed(id.clone(), spec, error.to_string()),
        };
        let failure = match started {
            Ok(_) => None,
            Err(error) if error.is_start_error() => Some(StartError { message: error.to_string(), created: true }),
            Err(error) => {
                self.0.pods.tables().containers.remove(&id);
                self.undo(pod, &message).await;
                return Err(not_created(error.to_string()));
            }
        };
        if let Some(failure) = failure {
            self.announce_exit(&id, &Exit::not_started(failure.message.clone())).await;
            return Err(failure);
        }
        if let Ok(State::Running { pid }) = self.0.runner.info(&id).map(|info| info.state) {
            message::set_started(&mut message, pid);
            self.0.pods.update(&id, |container| container.clone_from(&message));
        }
        if let Err(error) = nri.post_start_container(pod, &message).await {
            tracing::warn!(container = %id, %error, "nri: a plugin failed");
        }
        Ok(id)
    }

    /// Asks the plugins for their adjustments, and applies them.
    async fn adjust(
        &self,
        pod: &PodSandbox,
        container: Container,
        mut spec: ContainerSpec,
        edits: Edits,
        extras: &mut Extras,
    ) -> Result<(ContainerSpec, Edits, Container), String> {
        let isolation = self.0.runner.isolation();
        let supported =
            Supported { hooks: matches!(isolation, Isolation::Oci(_)), cdi_devices: self.0.nri.has_cdi_adjustments() };
        let adjusted = self.0.nri.create_container(pod, container, supported).await;
        let Adjusted { container, cdi_devices } = adjusted.map_err(|error| error.to_string())?;
        let failed = |error: String| format!("apply the adjustments of NRI plugins: {error}");
        let applied = message::apply(&container, edits, isolation).map_err(failed)?;
        spec.command = applied.command;
        extras.limits = applied.limits;
        extras.oom_score_adj = applied.oom_score_adj;
        let injected = self.0.runner.inject(&spec, cdi_devices, applied.edits).await;
        let edits = injected.map_err(|error| failed(error.to_string()))?;
        Ok((spec, edits, container))
    }

    /// Announces that a container that was announced is not created after all.
    async fn undo(&self, pod: &PodSandbox, container: &Container) {
        for undone in
            [self.0.nri.stop_container(pod, container).await, self.0.nri.remove_container(pod, container).await]
        {
            if let Err(error) = undone {
                tracing::warn!(container = container.id, %error, "nri: undoing a container failed");
            }
        }
    }

    /// Stops a container, and announces that it has stopped. No plugin synchronizes until then, as with containerd.
    pub(super) async fn stop_container(&self, id: &ContainerId, grace: Duration) {
        let _operation = self.0.nri.operation().await;
        Containers::stop(&*self.0.runner, id, grace).await;
        if let Ok(State::Exited(exit)) = self.0.runner.info(id).map(|info| info.state) {
            self.announce_exit(id, &exit).await;
        }
    }

    /// Kills the containers of a pod that still run, and announces all that have exited.
    pub(super) async fn end_containers(&self, pod_uid: &str) {
        for info in self.0.runner.list(pod_uid) {
            match self.0.runner.kill(&info.id).await {
                Ok(exit) => self.announce_exit(&info.id, &exit).await,
                // Removed meanwhile.
                Err(error) => tracing::debug!(container = %info.id, %error, "ending a container of a pod failed"),
            }
        }
    }

    /// Announces the exit of a container, unless that was done.
    pub(super) async fn announce_exit(&self, id: &ContainerId, exit: &Exit) {
        let changed = self.0.pods.update(id, |container| {
            if container.finished_at == 0 {
                message::set_exited(container, exit);
            }
        });
        let Some(record) = changed else { return };
        if let Err(error) = self.0.nri.stop_container(&record.pod, &record.message).await {
            tracing::warn!(container = %id, %error, "nri: a plugin failed to stop a container");
        }
    }

    /// Removes a container, and announces that soon.
    pub(super) fn remove_container(&self, id: &ContainerId) {
        Containers::remove(&*self.0.runner, id);
        let mut tables = self.0.pods.tables();
        let Some(record) = tables.containers.get_mut(id) else { return };
        record.is_removed = true;
        let pod_uid = record.pod.uid.clone();
        drop(tables);
        drop(self.spawn(|runtime| async move {
            let lock = runtime.0.pods.lock_of(&pod_uid);
            let _pod = lock.lock().await;
            let _operation = runtime.0.nri.operation().await;
            runtime.announce_removals(&pod_uid).await;
        }));
    }

    /// Announces the containers of a pod that are removed.
    pub(super) async fn announce_removals(&self, pod_uid: &str) {
        for record in self.0.pods.take_removed(pod_uid) {
            if let Err(error) = self.0.nri.remove_container(&record.pod, &record.message).await {
                tracing::warn!(pod = pod_uid, %error, "nri: a plugin failed to remove a container");
            }
        }
    }
}
