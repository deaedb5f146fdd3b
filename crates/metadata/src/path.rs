//! The paths of metadata files: the layouts in a container and the layout on the host.
//!
//! Paths are built from validated names ([`crate::name`]) and parsed back into them, so no path leaves the directory of
//! its layout. All container paths are absolute.
//!
//! | layout | path |
//! |---|---|
//! | Kubernetes, named claim | `/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}/{request}/{driver}-metadata.json` |
//! | Kubernetes, claim from a template | `/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/{pod claim}/{request}/{driver}-metadata.json` |
//! | KEP-5304 | `/var/run/dra-device-attributes/{claim}/{request}/{driver}-metadata.json` |
//! | VEP 10, read only | `/var/run/dra-device-attributes/{driver}/{claim}/metadata.json` |
//! | early draft, read only | `/var/run/dra-device-attributes/{driver}-{claim UID}-{request}.json` |
//! | host | `{plugin data directory}/dra-device-metadata/{namespace}_{claim}/{request}/metadata.json` |

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::name::syntax::is_uuid;
use crate::name::{ClaimName, ClaimUid, DriverName, NameError, Namespace, PodClaimName, RequestName};
use crate::show::Printable;

/// The directory of the Kubernetes layout.
pub const KUBERNETES_DIR: &str = "/var/run/kubernetes.io/dra-device-attributes";
/// The directory of KEP-5304's layout, and of the two older ones.
pub const KEP_DIR: &str = "/var/run/dra-device-attributes";
/// The sub-directory of [`KUBERNETES_DIR`] for claims that a pod names.
pub const CLAIMS_SUBDIR: &str = "resourceclaims";
/// The sub-directory of [`KUBERNETES_DIR`] for claims that were generated for a pod.
pub const TEMPLATES_SUBDIR: &str = "resourceclaimtemplates";
/// The suffix of a metadata file's name in a container, after the driver's name.
pub const FILE_SUFFIX: &str = "-metadata.json";
/// The directory of metadata files below a driver's plugin data directory on the host.
pub const HOST_SUBDIR: &str = "dra-device-metadata";
/// The name of a metadata file on the host, and in VEP 10's layout.
pub const HOST_FILE: &str = "metadata.json";
/// The maximum length of a file name on Linux.
const NAME_MAX: usize = 255;

/// A layout of metadata files in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// As Kubernetes releases it, below [`KUBERNETES_DIR`].
    Kubernetes,
    /// As KEP-5304 describes it, below [`KEP_DIR`].
    Kep,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kubernetes => "kubernetes",
            Self::Kep => "kep",
        })
    }
}

/// An unknown layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown metadata layout {0:?}: known are kubernetes and kep")]
pub struct LayoutError(String);

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        match text {
            "kubernetes" => Ok(Self::Kubernetes),
            "kep" => Ok(Self::Kep),
            _ => Err(LayoutError(text.to_owned())),
        }
    }
}

/// An error about the path of a metadata file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path does not have the form of any layout.
    #[error("{} is not the path of a metadata file", Printable::path(.0))]
    NoLayout(PathBuf),
    /// A part of the path is not a valid name.
    #[error("{} is not the path of a metadata file: {name}", Printable::path(.path))]
    Name {
        /// The path.
        path: PathBuf,
        /// The error in the name.
        name: NameError,
    },
    /// Namespace and claim name together are too long for one directory.
    #[error(
        "claim {namespace}/{claim}: the directory {namespace}_{claim} would have {length} bytes, at most 255 are possible"
    )]
    TooLong {
        /// The claim's namespace.
        namespace: Namespace,
        /// The claim's name.
        claim: ClaimName,
        /// The length of the directory's name.
        length: usize,
    },
}

/// A metadata file in a container.
///
/// ```
/// use drakkar_metadata::path::ContainerFile;
///
/// let file = ContainerFile::Claim {
///     claim: "my-claim".parse()?,
///     request: "gpu".parse()?,
///     driver: "gpu.example.com".parse()?,
/// };
/// let path = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/my-claim/gpu/gpu.example.com-metadata.json";
/// assert_eq!(file.path(), std::path::Path::new(path));
/// assert_eq!(ContainerFile::parse(&file.path())?, file);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the types document the fields")]
#[non_exhaustive]
pub enum ContainerFile {
    /// Kubernetes' layout, for a claim that the pod names.
    Claim { claim: ClaimName, request: RequestName, driver: DriverName },
    /// Kubernetes' layout, for a claim that was generated for the pod from a template.
    Template { pod_claim: PodClaimName, request: RequestName, driver: DriverName },
    /// KEP-5304's layout.
    Kep { claim: ClaimName, request: RequestName, driver: DriverName },
    /// VEP 10's layout: all requests of a claim in one file.
    Vep10 { driver: DriverName, claim: ClaimName },
    /// The early draft's layout.
    EarlyDraft { driver: DriverName, uid: ClaimUid, request: RequestName },
}

