//! The plugin trait.

use std::future::Future;

use drakkar_nri_api::v1alpha1::{Container, LinuxResources, PodSandbox, ValidateContainerAdjustmentRequest};

use crate::adjust::{Adjustments, ContainerUpdate, Updates};
use crate::call::Call;
use crate::error::BoxError;
use crate::event::{Event, Events};
use crate::runtime::Runtime;

/// An NRI plugin. It is shared by all calls, so its state is behind a lock of its own.
///
/// Implement the events that you [subscribe to](crate::Plugin::events). The others are never called; one that is subscribed to
/// and not implemented fails with an error that says so, and the ending of a pod or container logs a warning.
///
/// # Deadlines
///
/// A runtime that waits longer than its request timeout, 2 s by default, drops the plugin **and lets the pod start as if the
/// plugin had agreed**. So each call has a deadline at 75 % of that. When it passes, the runtime is answered with an error, the
/// pod fails and is tried again, and the connection stays.
///
/// The handler is not cancelled: it runs in a task of its own and ends when it ends, so that no sequence of changes is cut in
/// the middle. It learns from [`Call::abandoned`] that the runtime no longer waits, and should roll back then. Meanwhile the
/// runtime undoes the pod: [`Self::stop_pod_sandbox`] and [`Self::remove_pod_sandbox`] of the same sandbox can be called while
/// [`Self::run_pod_sandbox`] still runs, and the next attempt has the same pod UID and another sandbox id.
///
/// Do not block the thread: slow work that is not `async` belongs in `tokio::task::spawn_blocking`.
///
/// # Order
///
/// A runtime sends one event at a time, over all pods. What was abandoned overlaps with what follows, and so do events of a
/// new connection with handlers of the one that was lost. At most 64 handlers run at once; events beyond are answered with an
/// error.
///
/// Expect `StopPodSandbox` to be missing: containerd forgets pods when it restarts, and a plugin that was disconnected is sent
/// nothing afterwards. Compare with [`Self::synchronize`], and clean up from elsewhere too.
pub trait NriPlugin: Send + Sync + 'static {
    /// Configures the plugin for a runtime, on each new connection, and returns the events to subscribe to. By default those of
    /// [`Plugin::events`](crate::Plugin::events) that the runtime knows.
    fn configure(
        &self,
        _call: &Call,
        configuration: &Configuration,
    ) -> impl Future<Output = Result<Events, BoxError>> + Send {
        std::future::ready(Ok(configuration.events))
    }

    /// Takes over the pods and containers of the runtime, on each new connection and before any event. Ignores them by default.
    ///
    /// Stopped pods that are not removed are among them, with no mark, and a pod UID can be there more than once. A pod that is
    /// prepared but whose sandbox is not created yet is missing: do not drop what you know of it.
    ///
    /// If this fails, the connection is closed and tried again.
    fn synchronize(
        &self,
        _call: &Call,
        _pods: &[PodSandbox],
        _containers: &[Container],
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, BoxError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// A pod sandbox runs: its network exists, and it has no container yet. An error makes the pod fail; the kubelet tries
    /// again with another sandbox.
    fn run_pod_sandbox(&self, _call: &Call, _pod: &PodSandbox) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::RunPodSandbox)
    }

    /// A pod sandbox stops. With CRI-O its network namespace is gone already.
    ///
    /// It cannot fail: CRI-O would not stop the pod, and the kubelet would try for ever. Remember what is left to do.
    fn stop_pod_sandbox(&self, _call: &Call, _pod: &PodSandbox) -> impl Future<Output = ()> + Send {
        not_handled_end(Event::StopPodSandbox)
    }

    /// A pod sandbox is removed. It may never have been stopped: release here too what a stop releases.
    fn remove_pod_sandbox(&self, _call: &Call, _pod: &PodSandbox) -> impl Future<Output = ()> + Send {
        not_handled_end(Event::RemovePodSandbox)
    }

    /// The resources of a pod are about to change: its overhead, and the sum of its containers.
    fn update_pod_sandbox(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _overhead: &LinuxResources,
        _resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::UpdatePodSandbox)
    }

    /// The resources of a pod have changed.
    fn post_update_pod_sandbox(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::PostUpdatePodSandbox)
    }

    /// A container is about to be created. What the kubelet's CDI devices add is in it already.
    fn create_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<Adjustments, BoxError>> + Send {
        not_handled(Event::CreateContainer)
    }

    /// A container was created.
    fn post_create_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::PostCreateContainer)
    }

    /// A container is about to start.
    fn start_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::StartContainer)
    }

    /// A container has started.
    fn post_start_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::PostStartContainer)
    }

    /// The resources of a container are about to change. The answer can change them again, and those of other containers.
    fn update_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
        _resources: &LinuxResources,
    ) -> impl Future<Output = Result<Updates, BoxError>> + Send {
        not_handled(Event::UpdateContainer)
    }

    /// The resources of a container have changed.
    fn post_update_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        not_handled(Event::PostUpdateContainer)
    }

    /// A container has stopped. The answer can change the remaining containers.
    fn stop_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, BoxError>> + Send {
        not_handled(Event::StopContainer)
    }

    /// A container is removed.
    fn remove_container(
        &self,
        _call: &Call,
        _pod: &PodSandbox,
        _container: &Container,
    ) -> impl Future<Output = ()> + Send {
        not_handled_end(Event::RemoveContainer)
    }

    /// Accepts or rejects what all plugins change in a container. Calls of this can overlap with others.
    fn validate_container_adjustment(
        &self,
        _call: &Call,
        _request: &ValidateContainerAdjustmentRequest,
    ) -> impl Future<Output = Result<Verdict, BoxError>> + Send {
        not_handled(Event::ValidateContainerAdjustment)
    }
}

/// What a runtime configures a plugin with.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Configuration {
    /// The runtime.
    pub runtime: Runtime,
    /// The text of the plugin's configuration file, if the runtime launched it; else empty.
    pub text: String,
    /// The events of [`Plugin::events`](crate::Plugin::events) that the runtime knows.
    pub events: Events,
}

/// The verdict on the adjustments to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The container is created.
    Accept,
    /// The container is not created, for this reason.
    Reject(String),
}

fn not_handled<T: Send>(event: Event) -> impl Future<Output = Result<T, BoxError>> + Send {
    std::future::ready(Err(format!("the plugin subscribed to {event} but does not handle it").into()))
}

fn not_handled_end(event: Event) -> impl Future<Output = ()> + Send {
    tracing::warn!(event = event.name(), "event not handled");
    std::future::ready(())
}
