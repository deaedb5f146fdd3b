//! The spec of KEP-5304, which mounts a request's metadata file into the containers that use the request.
//!
//! Names are those of Kubernetes' Go library, so that during a migration a Go driver and a Rust driver write the same file,
//! and never two files that define one device:
//!
//! | what | name |
//! |---|---|
//! | file | `{driver}_metadata_{claim UID}_{request}.json` |
//! | kind | `{driver}/metadata` |
//! | device | `{claim UID}_{request}` |
//! | id | `{driver}/metadata={claim UID}_{request}` |
//!
//! A device has one mount per path in the container, all of the same host file, with the options `ro` and `bind` and
//! without a type. A [`MetadataDevice`] has names that are valid for CDI and the file system, so that only paths can be
//! invalid later.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use drakkar_metadata::name::{ClaimUid, DriverName, RequestName};
use drakkar_metadata::to_go_json;
use serde::Serialize;

use crate::name::{Class, DeviceName, NameError, QualifiedName, Vendor};
use crate::path::{self, PathProblem};
use crate::spec::{ContainerEdits, Device, Mount, Spec};
use crate::version::CdiVersion;

/// The class of metadata devices.
pub const METADATA_CLASS: &str = "metadata";

/// The part of a file's name between driver and claim UID.
const INFIX: &str = "_metadata_";
/// The suffix of a file's name. Runtimes load only `.json` and `.yaml`.
const SUFFIX: &str = ".json";
/// The maximum length of a file's name on Linux in bytes.
const MAX_FILE_NAME: usize = 255;
/// The options of each mount.
const MOUNT_OPTIONS: [&str; 2] = ["ro", "bind"];

/// The CDI device for the metadata of one request of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetadataDevice {
    driver: DriverName,
    claim_uid: ClaimUid,
    request: RequestName,
    id: QualifiedName,
    file_name: String,
}

/// An error in the names or paths of a metadata device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataSpecError {
    /// A driver's name is not valid in CDI.
    #[error(transparent)]
    Name(NameError),
    /// The file's name is too long.
    #[error("CDI spec {name}: the file name must be no more than {MAX_FILE_NAME} bytes, has {}", .name.len())]
    FileName {
        /// The file's name.
        name: String,
    },
    /// There is no path in the container.
    #[error("CDI device {id}: needs at least one path in the container")]
    NoContainerPath {
        /// The device.
        id: QualifiedName,
    },
    /// A path in the container is repeated; only the later mount would be visible.
    #[error("CDI device {id}: path in the container {path:?} is repeated")]
    SameContainerPath {
        /// The device.
        id: QualifiedName,
        /// The path.
        path: PathBuf,
    },
    /// A path that not every runtime can mount.
    #[error("CDI device {id}: {which} {path:?}: {problem}")]
    Path {
        /// The device.
        id: QualifiedName,
        /// `host path` or `path in the container`.
        which: &'static str,
        /// The path.
        path: PathBuf,
        /// The rule that it breaks.
        problem: PathProblem,
    },
}

/// Returns the class of metadata devices, whose text all of them share.
fn metadata_class() -> Result<Class, NameError> {
    static CLASS: OnceLock<Class> = OnceLock::new();
    match CLASS.get() {
        Some(class) => Ok(class.clone()),
        None => Class::new(METADATA_CLASS).map(|class| CLASS.get_or_init(|| class).clone()),
    }
}

impl MetadataDevice {
    /// Creates the device of a request.
    ///
    /// # Errors
    /// If the driver's name starts with a digit, or the claim UID is much longer than those of an API server.
    pub fn new(driver: DriverName, claim_uid: ClaimUid, request: RequestName) -> Result<Self, MetadataSpecError> {
        let id = Self::name(&driver, &claim_uid, &request).map_err(MetadataSpecError::Name)?;
        let file_name = Self::file_name_of(&driver, &claim_uid, &request)?;
        Ok(Self { driver, claim_uid, request, id, file_name })
    }

    /// Returns the name of a request's spec file, the same as [`file_name`](Self::file_name), without building the device.
    ///
    /// # Errors
    /// If the claim UID is much longer than those of an API server.
    pub fn file_name_of(
        driver: &DriverName,
        claim_uid: &ClaimUid,
        request: &RequestName,
    ) -> Result<String, MetadataSpecError> {
        let name = [driver.as_str(), INFIX, claim_uid.as_str(), "_", request.as_str(), SUFFIX].concat();
        if name.len() > MAX_FILE_NAME { Err(MetadataSpecError::FileName { name }) } else { Ok(name) }
    }

