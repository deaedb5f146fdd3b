//! Calls the methods of a plugin, and encodes what they return.

use std::future::Future;
use std::sync::Arc;

use drakkar_nri_api::v1alpha1::{
    self, CreateContainerResponse, StopContainerResponse, UpdateContainerResponse, ValidateContainerAdjustmentResponse,
};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost::Message as _;

use crate::adjust::ContainerUpdate;
use crate::call::Call;
use crate::error::BoxError;
use crate::event::Events;
use crate::plugin::{NriPlugin, Verdict};
use crate::request::{EventRequest, Request};

/// What a handler returns.
#[derive(Debug)]
pub(crate) enum Answer {
    /// To `Configure`.
    Events(Events),
    /// To `Synchronize`.
    Updates(Vec<v1alpha1::ContainerUpdate>),
    /// To an event: the encoded message.
    Payload(Vec<u8>),
}

/// A plugin, whatever its type.
pub(crate) trait Handler: Send + Sync {
    fn handle(self: Arc<Self>, call: Call, request: Request) -> BoxFuture<'static, Result<Answer, BoxError>>;
}

impl<P: NriPlugin> Handler for P {
    fn handle(self: Arc<Self>, call: Call, request: Request) -> BoxFuture<'static, Result<Answer, BoxError>> {
        async move {
            match request {
                Request::Configure(configuration) => self.configure(&call, &configuration).await.map(Answer::Events),
                Request::Synchronize(pods, containers) => {
                    let updates = self.synchronize(&call, &pods, &containers).await?;
                    Ok(Answer::Updates(messages(updates)))
                }
                Request::Event(request) => event(&*self, &call, &request).await.map(Answer::Payload),
            }
        }
        .boxed()
    }
}

async fn event<P: NriPlugin>(plugin: &P, call: &Call, request: &EventRequest) -> Result<Vec<u8>, BoxError> {
    use EventRequest as R;
    match request {
        R::RunPodSandbox(pod) => empty(plugin.run_pod_sandbox(call, pod)).await,
        R::StopPodSandbox(pod) => end(plugin.stop_pod_sandbox(call, pod)).await,
        R::RemovePodSandbox(pod) => end(plugin.remove_pod_sandbox(call, pod)).await,
        R::UpdatePodSandbox { pod, overhead, resources } => {
            empty(plugin.update_pod_sandbox(call, pod, overhead, resources)).await
        }
        R::PostUpdatePodSandbox(pod) => empty(plugin.post_update_pod_sandbox(call, pod)).await,
        R::CreateContainer(pod, container) => {
            let adjustments = plugin.create_container(call, pod, container).await?;
            Ok(CreateContainerResponse::from(adjustments).encode_to_vec())
        }
        R::PostCreateContainer(pod, container) => empty(plugin.post_create_container(call, pod, container)).await,
        R::StartContainer(pod, container) => empty(plugin.start_container(call, pod, container)).await,
        R::PostStartContainer(pod, container) => empty(plugin.post_start_container(call, pod, container)).await,
        R::UpdateContainer { pod, container, resources } => {
            let updates = plugin.update_container(call, pod, container, resources).await?;
            Ok(UpdateContainerResponse::from(updates).encode_to_vec())
        }
        R::PostUpdateContainer(pod, container) => empty(plugin.post_update_container(call, pod, container)).await,
        R::StopContainer(pod, container) => {
            let update = messages(plugin.stop_container(call, pod, container).await?);
            Ok(StopContainerResponse { update }.encode_to_vec())
        }
        R::RemoveContainer(pod, container) => end(plugin.remove_container(call, pod, container)).await,
        R::Validate(request) => {
            let (reject, reason) = match plugin.validate_container_adjustment(call, request).await? {
                Verdict::Accept => (false, String::new()),
                Verdict::Reject(reason) => (true, reason),
            };
            Ok(ValidateContainerAdjustmentResponse { reject, reason }.encode_to_vec())
        }
    }
}

async fn empty(handler: impl Future<Output = Result<(), BoxError>>) -> Result<Vec<u8>, BoxError> {
    handler.await.map(|()| Vec::new())
}

async fn end(handler: impl Future<Output = ()>) -> Result<Vec<u8>, BoxError> {
    handler.await;
    Ok(Vec::new())
}

fn messages(updates: Vec<ContainerUpdate>) -> Vec<v1alpha1::ContainerUpdate> {
    updates.into_iter().map(Into::into).collect()
}
