//! The errors of the store. Every message names the claim, the path, or both.

use std::io;
use std::path::PathBuf;

use drakkar_cdi::MetadataSpecError;
use drakkar_client::ClaimRef;
use drakkar_metadata::ValidationError;
use drakkar_metadata::name::{ClaimUid, RequestName};

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A configured directory, or an entry in it that belongs to no claim, cannot be used.
    #[error("{}: {source}", .path.display())]
    Root { path: PathBuf, source: io::Error },
    /// A file operation failed.
    #[error("claim {claim}: {action} {}: {source}", .path.display())]
    Io { claim: Box<ClaimRef>, action: &'static str, path: PathBuf, source: io::Error },
    /// The CDI spec for a request cannot be built.
    #[error("claim {claim}: request {request}: {source}")]
    Cdi { claim: Box<ClaimRef>, request: RequestName, source: Box<MetadataSpecError> },
    /// The driver's name cannot be used in CDI.
    #[error("claim {claim}: {source}")]
    CdiName { claim: Box<ClaimRef>, source: Box<drakkar_cdi::NameError> },
    /// The CDI spec of the claim's devices is invalid.
    #[error("claim {claim}: CDI spec {name}: {source}")]
    ClaimSpec { claim: Box<ClaimRef>, name: String, source: Box<drakkar_cdi::ValidationError> },
    /// The driver's metadata is invalid.
    #[error("claim {claim}: request {request}: the driver's metadata is not valid: {source}")]
    Invalid { claim: Box<ClaimRef>, request: RequestName, source: ValidationError },
    /// An update for a claim that is not prepared.
    #[error("claim {claim}: not prepared here, so there is no metadata to update")]
    NotPrepared { claim: Box<ClaimRef> },
    /// An update for an earlier or later claim with the same name.
    #[error("claim {claim}: another claim with that name is prepared here, with uid {prepared}")]
    OtherClaim { claim: Box<ClaimRef>, prepared: ClaimUid },
    /// An update for a request that was not prepared.
    #[error("claim {claim}: request {request} is not prepared here; prepared: {}", list(.prepared))]
    NoSuchRequest { claim: Box<ClaimRef>, request: RequestName, prepared: Vec<RequestName> },
    /// An update with a device that was not prepared for the request.
    #[error(
        "claim {claim}: request {request}: device {pool}/{device} was not prepared for this request by this driver"
    )]
    ForeignDevice { claim: Box<ClaimRef>, request: RequestName, pool: String, device: String },
}

impl StoreError {
    /// Whether the operation was refused as invalid, so that a retry does not help.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Root { .. } | Self::Io { .. } => false,
            Self::Cdi { .. }
            | Self::CdiName { .. }
            | Self::ClaimSpec { .. }
            | Self::Invalid { .. }
            | Self::NotPrepared { .. }
            | Self::OtherClaim { .. }
            | Self::NoSuchRequest { .. }
            | Self::ForeignDevice { .. } => true,
        }
    }
}

fn list(names: &[RequestName]) -> String {
    let names: Vec<&str> = names.iter().map(RequestName::as_str).collect();
    names.join(", ")
}