    /// Returns the device whose spec file has this name, or `None` if [`file_name`](Self::file_name) never returns it.
    ///
    /// A claim UID may contain an underscore; neither driver nor request can, so there is only one way to split a name.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let (driver, rest) = name.strip_suffix(SUFFIX)?.split_once(INFIX)?;
        let (claim_uid, request) = rest.rsplit_once('_')?;
        Self::new(driver.parse().ok()?, claim_uid.parse().ok()?, request.parse().ok()?).ok()
    }

    /// Returns the driver.
    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// Returns the UID of the claim.
    pub fn claim_uid(&self) -> &ClaimUid {
        &self.claim_uid
    }

    /// Returns the request, without a subrequest.
    pub fn request(&self) -> &RequestName {
        &self.request
    }

    /// Returns the name of the spec file in the CDI directory.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// Returns the CDI device ID, which the driver returns to the kubelet for the request's devices.
    pub fn id(&self) -> &QualifiedName {
        &self.id
    }

    /// Returns the CDI device ID, as [`Self::id`], without a copy.
    pub fn into_id(self) -> QualifiedName {
        self.id
    }

    /// Returns the spec that mounts the host file at each of the paths in the container, in the given order.
    ///
    /// Paths must be absolute and clean; those in the container must be unique and not in `/proc` or `/sys`. The host file
    /// must exist when a container is created, which is not checked here.
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
        let container_paths: Vec<P> = container_paths.into_iter().collect();
        let mounts = self.mounts(host_path.as_ref(), &container_paths)?.into_iter().map(|mount| Mount {
            host_path: mount.host_path.to_owned(),
            container_path: mount.container_path.to_owned(),
            options: mount.options.map(str::to_owned).into(),
            fs_type: String::new(),
        });
        let mut spec = Spec {
            kind: self.id.kind(),
            devices: vec![Device {
                name: self.id.device.to_string(),
                container_edits: ContainerEdits { mounts: mounts.collect(), ..ContainerEdits::default() },
                ..Device::default()
            }],
            ..Spec::default()
        };
        spec.cdi_version = spec.minimum_version().to_string();
        Ok(spec)
    }

    /// Returns the file of [`spec`](Self::spec), without building the spec: for a driver that writes one for each claim.
    ///
    /// # Errors
    /// Those of [`spec`](Self::spec).
    pub fn spec_json<P: AsRef<Path>>(
        &self,
        host_path: impl AsRef<Path>,
        container_paths: &[P],
    ) -> Result<Vec<u8>, MetadataSpecError> {
        let mounts = self.mounts(host_path.as_ref(), container_paths)?;
        let name = self.id.device.as_str();
        let version = match name.as_bytes() {
            [b'0'..=b'9', ..] => CdiVersion::V0_5_0,
            _ => CdiVersion::V0_3_0,
        };
        let file = SpecFile {
            cdi_version: version.as_str(),
            kind: &self.id.kind(),
            devices: [SpecDevice { name, container_edits: SpecEdits { mounts } }],
            container_edits: SpecEdits { mounts: Vec::new() },
        };
        // Serializing fails only for map keys that are not text, or a failing `Serialize`; this has neither.
        #[allow(clippy::expect_used, reason = "see above")]
        Ok(to_go_json(&file).expect("a spec always serializes"))
    }

    /// Returns the mounts of the host file, with checked paths.
    fn mounts<'a, P: AsRef<Path>>(
        &self,
        host_path: &'a Path,
        container_paths: &'a [P],
    ) -> Result<Vec<SpecMount<'a>>, MetadataSpecError> {
        let host_path = self.path("host path", host_path, path::check)?;
        let mut mounts: Vec<SpecMount<'a>> = Vec::with_capacity(container_paths.len());
        for container_path in container_paths {
            let container_path = self.path("path in the container", container_path.as_ref(), path::check_target)?;
            if mounts.iter().any(|mount| mount.container_path == container_path) {
                return Err(MetadataSpecError::SameContainerPath { id: self.id.clone(), path: container_path.into() });
            }
            mounts.push(SpecMount { host_path, container_path, options: MOUNT_OPTIONS });
        }
        if mounts.is_empty() {
            return Err(MetadataSpecError::NoContainerPath { id: self.id.clone() });
        }
        Ok(mounts)
    }

    fn name(driver: &DriverName, claim_uid: &ClaimUid, request: &RequestName) -> Result<QualifiedName, NameError> {
        Ok(QualifiedName {
            vendor: Vendor::try_from(driver)?,
            class: metadata_class()?,
            device: DeviceName::new([claim_uid.as_str(), "_", request.as_str()].concat())?,
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

/// A spec file with nothing but mounts, with the keys of [`Spec`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecFile<'a> {
    cdi_version: &'static str,
    kind: &'a str,
    devices: [SpecDevice<'a>; 1],
    container_edits: SpecEdits<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecDevice<'a> {
    name: &'a str,
    container_edits: SpecEdits<'a>,
}

#[derive(Serialize)]
struct SpecEdits<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<SpecMount<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpecMount<'a> {
    host_path: &'a str,
    container_path: &'a str,
    options: [&'static str; 2],
}
