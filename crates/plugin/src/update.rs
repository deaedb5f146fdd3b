//! Updates of metadata: what a driver learns of devices later goes to the containers that have them and, if the driver wants it,
//! in the same call to the API server, so that the two never disagree.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use drakkar_client::ClaimRef;
use futures::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use tokio::sync::watch;

use crate::driver::{Device, DraPlugin};
use crate::service::{ClaimError, Service};
use crate::status::DeviceStatus;
use crate::store::StoreError;

/// Updates the metadata that containers see of their devices, running containers included.
///
/// A network driver knows addresses only after the pod's sandbox exists: its NRI hook keeps an `Arc<dyn MetadataUpdater>`
/// ([`crate::Handles::metadata_updater`]).
pub trait MetadataUpdater: Send + Sync {
    /// Replaces the metadata of one request (`request` or `request/subrequest`) of a prepared claim with that of these
    /// devices, and returns the file's new generation. Only devices that were prepared for the request are allowed; the
    /// requests, CDI devices and share ids of the devices are ignored.
    ///
    /// Nothing happens before the result is awaited. With [`MetadataUpdate::and_report`] the same is reported to the API server.
    ///
    /// Do not call this from a driver's prepare or unprepare, nor from a task that these wait for: the claim is locked then, and
    /// the update would wait for itself. Where that is detected it is an error.
    fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a>;

    /// Closes the gate of one request of a prepared claim again: the driver has taken the device from the pod, and no container
    /// that references the request can be created before the next update. Containers that run keep what they have.
    ///
    /// For drivers with [`crate::DeferredMetadata::Gate`]. Does nothing by default, for updaters of tests.
    fn withdraw_request_metadata<'a>(
        &'a self,
        _claim: &'a ClaimRef,
        _request: &'a str,
    ) -> BoxFuture<'a, Result<(), UpdateError>> {
        std::future::ready(Ok(())).boxed()
    }
}

/// Why metadata was not updated. Containers still see the old content, unless the new content was written and only the CDI
/// spec of a gated request or the report to the API server failed; a retried update does what is missing.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UpdateError(Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Claim(ClaimError),
    #[error("the driver has stopped")]
    Stopped,
}

impl UpdateError {
    /// Returns whether there is nothing to update: the claim, or that request of it, is not prepared here with metadata.
    pub fn is_not_prepared(&self) -> bool {
        use StoreError::{NoSuchRequest, NotPrepared, OtherClaim};
        matches!(
            self.0,
            Failure::Claim(ClaimError::Store(NotPrepared { .. } | OtherClaim { .. } | NoSuchRequest { .. }))
        )
    }
}

/// Makes the future of an update, with or without reports.
type Run<'a> = Box<dyn FnOnce(Vec<Device>, Vec<DeviceStatus>) -> BoxFuture<'a, Result<i64, UpdateError>> + Send + 'a>;

/// An update that is done when it is awaited, and returns the new generation of the file.
#[must_use = "an update is done when it is awaited"]
pub struct MetadataUpdate<'a>(State<'a>);

enum State<'a> {
    Pending {
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
        run: Run<'a>,
    },
    Running(BoxFuture<'a, Result<i64, UpdateError>>),
    /// While the future is being made.
    Starting,
}

