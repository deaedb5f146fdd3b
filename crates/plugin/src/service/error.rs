//! Why a claim could not be prepared or unprepared: what the kubelet is told, and what the metrics count.

use std::sync::Arc;
use std::time::Duration;

use drakkar_metadata::name::NameError;
use drakkar_metadata::show::Printable;

use super::answer::AnswerError;
use crate::claims::FetchError;
use crate::disk::DiskError;
use crate::driver::{BoxError, Panicked};
use crate::ledger::Conflict;
use crate::lock::LockError;
use crate::metrics::Outcome;
use crate::status::ReportError;
use crate::store::StoreError;
use drakkar_client::ClaimRef;
use drakkar_slices::LookupError;

/// Why one claim failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// A name in the call is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The claim cannot be had, or is not fit to be prepared.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The claim's annotation cannot be part of a path.
    #[error("annotation resource.kubernetes.io/pod-claim-name: {0}")]
    PodClaim(#[source] NameError),
    /// The claim cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another claim has a device.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// Another claim has a device, and could not be made to release it.
    #[error("{conflict}; {refusal}")]
    Holder {
        conflict: Box<Conflict>,
        #[source]
        refusal: Arc<Refusal>,
    },
    /// A claim has devices of an earlier allocation.
    #[error(
        "the devices that were prepared for claim {claim} are not allocated to it any more, and could not be unprepared: {source}"
    )]
    OldAllocation { claim: Box<ClaimRef>, source: Box<ClaimError> },
    /// Another call works on the claim.
    #[error("claim {claim}: another call has been working on it, or on the driver's turn, for {} s", .waited.as_secs())]
    Busy { claim: Box<ClaimRef>, waited: Duration },
    /// An update from where it would wait for itself.
    #[error(
        "claim {claim}: its metadata cannot be updated from within a prepare or unprepare: return the metadata with the \
         device, or update later"
    )]
    UpdateInCall { claim: Box<ClaimRef> },
    /// The driver failed.
    #[error("{}", Printable::whole(chain(.0.as_ref())))]
    Driver(#[source] BoxError),
    /// The driver's answer cannot be used.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// What the driver published of a device cannot be had.
    #[error(transparent)]
    Published(#[from] LookupError),
    /// The metadata cannot be written or removed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The update's report cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// File work did not come to its end.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// All claims of the call failed.
    #[error(transparent)]
    Batch(#[from] Arc<ClaimError>),
}

impl ClaimError {
    pub(super) fn driver(error: BoxError) -> Self {
        Self::Driver(error)
    }

    /// What kind of failure it is.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Name(_) | Self::PodClaim(_) => Outcome::Invalid,
            Self::Fetch(FetchError::NotFound { .. }) => Outcome::NotFound,
            Self::Fetch(FetchError::WrongUid { .. }) => Outcome::WrongUid,
            Self::Fetch(FetchError::NotAllocated { .. } | FetchError::NothingForDriver { .. }) => Outcome::NotAllocated,
            Self::Fetch(FetchError::Api { .. }) => Outcome::Api,
            Self::Lock(_) | Self::Busy { .. } | Self::UpdateInCall { .. } => Outcome::Lock,
            Self::Conflict(_) | Self::Holder { .. } => Outcome::Conflict,
            Self::OldAllocation { source, .. } => source.outcome(),
            Self::Driver(error) if error.is::<Panicked>() => Outcome::Panic,
            Self::Driver(_) => Outcome::Driver,
            Self::Answer(_) => Outcome::Result,
            Self::Published(_) | Self::Store(_) | Self::Report(_) | Self::Disk(_) => Outcome::Metadata,
            Self::Batch(error) => error.outcome(),
        }
    }
}

/// Why a device stays with a claim that may be gone.
#[derive(Debug, thiserror::Error)]
#[error("{problem}: {source}")]
pub(crate) struct Refusal {
    problem: &'static str,
    source: BoxError,
}

impl Refusal {
    /// The API server could not be asked.
    pub(super) fn unchecked(source: impl Into<BoxError>) -> Self {
        Self { problem: "whether that claim is gone could not be checked", source: source.into() }
    }

    /// The driver could not unprepare it.
    pub(super) fn not_unprepared(source: ClaimError) -> Self {
        Self { problem: "that claim is gone, but could not be unprepared", source: source.into() }
    }
}

/// An error with its causes, each told once.
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
