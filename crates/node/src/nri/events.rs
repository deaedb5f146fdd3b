//! Events to all plugins, in the order of their indices, with containerd's rules for failures.

use drakkar_nri_api::v1alpha1::{
    Container, CreateContainerRequest, CreateContainerResponse, Event, PluginInstance, PodSandbox,
    StopContainerRequest, StopContainerResponse, UpdateContainersRequest, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};

use super::connection::CallError;
use super::merge::{Adjusted, Merge, Supported};
use super::plugin::{Plugin, Subject};
use super::service::{Announced, FanOut, Service};
use super::session::visible;

/// A plugin has failed an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NRI {event} failed: plugin {plugin}: {message}")]
pub(crate) struct NriError {
    event: &'static str,
    plugin: String,
    message: String,
}

/// An event about a pod or container.
struct Sent<'a> {
    event: Event,
    pod: &'a PodSandbox,
    container: Option<&'a Container>,
}

impl Service {
    /// Announces a new sandbox.
    pub(crate) async fn run_pod_sandbox(&self, pod: &PodSandbox) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        let sent = self.send(&mut fan_out, &Sent { event: Event::RunPodSandbox, pod, container: None }).await;
        fan_out.announced.insert(pod.id.clone(), Announced::Running);
        sent
    }

    /// Announces that a sandbox stops, unless that was done, or the runtime has forgotten the sandbox.
    pub(crate) async fn stop_pod_sandbox(&self, pod: &PodSandbox) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        if !needs_stop(&fan_out, &pod.id) {
            return Ok(());
        }
        let sent = self.send(&mut fan_out, &Sent { event: Event::StopPodSandbox, pod, container: None }).await;
        fan_out.announced.insert(pod.id.clone(), Announced::Stopped);
        sent
    }

    /// Announces that a sandbox is removed, unless the runtime has forgotten it.
    pub(crate) async fn remove_pod_sandbox(&self, pod: &PodSandbox) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        if !fan_out.announced.contains_key(&pod.id) {
            return Ok(());
        }
        let sent = self.send(&mut fan_out, &Sent { event: Event::RemovePodSandbox, pod, container: None }).await;
        fan_out.announced.remove(&pod.id);
        sent
    }

    /// Asks the plugins for their adjustments to a container, each with those of the plugins before it.
    pub(crate) async fn create_container(
        &self,
        pod: &PodSandbox,
        container: Container,
        supported: Supported,
    ) -> Result<Adjusted, NriError> {
        let event = Event::CreateContainer;
        let mut fan_out = self.fan_out.lock().await;
        fan_out.announced.insert(container.id.clone(), Announced::Created);
        let pod = &visible(self.config.version, pod.clone());
        let mut merge = Merge::new(container.clone(), supported);
        let mut asked = Vec::new();
        for plugin in subscribed(&mut fan_out, event) {
            let current = merge.container().clone();
            let request = CreateContainerRequest { pod: Some(pod.clone()), container: Some(current.clone()) };
            let subject = Subject { pod: Some(pod), container: Some(&current) };
            let answer = plugin.call(event.into(), &request, subject, plugin.deadline()).await;
            let Some(answer) = continue_if_closed(&plugin, event, answer)?.flatten() else { continue };
            let CreateContainerResponse { adjust, update, evict } = answer;
            self.record_updates(&plugin, Some(event.into()), UpdateContainersRequest { update, evict });
            if let Some(adjust) = adjust {
                merge.apply(plugin.name(), adjust).map_err(|message| failed(&plugin, event, message))?;
            }
            asked.push(instance(&plugin));
        }
        let event = Event::ValidateContainerAdjustment;
        for plugin in subscribed(&mut fan_out, event) {
            let request = ValidateContainerAdjustmentRequest {
                pod: Some(pod.clone()),
                container: Some(container.clone()),
                adjust: Some(merge.adjustments().clone()),
                update: Vec::new(),
                owners: None,
                plugins: asked.clone(),
            };
            let subject = Subject { pod: Some(pod), container: Some(&container) };
            let answer = plugin.call(event.into(), &request, subject, plugin.deadline()).await;
            let verdict: ValidateContainerAdjustmentResponse =
                continue_if_closed(&plugin, event, answer)?.flatten().unwrap_or_default();
            if verdict.reject {
                return Err(failed(&plugin, event, format!("the adjustments are rejected: {}", verdict.reason)));
            }
        }
        Ok(merge.finish())
    }

    /// Announces that a container is created.
    pub(crate) async fn post_create_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let sent = Sent { event: Event::PostCreateContainer, pod, container: Some(container) };
        self.send(&mut *self.fan_out.lock().await, &sent).await
    }

    /// Announces that a container is about to start.
    pub(crate) async fn start_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        let sent = Sent { event: Event::StartContainer, pod, container: Some(container) };
        let sent = self.send(&mut fan_out, &sent).await;
        fan_out.announced.insert(container.id.clone(), Announced::Running);
        sent
    }

    /// Announces that a container has started.
    pub(crate) async fn post_start_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let sent = Sent { event: Event::PostStartContainer, pod, container: Some(container) };
        self.send(&mut *self.fan_out.lock().await, &sent).await
    }

    /// Announces that a container has stopped, unless that was done.
    pub(crate) async fn stop_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        self.send_stop(&mut fan_out, pod, container).await
    }

    /// Announces that a container is removed, and before that it has stopped, unless that was done.
    pub(crate) async fn remove_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let mut fan_out = self.fan_out.lock().await;
        if !fan_out.announced.contains_key(&container.id) {
            return Ok(());
        }
        let stopped = self.send_stop(&mut fan_out, pod, container).await;
        let sent = Sent { event: Event::RemoveContainer, pod, container: Some(container) };
        let removed = self.send(&mut fan_out, &sent).await;
        fan_out.announced.remove(&container.id);
        stopped.and(removed)
    }

    async fn send_stop(&self, fan_out: &mut FanOut, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let event = Event::StopContainer;
        if !needs_stop(fan_out, &container.id) {
            return Ok(());
        }
        fan_out.announced.insert(container.id.clone(), Announced::Stopped);
        let pod = &visible(self.config.version, pod.clone());
        for plugin in subscribed(fan_out, event) {
            let request = StopContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
            let subject = Subject { pod: Some(pod), container: Some(container) };
            let answer = plugin.call(event.into(), &request, subject, plugin.deadline()).await;
            let answer: StopContainerResponse =
                continue_if_closed(&plugin, event, answer)?.flatten().unwrap_or_default();
            let updates = UpdateContainersRequest { update: answer.update, evict: Vec::new() };
            self.record_updates(&plugin, Some(event.into()), updates);
        }
        Ok(())
    }

    /// Sends an event with an empty answer to all plugins that have subscribed to it.
    async fn send(&self, fan_out: &mut FanOut, sent: &Sent<'_>) -> Result<(), NriError> {
        let Sent { event, container, .. } = *sent;
        let mut pod = visible(self.config.version, sent.pod.clone());
        let stops = matches!(event, Event::StopPodSandbox | Event::RemovePodSandbox);
        if stops && !self.config.version.has_all_of_pods() {
            // The process of the sandbox, from which an older runtime reads them, is gone.
            pod.linux.iter_mut().for_each(|linux| linux.namespaces.clear());
        }
        for plugin in subscribed(fan_out, event) {
            let answer = plugin.send_event(event, Subject { pod: Some(&pod), container }).await;
            continue_if_closed(&plugin, event, answer)?;
        }
        Ok(())
    }
}

