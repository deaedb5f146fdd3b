//! The calls of a runtime, in one shape: an event is the same whether it came as a method of its own or as `StateChange`.

use drakkar_nri_api::v1alpha1::{
    Container, CreateContainerRequest, LinuxResources, PodSandbox, RunPodSandboxRequest, StateChangeEvent,
    UpdateContainerRequest, UpdatePodSandboxRequest, ValidateContainerAdjustmentRequest,
};
use prost::Message;
use prost::bytes::Bytes;

use crate::event::Event;
use crate::plugin::Configuration;
use crate::pod::PodSandboxExt;
use crate::status::{Code, Status};

/// A call that a handler answers.
#[derive(Debug)]
pub(crate) enum Request {
    Configure(Box<Configuration>),
    Synchronize(Vec<PodSandbox>, Vec<Container>),
    Event(Box<EventRequest>),
}

/// An event.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is always boxed")]
pub(crate) enum EventRequest {
    RunPodSandbox(PodSandbox),
    StopPodSandbox(PodSandbox),
    RemovePodSandbox(PodSandbox),
    UpdatePodSandbox { pod: PodSandbox, overhead: LinuxResources, resources: LinuxResources },
    PostUpdatePodSandbox(PodSandbox),
    CreateContainer(PodSandbox, Container),
    PostCreateContainer(PodSandbox, Container),
    StartContainer(PodSandbox, Container),
    PostStartContainer(PodSandbox, Container),
    UpdateContainer { pod: PodSandbox, container: Container, resources: LinuxResources },
    PostUpdateContainer(PodSandbox, Container),
    StopContainer(PodSandbox, Container),
    RemoveContainer(PodSandbox, Container),
    Validate(Box<ValidateContainerAdjustmentRequest>),
}

impl Request {
    /// Returns the event, if it is one.
    pub(crate) fn event(&self) -> Option<Event> {
        match self {
            Self::Event(request) => Some(request.event()),
            Self::Configure(_) | Self::Synchronize(..) => None,
        }
    }

    /// Returns what it is about, for messages: `RunPodSandbox of pod default/train`.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Configure(_) => "Configure".to_owned(),
            Self::Synchronize(pods, containers) => {
                format!("Synchronize with {} pods and {} containers", pods.len(), containers.len())
            }
            Self::Event(request) => request.subject(),
        }
    }
}

impl EventRequest {
    /// Decodes the payload of a method that is an event.
    pub(crate) fn decode(event: Event, payload: Bytes) -> Result<Self, Status> {
        // Messages with the same fields differ in nothing but their names.
        match event {
            Event::RunPodSandbox | Event::StopPodSandbox | Event::RemovePodSandbox | Event::PostUpdatePodSandbox => {
                let RunPodSandboxRequest { pod } = message(event.name(), payload)?;
                Self::of_pod(event, pod)
            }
            Event::UpdatePodSandbox => {
                let UpdatePodSandboxRequest { pod, overhead_linux_resources, linux_resources } =
                    message(event.name(), payload)?;
                Ok(Self::UpdatePodSandbox {
                    pod: required(event, "pod", pod)?,
                    overhead: overhead_linux_resources.unwrap_or_default(),
                    resources: linux_resources.unwrap_or_default(),
                })
            }
            Event::UpdateContainer => {
                let UpdateContainerRequest { pod, container, linux_resources } = message(event.name(), payload)?;
                Ok(Self::UpdateContainer {
                    pod: pod.unwrap_or_default(),
                    container: required(event, "container", container)?,
                    resources: linux_resources.unwrap_or_default(),
                })
            }
            Event::ValidateContainerAdjustment => {
                message(event.name(), payload).map(|request| Self::Validate(Box::new(request)))
            }
            Event::CreateContainer
            | Event::PostCreateContainer
            | Event::StartContainer
            | Event::PostStartContainer
            | Event::PostUpdateContainer
            | Event::StopContainer
            | Event::RemoveContainer => {
                let CreateContainerRequest { pod, container } = message(event.name(), payload)?;
                Self::of_container(event, pod, container)
            }
        }
    }

    /// Decodes the payload of `StateChange`.
    pub(crate) fn decode_state_change(payload: Bytes) -> Result<Self, Status> {
        let StateChangeEvent { event: number, pod, container } = message("StateChange", payload)?;
        let event = Event::from_number(number).filter(|event| event.is_state_change()).ok_or_else(|| {
            Status::new(Code::INVALID_ARGUMENT, format!("StateChange with event {number}, which is no state change"))
        })?;
        if let Some(container) = container {
            return Self::of_container(event, pod, Some(container));
        }
        Self::of_pod(event, pod)
    }

