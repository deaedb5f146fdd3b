//! The seam to the framework: metadata files, which open the gate, and device status.

use std::fmt;
use std::pin::Pin;

use drakkar_plugin::{BoxError, ClaimRef, Device, DeviceStatus, Handles};

use crate::metadata::reason;

/// The outcome of a report, later.
pub(crate) type Report<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

/// Writes what containers and the API server see of a claim.
pub(crate) trait Reports: fmt::Debug + Send + Sync + 'static {
    /// Writes the metadata of a request, which lets containers start, and reports the devices as ready in a pod.
    fn publish<'a>(&'a self, claim: &'a ClaimRef, request: &'a str, devices: Vec<Device>, pod: &'a str) -> Report<'a>;

    /// Takes the metadata of a request back: no container starts until it is published again.
    fn withdraw<'a>(&'a self, claim: &'a ClaimRef, request: &'a str) -> Report<'a>;

    /// Reports the status of devices.
    fn report(&self, claim: &ClaimRef, statuses: Vec<DeviceStatus>);
}

impl Reports for Handles {
    fn publish<'a>(&'a self, claim: &'a ClaimRef, request: &'a str, devices: Vec<Device>, pod: &'a str) -> Report<'a> {
        let update = self.update_request_metadata(claim, request, devices).and_report_with(|status| {
            let name = status.network_data.as_ref().map(|data| data.interface_name.as_str());
            let message = format!("interface {} of pod {pod}", name.unwrap_or_default());
            status.ready(reason::ATTACHED, message)
        });
        Box::pin(async move {
            update.await?;
            Ok(())
        })
    }

    fn withdraw<'a>(&'a self, claim: &'a ClaimRef, request: &'a str) -> Report<'a> {
        Box::pin(async move {
            match self.withdraw_request_metadata(claim, request).await {
                // There is nothing that a container could use.
                Err(error) if error.is_not_prepared() => Ok(()),
                outcome => Ok(outcome?),
            }
        })
    }

    fn report(&self, claim: &ClaimRef, statuses: Vec<DeviceStatus>) {
        if let Err(error) = self.report_device_status(claim, statuses) {
            tracing::warn!(%claim, %error, "device status not reported");
        }
    }
}
