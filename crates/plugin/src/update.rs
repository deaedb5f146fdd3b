//! One call, two directions: what is known of devices goes to the containers that have them and, if the driver likes, to
//! the API server, so that the two never disagree.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};

use crate::driver::{Device, DraPlugin};
use crate::service::{ClaimError, Service};
use crate::status::DeviceStatus;
use crate::store::StoreError;
use drakkar_client::ClaimRef;

/// Updates what containers see of their devices, also those that run.
///
/// A network driver knows addresses only after the pod's sandbox is there: it keeps an `Arc<dyn MetadataUpdater>` where
/// its NRI hook finds it.
pub trait MetadataUpdater: Send + Sync {
    /// Replaces the metadata of one request (`request` or `request/subrequest`) of a prepared claim by what is known of
    /// these devices, and gives the file's new generation. Only devices that were prepared for the request can be told
    /// of; requests, CDI devices and share ids of the devices do not matter here.
    ///
    /// Nothing is done before the result is awaited. With [`MetadataUpdate::and_report`] the API server is told as well.
    ///
    /// Not for a driver's prepare or unprepare, nor for a task that these wait for: claims are locked then, and it could wait
    /// for itself. Where that can be told it is an error.
    fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a>;
}

/// Why metadata was not updated. Containers see what they saw before, unless the new content is there and only the CDI spec
/// that a gate held back could not be written, or the API server could not be told; an update that is tried again does
/// what is missing.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UpdateError(ClaimError);

impl UpdateError {
    /// Whether there is nothing to update: the claim, or the request of it, is not prepared here with metadata.
    pub fn is_not_prepared(&self) -> bool {
        use StoreError::{NoSuchRequest, NotPrepared, OtherClaim};
        matches!(self.0, ClaimError::Store(NotPrepared { .. } | OtherClaim { .. } | NoSuchRequest { .. }))
    }
}

/// Does an update, with or without reports.
type Run<'a> = Box<dyn FnOnce(Vec<Device>, Vec<DeviceStatus>) -> BoxFuture<'a, Result<i64, UpdateError>> + Send + 'a>;

/// An update that is done when it is awaited, and gives the new generation of the file.
#[must_use = "an update is done when it is awaited"]
pub struct MetadataUpdate<'a>(State<'a>);

enum State<'a> {
    Asked {
        devices: Vec<Device>,
        reports: Vec<DeviceStatus>,
        run: Run<'a>,
    },
    Running(BoxFuture<'a, Result<i64, UpdateError>>),
    /// Only while the future of what was asked for is being made.
    Between,
}

impl<'a> MetadataUpdate<'a> {
    /// An update of these devices, for a [`MetadataUpdater`] of a test: the function gets the devices, and what is to be
    /// reported of them.
    pub fn new<F>(devices: Vec<Device>, run: impl FnOnce(Vec<Device>, Vec<DeviceStatus>) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<i64, UpdateError>> + Send + 'a,
    {
        let run: Run<'a> = Box::new(move |devices, reports| run(devices, reports).boxed());
        Self(State::Asked { devices, reports: Vec::new(), run })
    }

    /// Tells the API server the same, in the claim's `status.devices`: network data as it is, attributes as
    /// `data.attributes` in the form that they have in the file, and that the device is `Ready`, with the reason `Configured`.
    ///
    /// The file goes first, and where it cannot be written nothing is reported. The report is then on its way as with
    /// [`crate::Helper::report_device_status`]. What the API server would refuse is refused before the file is touched.
    /// Devices that the update leaves out keep what was reported of them.
    pub fn and_report(self) -> Self {
        self.and_report_with(|status| status)
    }

    /// The same, with what the driver makes of each device's report.
    pub fn and_report_with(mut self, adapt: impl FnMut(DeviceStatus) -> DeviceStatus) -> Self {
        if let State::Asked { devices, reports, .. } = &mut self.0 {
            *reports = devices.iter().map(DeviceStatus::of_metadata).map(adapt).collect();
        }
        self
    }
}

impl Future for MetadataUpdate<'_> {
    type Output = Result<i64, UpdateError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.0, State::Asked { .. })
            && let State::Asked { devices, reports, run } = std::mem::replace(&mut self.0, State::Between)
        {
            self.0 = State::Running(run(devices, reports));
        }
        match &mut self.0 {
            State::Running(future) => future.poll_unpin(context),
            // Left here by a panic in what makes the future, which has told of itself.
            State::Asked { .. } | State::Between => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for MetadataUpdate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataUpdate").finish_non_exhaustive()
    }
}

/// The updater of a running driver.
pub(crate) struct Updater<P>(pub(crate) Arc<Service<P>>);

impl<P: DraPlugin> MetadataUpdater for Updater<P> {
    fn update_request_metadata<'a>(
        &'a self,
        claim: &'a ClaimRef,
        request: &'a str,
        devices: Vec<Device>,
    ) -> MetadataUpdate<'a> {
        MetadataUpdate::new(devices, move |devices, reports| async move {
            self.0.update(claim, request, devices, reports).await.map_err(UpdateError)
        })
    }
}
