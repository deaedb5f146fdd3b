//! What a driver works with while it runs. It is given to the driver when the driver is made.

use std::sync::Arc;

use drakkar_client::ClaimRef;
use drakkar_slices::{DriverResources, PublishError, ResourcePublisher};
use tokio::sync::watch;

use crate::driver::Device;
use crate::metrics::Metrics;
use crate::status::{DeviceStatus, ReportError, StatusReporter};
use crate::update::{MetadataUpdate, MetadataUpdater, UpdateError};

/// What a driver publishes, reports and updates with. Cheap to clone, for tasks and threads of the driver's own.
///
/// The handles exist before the driver does ([`crate::PluginBuilder::start_with`]), and nothing that is said with them early is
/// lost: resources are published and status is reported once the driver serves, and an update of metadata waits until then.
#[derive(Clone)]
pub struct Handles {
    pub(crate) publisher: ResourcePublisher,
    pub(crate) status: StatusReporter,
    pub(crate) metadata: Arc<dyn MetadataUpdater>,
    pub(crate) metrics: Metrics,
    pub(crate) node_name: Option<String>,
    /// Why the driver is not ready.
    pub(crate) not_ready: Arc<watch::Sender<Option<String>>>,
}

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handles").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

impl Handles {
    /// Returns the name of the node, if it is known: the usual name of the pool of a node's devices.
    pub fn node_name(&self) -> Option<&str> {
        self.node_name.as_deref()
    }

    /// Publishes these resources in place of those published before; see [`ResourcePublisher::publish`].
    pub fn publish_resources(&self, resources: DriverResources) -> Result<(), PublishError> {
        self.publisher.publish(resources)
    }

    /// Reports devices of a claim to the API server, in the claim's `status.devices` (KEP-4817). Each report replaces what this
    /// driver reported of that device before; devices that are not in it keep what was reported.
    ///
    /// The reports are checked and queued, and delivered in the background, with retries while the API server is away: for
    /// 10 minutes, or [as set](crate::PluginBuilder::status_timeout). Of several pending reports of a device the last is
    /// delivered. If the claim is deleted, replaced, deallocated or unprepared meanwhile they are dropped. Any other reason why
    /// they are not delivered reaches [`crate::DraPlugin::handle_error`]; for a missing permission, with the RBAC rule to add.
    pub fn report_device_status(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = DeviceStatus>,
    ) -> Result<(), ReportError> {
        self.status.report_device_status(claim, devices)
    }

    /// Replaces the metadata that containers see of one request; see [`MetadataUpdater::update_request_metadata`].
    pub fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a> {
        self.metadata.update_request_metadata(claim, request, devices)
    }

    /// Closes the gate of one request again; see [`MetadataUpdater::withdraw_request_metadata`].
    pub async fn withdraw_request_metadata(&self, claim: &ClaimRef, request: &str) -> Result<(), UpdateError> {
        self.metadata.withdraw_request_metadata(claim, request).await
    }

    /// Returns the publisher alone, which also has the status of publishing.
    pub fn publisher(&self) -> ResourcePublisher {
        self.publisher.clone()
    }

    /// Returns the status reporter alone.
    pub fn status_reporter(&self) -> StatusReporter {
        self.status.clone()
    }

    /// Returns the metadata updater alone, as a trait object that a test can replace.
    pub fn metadata_updater(&self) -> Arc<dyn MetadataUpdater> {
        self.metadata.clone()
    }

    /// Makes `/readyz` of the HTTP endpoint fail for a reason of the driver's own, until it is called with `None`. The reason is
    /// public, so it must not name claims. A driver is ready at the start.
    pub fn set_not_ready(&self, reason: Option<String>) {
        self.not_ready.send_replace(reason);
    }

    /// Adds metrics of the driver's own to those that the HTTP endpoint serves.
    pub fn register_metrics(&self, register: impl FnOnce(&mut prometheus_client::registry::Registry)) {
        self.metrics.with_registry(register);
    }
}
