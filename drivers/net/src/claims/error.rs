//! Why a claim could not be prepared, attached or taken back.

use std::io;
use std::path::PathBuf;

use drakkar_plugin::{BoxError, ClaimRef};

use crate::attach::AttachError;
use crate::ipam::AddressError;

/// A failed call. It names the claim, the device, the cause, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimsError {
    /// The claim is for several pods, or for something that is not a pod.
    #[error(
        "claim {claim}: {consumers}: an interface can be in one pod only; give each pod a claim of its own, from a ResourceClaimTemplate"
    )]
    Consumers { claim: Box<ClaimRef>, consumers: String },
    /// The device is not one that parameters are for.
    #[error("claim {claim}: request {request}: device {device}: {problem}")]
    Device { claim: Box<ClaimRef>, request: String, device: String, problem: String },
    /// Another claim has the device.
    #[error("claim {claim}: request {request}: device {device} is held by claim {holder}: unprepare that claim first")]
    InUse { claim: Box<ClaimRef>, request: String, device: String, holder: Box<ClaimRef> },
    /// An address is not free.
    #[error("claim {claim}: request {request}: device {device}: {source}")]
    Address { claim: Box<ClaimRef>, request: String, device: String, source: AddressError },
    /// Another interface of the pod has the name.
    #[error(
        "claim {claim}: request {request}: device {device}: the pod gets another interface with the name {name}: choose another \
         interfaceName, or one that ends with %d"
    )]
    Name { claim: Box<ClaimRef>, request: String, device: String, name: String },
    /// The claim was prepared with other devices.
    #[error("claim {claim}: was prepared with other devices ({prepared}) and has not been unprepared since")]
    Differs { claim: Box<ClaimRef>, prepared: String },
    /// The device could not be bound or unbound.
    #[error("claim {claim}: {source}")]
    Binder { claim: Box<ClaimRef>, source: BoxError },
    /// The interface could not be attached.
    #[error("claim {claim}: request {request}: device {device}: not attached to pod {pod}: {source}")]
    Attach { claim: Box<ClaimRef>, request: String, device: String, pod: String, source: Box<AttachError> },
    /// The interface could not be brought back.
    #[error(
        "claim {claim}: request {request}: device {device}: not brought back from pod {pod}, which is tried again: {problem}"
    )]
    Restore { claim: Box<ClaimRef>, request: String, device: String, pod: String, problem: String },
    /// A call failed, and taking it back as well.
    #[error("{source}; taking it back failed as well and is tried again: {rollback}")]
    Rollback { source: Box<ClaimsError>, rollback: Box<ClaimsError> },
    /// The runtime does not wait any longer.
    #[error("pod {pod}: the runtime no longer waits: everything is taken back")]
    Abandoned { pod: String },
    /// Another call works on the claim for too long.
    #[error("{what}: another call for the same claim takes too long; it is tried again")]
    Busy { what: String },
    /// The journal could not be written.
    #[error("claim {claim}: journal {}: {source}", .path.display())]
    Journal { claim: Box<ClaimRef>, path: PathBuf, source: io::Error },
    /// The driver's directories could not be used.
    #[error("{}: {source}", .path.display())]
    Open { path: PathBuf, source: io::Error },
}

impl ClaimsError {
    /// Returns the reason in one word, for a condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Attach { source, .. } => source.cause.reason(),
            Self::Rollback { source, .. } => source.reason(),
            Self::Abandoned { .. } => "Timeout",
            Self::Busy { .. } => "Busy",
            Self::Journal { .. } | Self::Open { .. } => "JournalNotWritten",
            _ => crate::metadata::reason::ATTACH_FAILED,
        }
    }
}
