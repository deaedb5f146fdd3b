//! Updates of containers that no event asked for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drakkar_nri_api::v1alpha1::{UpdateContainerResponse, UpdateContainersRequest, UpdateContainersResponse};
use prost::Message as _;

use crate::adjust::{ContainerUpdate, Updates};
use crate::counters::Metrics;
use crate::error::UpdateError;
use crate::session::Client;
use crate::status::{Code, Status};

/// The runtime's lock can be held by other plugins' handlers for a while.
const TIMEOUT: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// Set in the task of a handler.
    pub(crate) static IN_HANDLER: ();
}

/// Updates containers outside of an event.
#[derive(Debug, Clone)]
pub struct Updater {
    client: Arc<Mutex<Option<Client>>>,
    metrics: Arc<Metrics>,
}

impl Updater {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { client: Arc::default(), metrics }
    }

    /// Asks the runtime to update containers, and returns the updates that failed.
    ///
    /// Not in a handler, where it is refused: the runtime holds its lock while it waits for the handler.
    pub async fn update_containers(&self, updates: Updates) -> Result<Vec<ContainerUpdate>, UpdateError> {
        if IN_HANDLER.try_with(|()| ()).is_ok() {
            return Err(UpdateError::InHandler);
        }
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let client = client.ok_or(UpdateError::NotConnected)?;
        self.metrics.updates.increment();
        let UpdateContainerResponse { update, evict } = updates.into();
        let request = UpdateContainersRequest { update, evict };
        let call = client.call("UpdateContainers", &request, TIMEOUT);
        let payload = tokio::time::timeout(TIMEOUT, call).await.map_err(|_elapsed| UpdateError::Timeout(TIMEOUT))??;
        let response = UpdateContainersResponse::decode(payload).map_err(|error| {
            UpdateError::Refused(Status::new(Code::INTERNAL, format!("its answer cannot be decoded: {error}")))
        })?;
        Ok(response.failed.into_iter().map(Into::into).collect())
    }

    /// Sets the connection that updates go through.
    pub(crate) fn set(&self, client: Option<Client>) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
    }
}