impl ContainerFile {
    /// Returns the absolute path in the container.
    pub fn path(&self) -> PathBuf {
        // The parts are put together at once: a path that grows part by part is allocated several times.
        let parts: &[&str] = match self {
            Self::Claim { claim, request, driver } => &[
                KUBERNETES_DIR,
                "/",
                CLAIMS_SUBDIR,
                "/",
                claim.as_str(),
                "/",
                request.as_str(),
                "/",
                driver.as_str(),
                FILE_SUFFIX,
            ],
            Self::Template { pod_claim, request, driver } => &[
                KUBERNETES_DIR,
                "/",
                TEMPLATES_SUBDIR,
                "/",
                pod_claim.as_str(),
                "/",
                request.as_str(),
                "/",
                driver.as_str(),
                FILE_SUFFIX,
            ],
            Self::Kep { claim, request, driver } => {
                &[KEP_DIR, "/", claim.as_str(), "/", request.as_str(), "/", driver.as_str(), FILE_SUFFIX]
            }
            Self::Vep10 { driver, claim } => &[KEP_DIR, "/", driver.as_str(), "/", claim.as_str(), "/", HOST_FILE],
            Self::EarlyDraft { driver, uid, request } => {
                &[KEP_DIR, "/", driver.as_str(), "-", uid.as_str(), "-", request.as_str(), ".json"]
            }
        };
        parts.concat().into()
    }

    /// Parses a path. It must have exactly the form that [`ContainerFile::path`] returns.
    pub fn parse(path: &Path) -> Result<Self, PathError> {
        let file = Self::parse_names(path)?;
        // `components` skips doubled slashes and `.`, so the text is compared as well.
        if file.path().as_os_str() == path.as_os_str() { Ok(file) } else { Err(PathError::NoLayout(path.to_owned())) }
    }

    fn parse_names(path: &Path) -> Result<Self, PathError> {
        let no_layout = || PathError::NoLayout(path.to_owned());
        let name = |name| PathError::Name { path: path.to_owned(), name };
        if let Ok(below) = path.strip_prefix(KUBERNETES_DIR) {
            return match parts(below).as_deref() {
                Some([CLAIMS_SUBDIR, claim, request, file]) => Ok(Self::Claim {
                    claim: claim.parse().map_err(name)?,
                    request: request.parse().map_err(name)?,
                    driver: driver_of(file).ok_or_else(no_layout)?.parse().map_err(name)?,
                }),
                Some([TEMPLATES_SUBDIR, pod_claim, request, file]) => Ok(Self::Template {
                    pod_claim: pod_claim.parse().map_err(name)?,
                    request: request.parse().map_err(name)?,
                    driver: driver_of(file).ok_or_else(no_layout)?.parse().map_err(name)?,
                }),
                _ => Err(no_layout()),
            };
        }
        let below = path.strip_prefix(KEP_DIR).ok().ok_or_else(no_layout)?;
        match parts(below).as_deref() {
            Some([driver, claim, HOST_FILE]) => {
                Ok(Self::Vep10 { driver: driver.parse().map_err(name)?, claim: claim.parse().map_err(name)? })
            }
            Some([claim, request, file]) => Ok(Self::Kep {
                claim: claim.parse().map_err(name)?,
                request: request.parse().map_err(name)?,
                driver: driver_of(file).ok_or_else(no_layout)?.parse().map_err(name)?,
            }),
            Some([file]) => {
                let (driver, uid, request) = draft_names(file).ok_or_else(no_layout)?;
                Ok(Self::EarlyDraft {
                    driver: driver.parse().map_err(name)?,
                    uid: uid.parse().map_err(name)?,
                    request: request.parse().map_err(name)?,
                })
            }
            _ => Err(no_layout()),
        }
    }

