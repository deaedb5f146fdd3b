//! Errors of resolving a request to devices.

use std::path::PathBuf;

use drakkar_metadata::DecodeError;
use drakkar_metadata::name::NameError;
use drakkar_metadata::read::{ErrorClass, ReadError};

use super::stream::StreamError;

/// A request of a claim that cannot be resolved to devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No entry of `spec.resourceClaims` has the name.
    #[error(
        "claim {claim:?} is not in spec.resourceClaims (it has {}); add an entry of that name, or correct claimName",
        listed(.known)
    )]
    UnknownClaim {
        /// The name that the device refers to.
        claim: String,
        /// The names in `spec.resourceClaims`.
        known: Vec<String>,
    },
    /// The name of a claim or request is not a Kubernetes name, so no file can have it.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no metadata file.
    #[error(
        "claim {claim:?} request {request:?}: no files matching {}: {nearby}; the driver must write device metadata, and the container must reference the request",
        .pattern.display()
    )]
    NoFile {
        /// The claim, as in the path.
        claim: String,
        /// The request.
        request: String,
        /// The pattern of the files, on the host's side of the root directory.
        pattern: PathBuf,
        /// What there is instead, for example `/var/…/resourceclaims/gold has "gpu-0"`.
        nearby: String,
    },
    /// There are metadata files, but none with the claim's `podClaimName`.
    #[error(
        "claim {claim:?} request {request:?}: none of the {} files matching {} has podClaimName {claim:?}{}",
        .files, .pattern.display(), skipped(.unreadable)
    )]
    NoPodClaim {
        /// The entry of `spec.resourceClaims`.
        claim: String,
        /// The request.
        request: String,
        /// The pattern of the files.
        pattern: PathBuf,
        /// The number of files that match it.
        files: usize,
        /// The errors of files that cannot be read or decoded.
        unreadable: Vec<String>,
    },
    /// There is more than one file; released KubeVirt supports one driver per request.
    #[error(
        "claim {claim:?} request {request:?}: {count} files match {}, but KubeVirt supports exactly one driver per request",
        .pattern.display()
    )]
    SeveralFiles {
        /// The claim, as in the path.
        claim: String,
        /// The request.
        request: String,
        /// The pattern of the files.
        pattern: PathBuf,
        /// The number of files.
        count: usize,
    },
    /// The files of two claims have the same `podClaimName`.
    #[error("claim {claim:?}: the files of two claims name it, {} and {}; choose the layout in which the path tells them apart", .first.display(), .second.display())]
    Ambiguous {
        /// The entry of `spec.resourceClaims`.
        claim: String,
        /// A file of one claim.
        first: PathBuf,
        /// A file of another claim.
        second: PathBuf,
    },
    /// A file or directory cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file is not a stream of metadata documents that is supported.
    #[error("{}: {error}", .path.display())]
    Stream {
        /// The file.
        path: PathBuf,
        /// The error in the stream.
        error: StreamError,
    },
    /// A file is not a document of VEP 10.
    #[error("{}: {error}", .path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// The error in the document.
        error: DecodeError,
    },
    /// The files do not describe the request.
    #[error("request {request:?} is not in the metadata of claim {claim:?} (it has {})", listed(.found))]
    NoRequest {
        /// The request.
        request: String,
        /// The claim, as in the file.
        claim: String,
        /// The requests in the file.
        found: Vec<String>,
    },
    /// The request has no devices in the file.
    #[error("request {request:?} has no devices in {}", .path.display())]
    NoDevices {
        /// The request.
        request: String,
        /// The file.
        path: PathBuf,
    },
    /// The request has several devices; released KubeVirt supports one.
    #[error(
        "request {request:?} has {count} devices, but KubeVirt supports exactly one device per request (count > 1 is not supported); use one request per device"
    )]
    SeveralDevices {
        /// The request.
        request: String,
        /// The number of devices.
        count: usize,
    },
    /// The device has no such attribute with a string that is not empty.
    #[error(transparent)]
    NoAttribute(#[from] Box<MissingAttribute>),
}

impl ResolveError {
    /// Returns the class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Read(error) => error.class(),
            Self::NoFile { .. } | Self::NoPodClaim { .. } => ErrorClass::NotFound,
            _ => ErrorClass::Invalid,
        }
    }
}

/// An attribute that a device must have, and has not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim:?} request {request:?}: device {device} has no {attribute} (it has {}){}", listed(.found), hint(.misspelt))]
#[non_exhaustive]
pub struct MissingAttribute {
    /// The name that the device refers to.
    pub claim: String,
    /// The request.
    pub request: String,
    /// The device, as `driver/pool/name`.
    pub device: String,
    /// The attribute that was looked for.
    pub attribute: &'static str,
    /// The attributes that the device has.
    pub found: Vec<String>,
    /// An attribute of the same meaning under a name that KubeVirt does not read.
    pub misspelt: Option<String>,
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 16;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn skipped(errors: &[String]) -> String {
    if errors.is_empty() { String::new() } else { format!("; not readable: {}", errors.join("; ")) }
}

fn hint(misspelt: &Option<String>) -> String {
    misspelt.as_ref().map(|name| format!("; {name} is not a name that KubeVirt reads")).unwrap_or_default()
}