    fn of_pod(event: Event, pod: Option<PodSandbox>) -> Result<Self, Status> {
        let wrap = match event {
            Event::RunPodSandbox => Self::RunPodSandbox,
            Event::StopPodSandbox => Self::StopPodSandbox,
            Event::RemovePodSandbox => Self::RemovePodSandbox,
            Event::PostUpdatePodSandbox => Self::PostUpdatePodSandbox,
            _ => return Err(missing(event, "container")),
        };
        required(event, "pod", pod).map(wrap)
    }

    fn of_container(event: Event, pod: Option<PodSandbox>, container: Option<Container>) -> Result<Self, Status> {
        let wrap = match event {
            Event::CreateContainer => Self::CreateContainer,
            Event::PostCreateContainer => Self::PostCreateContainer,
            Event::StartContainer => Self::StartContainer,
            Event::PostStartContainer => Self::PostStartContainer,
            Event::PostUpdateContainer => Self::PostUpdateContainer,
            Event::StopContainer => Self::StopContainer,
            Event::RemoveContainer => Self::RemoveContainer,
            // An event of a pod, with a container that nobody asked for.
            _ => return Self::of_pod(event, pod),
        };
        Ok(wrap(pod.unwrap_or_default(), required(event, "container", container)?))
    }

    pub(crate) fn event(&self) -> Event {
        match self {
            Self::RunPodSandbox(_) => Event::RunPodSandbox,
            Self::StopPodSandbox(_) => Event::StopPodSandbox,
            Self::RemovePodSandbox(_) => Event::RemovePodSandbox,
            Self::UpdatePodSandbox { .. } => Event::UpdatePodSandbox,
            Self::PostUpdatePodSandbox(_) => Event::PostUpdatePodSandbox,
            Self::CreateContainer(..) => Event::CreateContainer,
            Self::PostCreateContainer(..) => Event::PostCreateContainer,
            Self::StartContainer(..) => Event::StartContainer,
            Self::PostStartContainer(..) => Event::PostStartContainer,
            Self::UpdateContainer { .. } => Event::UpdateContainer,
            Self::PostUpdateContainer(..) => Event::PostUpdateContainer,
            Self::StopContainer(..) => Event::StopContainer,
            Self::RemoveContainer(..) => Event::RemoveContainer,
            Self::Validate(_) => Event::ValidateContainerAdjustment,
        }
    }

    fn subject(&self) -> String {
        let event = self.event();
        let (pod, container) = match self {
            Self::RunPodSandbox(pod)
            | Self::StopPodSandbox(pod)
            | Self::RemovePodSandbox(pod)
            | Self::UpdatePodSandbox { pod, .. }
            | Self::PostUpdatePodSandbox(pod) => (Some(pod), None),
            Self::CreateContainer(pod, container)
            | Self::PostCreateContainer(pod, container)
            | Self::StartContainer(pod, container)
            | Self::PostStartContainer(pod, container)
            | Self::UpdateContainer { pod, container, .. }
            | Self::PostUpdateContainer(pod, container)
            | Self::StopContainer(pod, container)
            | Self::RemoveContainer(pod, container) => (Some(pod), Some(container)),
            Self::Validate(request) => (request.pod.as_ref(), request.container.as_ref()),
        };
        let pod = pod.map(PodSandboxExt::pod_name).unwrap_or_default();
        match container {
            Some(container) => format!("{event} of container {} of pod {pod}", container.name),
            None => format!("{event} of pod {pod}"),
        }
    }
}

/// Decodes the payload of a method.
pub(crate) fn message<M: Message + Default>(method: &str, payload: Bytes) -> Result<M, Status> {
    M::decode(payload).map_err(|error| {
        Status::new(Code::INVALID_ARGUMENT, format!("the request of {method} cannot be decoded: {error}"))
    })
}

fn required<T>(event: Event, field: &str, value: Option<T>) -> Result<T, Status> {
    value.ok_or_else(|| missing(event, field))
}

fn missing(event: Event, field: &str) -> Status {
    Status::new(Code::INVALID_ARGUMENT, format!("{event} without a {field}"))
}
