//! What can go wrong in the store. Every message names the claim and the path.

use std::io;
use std::path::PathBuf;

use drakkar_cdi::MetadataSpecError;
use drakkar_metadata::ValidationError;
use drakkar_metadata::name::{ClaimUid, RequestName};

use drakkar_client::ClaimRef;

/// Why the store could not do what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// A directory that an operator chose cannot be used.
    #[error("{}: {source}", .path.display())]
    Root { path: PathBuf, source: io::Error },
    /// A call failed.
    #[error("claim {claim}: {action} {}: {source}", .path.display())]
    Io { claim: Box<ClaimRef>, action: &'static str, path: PathBuf, source: io::Error },
    /// The CDI spec for a request cannot be made.
    #[error("claim {claim}: request {request}: {source}")]
    Cdi { claim: Box<ClaimRef>, request: RequestName, source: Box<MetadataSpecError> },
    /// What the driver said about its devices breaks a rule.
    #[error("claim {claim}: request {request}: the driver's metadata is not valid: {source}")]
    Invalid { claim: Box<ClaimRef>, request: RequestName, source: ValidationError },
    /// An update for a claim that is not prepared.
    #[error("claim {claim}: not prepared here, so there is no metadata to update")]
    NotPrepared { claim: Box<ClaimRef> },
    /// An update for an earlier or later claim of the same name.
    #[error("claim {claim}: the claim of that name that is prepared here is another, with uid {prepared}")]
    OtherClaim { claim: Box<ClaimRef>, prepared: ClaimUid },
    /// An update for a request that was not prepared.
    #[error("claim {claim}: request {request} is not one of those prepared here: {}", list(.prepared))]
    NoSuchRequest { claim: Box<ClaimRef>, request: RequestName, prepared: Vec<RequestName> },
    /// An update with a device that was not prepared for the request.
    #[error("claim {claim}: request {request}: device {pool}/{device} was not prepared for it by this driver")]
    ForeignDevice { claim: Box<ClaimRef>, request: RequestName, pool: String, device: String },
}

impl StoreError {
    /// Whether what was asked for cannot be, so that trying again does not help.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Root { .. } | Self::Io { .. } => false,
            Self::Cdi { .. }
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