    /// Returns the driver that wrote the file.
    pub fn driver(&self) -> &DriverName {
        match self {
            Self::Claim { driver, .. }
            | Self::Template { driver, .. }
            | Self::Kep { driver, .. }
            | Self::Vep10 { driver, .. }
            | Self::EarlyDraft { driver, .. } => driver,
        }
    }

    /// Returns the request that the file describes; `None` for VEP 10, which has all requests of a claim in one file.
    pub fn request(&self) -> Option<&RequestName> {
        match self {
            Self::Claim { request, .. }
            | Self::Template { request, .. }
            | Self::Kep { request, .. }
            | Self::EarlyDraft { request, .. } => Some(request),
            Self::Vep10 { .. } => None,
        }
    }

    /// Returns the layout, or `None` for one that is only read.
    pub fn layout(&self) -> Option<Layout> {
        match self {
            Self::Claim { .. } | Self::Template { .. } => Some(Layout::Kubernetes),
            Self::Kep { .. } => Some(Layout::Kep),
            Self::Vep10 { .. } | Self::EarlyDraft { .. } => None,
        }
    }
}

/// A metadata file on the host, below a driver's plugin data directory (`{kubelet directory}/plugins/{driver}`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostFile {
    /// The claim's namespace.
    pub namespace: Namespace,
    /// The claim's name.
    pub claim: ClaimName,
    /// The request.
    pub request: RequestName,
}

impl HostFile {
    /// Returns the path below the plugin data directory.
    ///
    /// Fails for a claim whose namespace and name together are longer than a directory's name can be.
    pub fn relative_path(&self) -> Result<PathBuf, PathError> {
        let directory = claim_directory(&self.namespace, &self.claim)?;
        Ok([HOST_SUBDIR, &directory, self.request.as_str(), HOST_FILE].iter().collect())
    }

    /// Parses a path below the plugin data directory.
    pub fn parse(relative: &Path) -> Result<Self, PathError> {
        let no_layout = || PathError::NoLayout(relative.to_owned());
        let name = |name| PathError::Name { path: relative.to_owned(), name };
        let parts = parts(relative).ok_or_else(no_layout)?;
        let [HOST_SUBDIR, directory, request, HOST_FILE] = parts[..] else {
            return Err(no_layout());
        };
        // Neither a namespace nor a claim name can contain an underscore.
        let (namespace, claim) = directory.split_once('_').ok_or_else(no_layout)?;
        let namespace = namespace.parse().map_err(name)?;
        let claim = claim.parse().map_err(name)?;
        claim_directory(&namespace, &claim)?;
        Ok(Self { namespace, claim, request: request.parse().map_err(name)? })
    }
}

/// Returns the name of a claim's directory on the host: `{namespace}_{claim}`.
pub fn claim_directory(namespace: &Namespace, claim: &ClaimName) -> Result<String, PathError> {
    let directory = [namespace.as_str(), "_", claim.as_str()].concat();
    if directory.len() > NAME_MAX {
        let length = directory.len();
        return Err(PathError::TooLong { namespace: namespace.clone(), claim: claim.clone(), length });
    }
    Ok(directory)
}

/// Returns the driver in the name of a metadata file in a container, without validating it.
pub(crate) fn driver_of(file: &str) -> Option<&str> {
    file.strip_suffix(FILE_SUFFIX)
}

/// Returns the parts of a relative path, or `None` if it is not in canonical form: a part is not UTF-8, `.` or `..`, or
/// there is a doubled or trailing slash.
fn parts(path: &Path) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path
        .components()
        .map(|component| match component {
            Component::Normal(part) => part.to_str(),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        })
        .collect::<Option<_>>()?;
    (path.as_os_str() == OsStr::new(&parts.join("/"))).then_some(parts)
}

/// Returns driver, claim UID and request from the name of an early draft's file.
///
/// Driver and request can contain dashes, so the UID is found by its form.
pub(crate) fn draft_names(file: &str) -> Option<(&str, &str, &str)> {
    const UUID: usize = 36;
    let stem = file.strip_suffix(".json")?;
    stem.match_indices('-').find_map(|(dash, _)| {
        let uid = stem.get(dash + 1..dash + 1 + UUID)?;
        let request = stem.get(dash + 1 + UUID..)?.strip_prefix('-')?;
        is_uuid(&uid.to_ascii_lowercase()).then_some((&stem[..dash], uid, request))
    })
}
