//! A handle to a pod on a node.

use std::process::Output;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, ListParams};

use super::wait::{TimedOut, wait_until};
use super::{Node, NodeError};
use crate::nri::Sandbox;
use crate::runner::{ContainerInfo, State};

/// How long a pod may take to reach the state that is waited for.
pub(super) const POD_TIMEOUT: Duration = Duration::from_secs(60);

/// A handle to a pod on a node.
#[derive(Debug, Clone)]
pub struct PodHandle<'a> {
    pub(super) node: &'a Node,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) timeout: Duration,
}

/// A claim of a pod, with its allocated devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedClaim {
    /// The claim's name.
    pub name: String,
    /// Pairs of a request and a device.
    pub devices: Vec<(String, String)>,
}

impl PodHandle<'_> {
    /// Returns the pod's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pod's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns a handle whose waits end after this timeout instead of a minute.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Returns the object as the API server has it now, if it still exists.
    pub async fn object(&self) -> Result<Option<Pod>, NodeError> {
        let found =
            self.api().get_opt(&self.name).await.map_err(NodeError::request(format!("get pod {}", self.name)))?;
        Ok(found.filter(|pod| self.is_same(pod)))
    }

    /// Waits until the pod is bound to the node, and so its claims are allocated, and returns them.
    pub async fn allocated(&self) -> Result<Vec<AllocatedClaim>, NodeError> {
        let is_bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        self.wait_until("bound", |pod| pod.is_some_and(is_bound)).await?;
        let claims: Api<ResourceClaim> = Api::namespaced(self.node.client(), &self.namespace);
        let mut allocated = Vec::new();
        for name in self.object().await?.map(|pod| claim_names(&pod)).unwrap_or_default() {
            let claim = claims.get(&name).await.map_err(NodeError::request(format!("get resourceclaim {name}")))?;
            let allocation =
                claim.status.and_then(|status| status.allocation).and_then(|allocation| allocation.devices);
            let results = allocation.and_then(|devices| devices.results).unwrap_or_default();
            let devices = results.into_iter().map(|result| (result.request, result.device)).collect();
            allocated.push(AllocatedClaim { name, devices });
        }
        Ok(allocated)
    }

    /// Waits until all containers of the pod run.
    pub async fn running(&self) -> Result<&Self, NodeError> {
        let started = Instant::now();
        // A pod that has ended will not run again.
        self.wait_until("running", |pod| pod.is_some_and(|pod| is_running(pod) || is_over(pod))).await?;
        match self.object().await? {
            Some(pod) if is_running(&pod) => Ok(self),
            pod => {
                let state = self.describe(pod).await;
                let pod = self.full_name();
                Err(NodeError::Pod { pod, expected: "running", waited: started.elapsed(), state })
            }
        }
    }

    /// Waits until the pod has succeeded or failed, and returns its phase.
    pub async fn finished(&self) -> Result<String, NodeError> {
        self.wait_until("finished", |pod| pod.is_some_and(is_over)).await?;
        Ok(self.object().await?.as_ref().map(phase).unwrap_or_default().to_owned())
    }

    /// Waits until the pod does not exist any longer.
    pub async fn gone(&self) -> Result<(), NodeError> {
        self.wait_until("gone", |pod| pod.is_none()).await.map(drop)
    }

    /// Deletes the pod and waits until it is gone: containers stopped, claims unprepared.
    pub async fn delete(&self) -> Result<(), NodeError> {
        self.start_deletion().await?;
        self.gone().await
    }

    /// Deletes the pod without waiting.
    pub async fn start_deletion(&self) -> Result<(), NodeError> {
        match self.api().delete(&self.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            deleted => deleted.map(drop).map_err(NodeError::request(format!("delete pod {}", self.name))),
        }
    }

    /// Runs a command in one of the pod's containers.
    pub async fn exec<S: AsRef<str>>(
        &self,
        container: &str,
        command: impl IntoIterator<Item = S>,
    ) -> Result<Output, NodeError> {
        let command: Vec<String> = command.into_iter().map(|part| part.as_ref().to_owned()).collect();
        let running = |info: &ContainerInfo| matches!(info.state, State::Running { .. });
        let container = self.container(container, running)?;
        Ok(self.node.runner.exec(&container.id, &command).await?)
    }

    /// Returns the output of a container.
    pub fn logs(&self, container: &str) -> Result<String, NodeError> {
        let container = self.container(container, |_| true)?;
        let logs = self.node.runner.logs(&container.id).map_err(NodeError::Directory)?;
        Ok(String::from_utf8_lossy(&logs).into_owned())
    }

    /// Returns the sandbox in which the pod's containers run; only on a node with [NRI](crate::nri).
    pub fn sandbox(&self) -> Option<Sandbox> {
        let sandboxes = self.node.nri().ok()?.sandboxes();
        sandboxes.into_iter().find(|sandbox| sandbox.pod_uid == self.uid && sandbox.is_ready)
    }

    /// Returns the process id of a running container.
    pub fn process(&self, container: &str) -> Option<u32> {
        let running = |info: &ContainerInfo| matches!(info.state, State::Running { .. });
        match self.container(container, running).ok()?.state {
            State::Running { pid } => Some(pid),
            State::Exited(_) => None,
        }
    }

    /// Returns the pod's events as `reason: message`, the oldest first.
    pub async fn events(&self) -> Result<Vec<String>, NodeError> {
        let events: Api<Event> = Api::namespaced(self.node.client(), &self.namespace);
        let all = events.list(&ListParams::default()).await.map_err(NodeError::request("list events"))?;
        let own = all.items.into_iter().filter(|event| event.involved_object.uid.as_deref() == Some(&self.uid));
        Ok(own.map(|event| format!("{}: {}", text(event.reason), text(event.message))).collect())
    }

    fn container(&self, name: &str, which: impl Fn(&ContainerInfo) -> bool) -> Result<ContainerInfo, NodeError> {
        let all = self.node.runner.list(&self.uid);
        // The newest, if the container was restarted.
        let found = all.into_iter().filter(|info| info.name == name && which(info)).max_by_key(|info| info.started);
        found.ok_or_else(|| NodeError::NoContainer { pod: self.full_name(), container: name.to_owned() })
    }

    async fn wait_until(
        &self,
        expected: &'static str,
        condition: impl Fn(Option<&Pod>) -> bool,
    ) -> Result<&Self, NodeError> {
        let own = |pod: Option<&Pod>| condition(pod.filter(|pod| self.is_same(pod)));
        match wait_until(&self.api(), &self.name, self.timeout, own).await {
            Ok(_) => Ok(self),
            Err(TimedOut { last, waited }) => {
                // A short timeout can expire before the first answer.
                let last = if last.is_some() { last } else { self.object().await.ok().flatten() };
                let state = self.describe(last.filter(|pod| self.is_same(pod))).await;
                Err(NodeError::Pod { pod: self.full_name(), expected, waited, state })
            }
        }
    }

    /// Describes the pod's state, for error messages.
    async fn describe(&self, pod: Option<Pod>) -> String {
        let Some(status) = pod.map(|pod| pod.status.unwrap_or_default()) else { return "no such pod".to_owned() };
        let mut parts = vec![format!("phase {}", status.phase.as_deref().unwrap_or("none"))];
        for condition in status.conditions.into_iter().flatten().filter(|condition| condition.status != "True") {
            let message = condition.message.filter(|message| !message.is_empty());
            let message = message.map(|message| format!(": {message}")).unwrap_or_default();
            parts.push(format!("{} is {}{message}", condition.type_, condition.status));
        }
        for container in status.container_statuses.into_iter().flatten() {
            let state = container.state.unwrap_or_default();
            if let Some(waiting) = state.waiting {
                parts.push(format!("container {}: {} {}", container.name, text(waiting.reason), text(waiting.message)));
            }
            if let Some(ended) = state.terminated {
                parts.push(format!("container {}: exit code {}", container.name, ended.exit_code));
            }
        }
        parts.extend(self.events().await.unwrap_or_else(|error| vec![error.to_string()]));
        parts.join("; ")
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.node.client(), &self.namespace)
    }

    fn is_same(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_deref() == Some(&self.uid)
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn is_running(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let runs = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    phase(pod) == "Running" && containers.is_some_and(|all| all.iter().all(runs))
}

/// Returns the names of a pod's claims, including generated ones.
fn claim_names(pod: &Pod) -> Vec<String> {
    let made = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let claims = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
    let name = |claim: &PodResourceClaim| {
        let of_template = || made.iter().find(|made| made.name == claim.name)?.resource_claim_name.clone();
        claim.resource_claim_name.clone().or_else(of_template)
    };
    claims.iter().filter_map(name).collect()
}

fn text(text: Option<String>) -> String {
    text.unwrap_or_default()
}