impl<'a> MetadataUpdate<'a> {
    /// Makes an update of these devices, for a [`MetadataUpdater`] of a test: the function gets the devices and the reports
    /// to make of them.
    pub fn new<F>(devices: Vec<Device>, run: impl FnOnce(Vec<Device>, Vec<DeviceStatus>) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<i64, UpdateError>> + Send + 'a,
    {
        let run: Run<'a> = Box::new(move |devices, reports| run(devices, reports).boxed());
        Self(State::Pending { devices, reports: Vec::new(), run })
    }

    /// Reports the same to the API server, in the claim's `status.devices`: network data as it is, attributes as
    /// `data.attributes` in the form that they have in the file, and the condition `Ready` with the reason `Configured`.
    ///
    /// The file is written first, and if that fails nothing is reported. The report is delivered as with
    /// [`crate::Handles::report_device_status`]. What the API server would refuse is refused before the file is touched.
    /// Devices that are not in the update keep what was reported of them.
    pub fn and_report(self) -> Self {
        self.and_report_with(|status| status)
    }

    /// Reports to the API server as [`Self::and_report`] does, after `adapt` has changed the report of each device.
    pub fn and_report_with(mut self, adapt: impl FnMut(DeviceStatus) -> DeviceStatus) -> Self {
        if let State::Pending { devices, reports, .. } = &mut self.0 {
            *reports = devices.iter().map(DeviceStatus::of_metadata).map(adapt).collect();
        }
        self
    }
}

impl Future for MetadataUpdate<'_> {
    type Output = Result<i64, UpdateError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.0, State::Pending { .. })
            && let State::Pending { devices, reports, run } = std::mem::replace(&mut self.0, State::Starting)
        {
            self.0 = State::Running(run(devices, reports));
        }
        match &mut self.0 {
            State::Running(future) => future.poll_unpin(context),
            // A panic while the future was made leaves this state; the panic has been reported.
            State::Pending { .. } | State::Starting => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for MetadataUpdate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataUpdate").finish_non_exhaustive()
    }
}

/// Updates claims: the service of a driver, whatever its type.
pub(crate) trait UpdateClaims: Send + Sync {
    fn update<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
    ) -> BoxFuture<'a, Result<i64, ClaimError>>;

    fn withdraw<'a>(&'a self, claim: &'a ClaimRef, request: &'a str) -> BoxFuture<'a, Result<(), ClaimError>>;
}

impl<P: DraPlugin> UpdateClaims for Service<P> {
    fn update<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
    ) -> BoxFuture<'a, Result<i64, ClaimError>> {
        let updated = Service::update(self, claim, request, devices, reports);
        updated.inspect_err(|error| self.record_error("update metadata", claim, error)).boxed()
    }

    fn withdraw<'a>(&'a self, claim: &'a ClaimRef, request: &'a str) -> BoxFuture<'a, Result<(), ClaimError>> {
        Service::withdraw(self, claim, request).boxed()
    }
}

/// The service of a driver that is starting, runs or has stopped. The driver itself may hold on to this, so it does not keep
/// the service alive.
type Running = Option<Weak<dyn UpdateClaims>>;

/// The updater of a driver. It exists before the driver does.
pub(crate) struct Updater(watch::Receiver<Running>);

/// Attaches the service to its [`Updater`].
pub(crate) struct UpdaterSlot(watch::Sender<Running>);

/// Makes an updater without a service: updates wait until there is one.
pub(crate) fn updater() -> (UpdaterSlot, Arc<Updater>) {
    let (sender, receiver) = watch::channel(None);
    (UpdaterSlot(sender), Arc::new(Updater(receiver)))
}

impl UpdaterSlot {
    pub(crate) fn attach<P: DraPlugin>(self, service: &Arc<Service<P>>) {
        let service: Arc<dyn UpdateClaims> = service.clone();
        self.0.send_replace(Some(Arc::downgrade(&service)));
    }
}

impl Updater {
    async fn service(&self) -> Result<Arc<dyn UpdateClaims>, UpdateError> {
        let mut running = self.0.clone();
        // Without a sender the start has failed, unless it has sent something before.
        let service = running.wait_for(Option::is_some).await.ok().and_then(|running| running.as_ref()?.upgrade());
        service.ok_or(UpdateError(Failure::Stopped))
    }
}

impl MetadataUpdater for Updater {
    fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a> {
        MetadataUpdate::new(devices, move |devices, reports| async move {
            let service = self.service().await?;
            let updated = service.update(claim, request, devices, reports).await;
            updated.map_err(|error| UpdateError(Failure::Claim(error)))
        })
    }

    fn withdraw_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
    ) -> BoxFuture<'a, Result<(), UpdateError>> {
        async move {
            let service = self.service().await?;
            service.withdraw(claim, request).await.map_err(|error| UpdateError(Failure::Claim(error)))
        }
        .boxed()
    }
}
