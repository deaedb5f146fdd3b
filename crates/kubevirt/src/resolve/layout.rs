//! The directories in which a request's metadata files are, in each layout.
//!
//! A path is built only from names that follow Kubernetes' rules ([`drakkar_metadata::name`]): none of them can hold a
//! slash, `..` or a wildcard, so no name of a VMI leads out of the base directory or to another claim's files.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use drakkar_metadata::Reader;
use drakkar_metadata::name::{ClaimName, PodClaimName, RequestName};
use drakkar_metadata::path::{CLAIMS_SUBDIR, FILE_SUFFIX, HOST_FILE, KEP_DIR, KUBERNETES_DIR, TEMPLATES_SUBDIR};
use drakkar_metadata::read::ReadError;

use super::ResolveError;
use crate::behaviour::Behaviour;
use crate::vmi::ResourceClaimRef;

/// The layout of metadata files in the launcher's container. It is chosen, never guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// As Kubernetes writes and KubeVirt 1.8.3 and later read it, below `/var/run/kubernetes.io/dra-device-attributes`:
    /// `resourceclaims/{claim}/{request}/{driver}-metadata.json` and
    /// `resourceclaimtemplates/{entry of the VMI}/{request}/{driver}-metadata.json`.
    #[default]
    Released,
    /// As KEP-5304 describes it: `/var/run/dra-device-attributes/{claim}/{request}/{driver}-metadata.json`. A claim from
    /// a template is found by `podClaimName` in the files.
    Kep,
    /// As the first text of VEP 10 has it: `/var/run/dra-device-attributes/{driver}/{claim}/metadata.json`, with all
    /// requests of a claim in one file. A claim from a template is found by `podClaimName` in the files.
    Vep10Seed,
}

impl Layout {
    /// Returns the directory that all files of the layout are in.
    pub fn base_directory(self) -> &'static Path {
        Path::new(match self {
            Self::Released => KUBERNETES_DIR,
            Self::Kep | Self::Vep10Seed => KEP_DIR,
        })
    }
}

/// The claim of a VMI's entry.
#[derive(Debug)]
pub(super) enum Claim {
    /// An existing claim, by the name of the object.
    Existing(ClaimName),
    /// A claim generated for the pod, by the name of the entry.
    Generated(PodClaimName),
}

impl Claim {
    /// Returns the claim of an entry. One without any source counts as a template, as in KubeVirt.
    pub(super) fn of(entry: &ResourceClaimRef) -> Result<Self, ResolveError> {
        let existing = entry.resource_claim_name.as_deref().filter(|name| !name.is_empty());
        Ok(match existing {
            Some(name) => Self::Existing(ClaimName::new(name)?),
            None => Self::Generated(PodClaimName::new(entry.name.as_str())?),
        })
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Existing(name) => name.as_str(),
            Self::Generated(name) => name.as_str(),
        }
    }
}

/// The files that may be a request's, not read yet.
#[derive(Debug)]
pub(super) struct Candidates {
    /// The files, in lexical order.
    pub(super) files: Vec<PathBuf>,
    /// The pattern that they match, for messages.
    pub(super) pattern: PathBuf,
    /// Only files with this `podClaimName` are the request's.
    pub(super) pod_claim: Option<PodClaimName>,
}

/// Lists the files of a request. A directory that does not exist has none.
pub(super) fn candidates(
    reader: &Reader,
    layout: Layout,
    claim: &Claim,
    request: &RequestName,
    behaviour: Behaviour,
) -> Result<Candidates, ResolveError> {
    let listing = Listing { reader, behaviour };
    let base = layout.base_directory();
    let metadata_files = format!("*{FILE_SUFFIX}");
    match (layout, claim) {
        (Layout::Released, _) => {
            let kind = match claim {
                Claim::Existing(_) => CLAIMS_SUBDIR,
                Claim::Generated(_) => TEMPLATES_SUBDIR,
            };
            let directory: PathBuf =
                [base, kind.as_ref(), claim.as_str().as_ref(), request.as_str().as_ref()].iter().collect();
            let files = listing.metadata_files(&directory)?;
            Ok(Candidates { files, pattern: directory.join(metadata_files), pod_claim: None })
        }
        (Layout::Kep, Claim::Existing(name)) => {
            let directory = base.join(name.as_str()).join(request.as_str());
            let files = listing.metadata_files(&directory)?;
            Ok(Candidates { files, pattern: directory.join(metadata_files), pod_claim: None })
        }
        (Layout::Kep, Claim::Generated(pod_claim)) => {
            let mut files = Vec::new();
            for name in listing.names(base)? {
                files.extend(listing.metadata_files(&base.join(name).join(request.as_str()))?);
            }
            let pattern = base.join("*").join(request.as_str()).join(metadata_files);
            Ok(Candidates { files, pattern, pod_claim: Some(pod_claim.clone()) })
        }
        (Layout::Vep10Seed, Claim::Existing(name)) => {
            let mut files = Vec::new();
            for driver in listing.names(base)? {
                files.extend(listing.named_file(&base.join(driver).join(name.as_str()))?);
            }
            let pattern = base.join("*").join(name.as_str()).join(HOST_FILE);
            Ok(Candidates { files, pattern, pod_claim: None })
        }
        (Layout::Vep10Seed, Claim::Generated(pod_claim)) => {
            let mut files = Vec::new();
            for driver in listing.names(base)? {
                let directory = base.join(driver);
                for name in listing.names(&directory)? {
                    files.extend(listing.named_file(&directory.join(name))?);
                }
            }
            let pattern = base.join("*").join("*").join(HOST_FILE);
            Ok(Candidates { files, pattern, pod_claim: Some(pod_claim.clone()) })
        }
    }
}

struct Listing<'a> {
    reader: &'a Reader,
    behaviour: Behaviour,
}

impl Listing<'_> {
    /// Returns the entries of a directory; none if it does not exist.
    fn names(&self, directory: &Path) -> Result<Vec<OsString>, ResolveError> {
        match self.reader.list_directory(directory) {
            Ok(names) => Ok(names),
            Err(ReadError::Io { error, .. })
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Ok(Vec::new())
            }
            // A pattern in Go has no matches in a directory that cannot be read.
            Err(_) if self.behaviour.is_strict() => Ok(Vec::new()),
            Err(error) => Err(ResolveError::Read(error)),
        }
    }

    /// Returns the entries of a directory whose names are those of metadata files, whatever they are.
    fn metadata_files(&self, directory: &Path) -> Result<Vec<PathBuf>, ResolveError> {
        let is_metadata = |name: &OsString| name.as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes());
        Ok(self.names(directory)?.into_iter().filter(is_metadata).map(|name| directory.join(name)).collect())
    }

    /// Returns the file of VEP 10's name in a directory, if there is one.
    fn named_file(&self, directory: &Path) -> Result<Option<PathBuf>, ResolveError> {
        let is_there = self.names(directory)?.iter().any(|name| name == HOST_FILE);
        Ok(is_there.then(|| directory.join(HOST_FILE)))
    }
}
