//! The one spec that KEP-5304 needs: it mounts a request's metadata file into the containers that use the request.
//!
//! Names are those of Kubernetes' own helper, so that during a migration a Go driver and ours write the same file and
//! never two files that define one device:
//!
//! | what | name |
//! |---|---|
//! | file | `{driver}_metadata_{claim UID}_{request}.json` |
//! | kind | `{driver}/metadata` |
//! | device | `{claim UID}_{request}` |
//! | id | `{driver}/metadata={claim UID}_{request}` |
//!
//! One device has one mount per path in the container, all of the same host file, with the options `ro` and `bind`
//! and without a type. The names come as types that cannot leave a directory, and a [`MetadataDevice`] has been
//! checked to be one that CDI and the file system can carry, so only paths can be wrong later.

use std::path::{Path, PathBuf};

use drakkar_metadata::name::{ClaimUid, DriverName, RequestName};

use crate::name::{Class, DeviceName, NameError, QualifiedName, Vendor};
use crate::path::{self, PathProblem};
use crate::spec::{ContainerEdits, Device, Mount, Spec};

/// The class of metadata devices.
pub const METADATA_CLASS: &str = "metadata";

/// Between driver and claim UID in a file's name.
const INFIX: &str = "_metadata_";
/// At the end of a file's name; runtimes load no other but `.yaml`.
const SUFFIX: &str = ".json";
/// How many bytes a file's name can have on Linux.
const MAX_FILE_NAME: usize = 255;

/// The CDI device that carries the metadata of one request of one claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetadataDevice {
    driver: DriverName,
    claim_uid: ClaimUid,
    request: RequestName,
    id: QualifiedName,
}

/// Why there can be no such device, or no spec for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataSpecError {
    /// A driver's name that CDI cannot carry.
    #[error(transparent)]
    Name(NameError),
    /// Names that are too long together.
    #[error("CDI spec {name}: the file name must be no more than {MAX_FILE_NAME} bytes, has {}", .name.len())]
    FileName {
        /// The file's name.
        name: String,
    },
    /// Nothing to mount.
    #[error("CDI device {id}: needs at least one path in the container")]
    NoContainerPath {
        /// The device.
        id: QualifiedName,
    },
    /// Two mounts at one place, of which only the later would be there.
    #[error("CDI device {id}: path in the container {path:?} is there twice")]
    SameContainerPath {
        /// The device.
        id: QualifiedName,
        /// The path.
        path: PathBuf,
    },
    /// A path that cannot be mounted, or not by every runtime.
    #[error("CDI device {id}: {which} {path:?}: {problem}")]
    Path {
        /// The device.
        id: QualifiedName,
        /// `host path` or `path in the container`.
        which: &'static str,
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        problem: PathProblem,
    },
}

impl MetadataDevice {
    /// Takes names that can be a CDI device and a file, or says what to change. What can be wrong is a driver name
    /// that starts with a digit, and a claim UID that is far longer than those of an API server.
    pub fn new(driver: DriverName, claim_uid: ClaimUid, request: RequestName) -> Result<Self, MetadataSpecError> {
        let id = Self::name(&driver, &claim_uid, &request).map_err(MetadataSpecError::Name)?;
        let device = Self { driver, claim_uid, request, id };
        let name = device.file_name();
        if name.len() > MAX_FILE_NAME { Err(MetadataSpecError::FileName { name }) } else { Ok(device) }
    }

    /// The device whose spec file has this name, or none if it is not a name that [`file_name`](Self::file_name)
    /// gives.
    ///
    /// A claim UID may have an underscore; neither driver nor request can, so there is only one way to split a name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let (driver, rest) = name.strip_suffix(SUFFIX)?.split_once(INFIX)?;
        let (claim_uid, request) = rest.rsplit_once('_')?;
        Self::new(driver.parse().ok()?, claim_uid.parse().ok()?, request.parse().ok()?).ok()
    }

    /// The driver.
    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// The UID of the claim.
    pub fn claim_uid(&self) -> &ClaimUid {
        &self.claim_uid
    }

    /// The request, without a subrequest.
    pub fn request(&self) -> &RequestName {
        &self.request
    }

    /// The name of the spec file in the CDI directory.
    pub fn file_name(&self) -> String {
        let Self { driver, claim_uid, request, .. } = self;
        format!("{driver}{INFIX}{claim_uid}_{request}{SUFFIX}")
    }

    /// What the driver returns to the kubelet as the CDI id of the request's devices.
    pub fn id(&self) -> &QualifiedName {
        &self.id
    }

    /// The spec that mounts the host file at every one of the paths in the container, in the order given.
    ///
    /// Paths must be absolute and clean, and those in the container different from each other and not in `/proc` or
    /// `/sys`. Whether the host file exists is not looked at: it must when a container is created.
    ///
    /// ```
    /// use drakkar_cdi::MetadataDevice;
    ///
    /// let device = MetadataDevice::new("gpu.example.com".parse()?, "a1b2".parse()?, "gpu".parse()?)?;
    /// let spec = device.spec("/var/lib/kubelet/plugins/gpu.example.com/metadata.json", ["/var/run/metadata.json"])?;
    /// assert_eq!(spec.kind, "gpu.example.com/metadata");
    /// assert_eq!(spec.devices[0].container_edits.mounts[0].options, ["ro", "bind"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spec<P: AsRef<Path>>(
        &self,
        host_path: impl AsRef<Path>,
        container_paths: impl IntoIterator<Item = P>,
    ) -> Result<Spec, MetadataSpecError> {
        let host_path = self.path("host path", host_path.as_ref(), path::check)?;
        let mut mounts: Vec<Mount> = Vec::new();
        for container_path in container_paths {
            let container_path = self.path("path in the container", container_path.as_ref(), path::check_target)?;
            if mounts.iter().any(|mount| mount.container_path == container_path) {
                return Err(MetadataSpecError::SameContainerPath { id: self.id.clone(), path: container_path.into() });
            }
            mounts.push(Mount {
                host_path: host_path.to_owned(),
                container_path: container_path.to_owned(),
                options: vec!["ro".to_owned(), "bind".to_owned()],
                fs_type: String::new(),
            });
        }
        if mounts.is_empty() {
            return Err(MetadataSpecError::NoContainerPath { id: self.id.clone() });
        }
        let mut spec = Spec {
            kind: self.id.kind(),
            devices: vec![Device {
                name: self.id.device.to_string(),
                container_edits: ContainerEdits { mounts, ..ContainerEdits::default() },
                ..Device::default()
            }],
            ..Spec::default()
        };
        spec.cdi_version = spec.minimum_version().to_string();
        Ok(spec)
    }

    fn name(driver: &DriverName, claim_uid: &ClaimUid, request: &RequestName) -> Result<QualifiedName, NameError> {
        Ok(QualifiedName {
            vendor: Vendor::try_from(driver)?,
            class: Class::new(METADATA_CLASS)?,
            device: DeviceName::new(format!("{claim_uid}_{request}"))?,
        })
    }

    fn path<'a>(
        &self,
        which: &'static str,
        path: &'a Path,
        check: fn(&str) -> Result<(), PathProblem>,
    ) -> Result<&'a str, MetadataSpecError> {
        let text = path.to_str().ok_or(PathProblem::NotUtf8);
        text.and_then(|text| check(text).map(|()| text)).map_err(|problem| MetadataSpecError::Path {
            id: self.id.clone(),
            which,
            path: path.to_owned(),
            problem,
        })
    }
}