/// Forgets the plugins whose connection is closed; returns those that have subscribed to an event.
fn subscribed(fan_out: &mut FanOut, event: Event) -> Vec<std::sync::Arc<Plugin>> {
    fan_out.plugins.retain(|plugin| plugin.is_active());
    fan_out.plugins.iter().filter(|plugin| plugin.is_subscribed(event)).cloned().collect()
}

fn needs_stop(fan_out: &FanOut, id: &str) -> bool {
    matches!(fan_out.announced.get(id), Some(Announced::Created | Announced::Running))
}

/// A closed connection does not fail an operation: it goes on without the plugin. An error of the plugin does.
fn continue_if_closed<T>(plugin: &Plugin, event: Event, answer: Result<T, CallError>) -> Result<Option<T>, NriError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(CallError::Closed(reason)) => {
            tracing::warn!(
                plugin = plugin.name(),
                ?event,
                reason,
                "nri: plugin lost, the operation continues without it"
            );
            Ok(None)
        }
        Err(error @ CallError::Status { .. }) => Err(failed(plugin, event, error.to_string())),
    }
}

fn failed(plugin: &Plugin, event: Event, message: String) -> NriError {
    NriError { event: super::Call::Event(event).name(), plugin: plugin.name().to_owned(), message }
}

fn instance(plugin: &Plugin) -> PluginInstance {
    let (index, name) = plugin.name().split_once('-').unwrap_or_default();
    PluginInstance { name: name.to_owned(), index: index.to_owned() }
}
