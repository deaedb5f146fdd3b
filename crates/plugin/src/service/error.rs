//! The errors of preparing, unpreparing and updating a claim, with the outcome under which the metrics count each.

use std::sync::Arc;
use std::time::Duration;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::NameError;
use drakkar_metadata::show::Printable;
use drakkar_slices::LookupError;

use super::driver_response::DriverResponseError;
use crate::claims::FetchError;
use crate::disk::DiskError;
use crate::error::{BoxError, Panicked};
use crate::ledger::Conflict;
use crate::lock::LockError;
use crate::metrics::Outcome;
use crate::status::ReportError;
use crate::store::StoreError;

/// An error while handling one claim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// A name in the call is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The claim cannot be fetched, or is not ready to be prepared.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The claim's annotation is not a valid path component.
    #[error("annotation resource.kubernetes.io/pod-claim-name: {0}")]
    PodClaim(#[source] NameError),
    /// The claim cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another claim holds a device.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Another claim holds a device, and the conflict could not be resolved.
    #[error("{conflict}; {source}")]
    Holder { conflict: Box<Conflict>, source: Arc<HolderError> },
    /// The claim holds devices of an earlier allocation.
    #[error(
        "the devices that were prepared for claim {claim} are no longer allocated to it, and could not be unprepared: {source}"
    )]
    OldAllocation { claim: Box<ClaimRef>, source: Box<ClaimError> },
    /// Another call keeps the claim or the driver locked.
    #[error(
        "claim {claim}: timed out after {} s waiting for another call, which holds the claim's lock or the driver call lock",
        .waited.as_secs()
    )]
    LockTimeout { claim: Box<ClaimRef>, waited: Duration },
    /// An update from within a driver call, where it would deadlock.
    #[error(
        "claim {claim}: its metadata cannot be updated from within a prepare or unprepare: return the metadata with the \
         device, or update later"
    )]
    UpdateInCall { claim: Box<ClaimRef> },
    /// The driver failed.
    #[error("{}", Printable::whole(chain(.0.as_ref())))]
    Driver(#[source] BoxError),
    /// The driver's response is invalid.
    #[error(transparent)]
    DriverResponse(#[from] DriverResponseError),
    /// The published attributes of a device cannot be looked up.
    #[error(transparent)]
    Published(#[from] LookupError),
    /// The metadata cannot be written or removed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The status report of an update is invalid or cannot be queued.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// File work did not complete.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The whole call failed, with all its claims.
    #[error(transparent)]
    Batch(#[from] Arc<ClaimError>),
}

impl ClaimError {
    pub(super) fn driver(error: BoxError) -> Self {
        Self::Driver(error)
    }

    /// Returns the outcome that the metrics count.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Name(_) | Self::PodClaim(_) => Outcome::Invalid,
            Self::Fetch(FetchError::NotFound { .. }) => Outcome::NotFound,
            Self::Fetch(FetchError::WrongUid { .. }) => Outcome::WrongUid,
            Self::Fetch(FetchError::NotAllocated { .. } | FetchError::NothingForDriver { .. }) => Outcome::NotAllocated,
            Self::Fetch(FetchError::Api { .. }) => Outcome::Api,
            Self::Lock(_) | Self::LockTimeout { .. } | Self::UpdateInCall { .. } => Outcome::Lock,
            Self::Conflict(_) | Self::Holder { .. } => Outcome::Conflict,
            Self::OldAllocation { source, .. } => source.outcome(),
            Self::Driver(error) if error.is::<Panicked>() => Outcome::Panic,
            Self::Driver(_) => Outcome::Driver,
            Self::DriverResponse(_) => Outcome::Result,
            Self::Published(_) | Self::Store(_) | Self::Report(_) | Self::Disk(_) => Outcome::Metadata,
            Self::Batch(error) => error.outcome(),
        }
    }
}

/// Why a device could not be taken from a claim that may be gone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HolderError {
    /// The API server could not be asked.
    #[error("whether that claim is gone could not be checked: {0}")]
    Fetch(#[source] FetchError),
    /// The API server did not respond in time.
    #[error(
        "whether that claim is gone could not be checked: no answer from the API server within {} s",
        .waited.as_secs()
    )]
    FetchTimeout { waited: Duration },
    /// The claim could not be unprepared.
    #[error("that claim is gone, but could not be unprepared: {0}")]
    Unprepare(#[source] Box<ClaimError>),
}

/// Formats an error with its causes. A cause whose text is already part of the message is not repeated.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
