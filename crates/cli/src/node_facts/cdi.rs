//! The directories of CDI specs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use drakkar_cdi::{ClaimDevices, MetadataDevice, Spec, validate};
use drakkar_plugin::node_files::is_temporary;
use rustix::fs::FileType;

use super::host::{Host, Status};

/// The largest spec that is read. Specs of devices have kilobytes.
const MAX_SPEC: u64 = 16 * 1024 * 1024;

/// A directory of CDI specs.
#[derive(Debug)]
pub(crate) struct CdiDirectory {
    /// The path on the host.
    pub(crate) path: PathBuf,
    pub(crate) content: Result<CdiContent, io::Error>,
}

/// What is in a directory of CDI specs.
#[derive(Debug)]
pub(crate) struct CdiContent {
    pub(crate) status: Status,
    pub(crate) specs: Vec<SpecFile>,
    /// Files of writes that are in progress or were interrupted.
    pub(crate) temporary: Vec<(PathBuf, SystemTime)>,
}

/// A file in a directory of CDI specs.
#[derive(Debug)]
pub(crate) struct SpecFile {
    pub(crate) path: PathBuf,
    pub(crate) status: Status,
    /// The claim that it is for, by its name; absent for specs that others write.
    pub(crate) owner: Option<SpecOwner>,
    /// The spec, or why a runtime ignores it.
    pub(crate) spec: Result<Spec, String>,
}

/// The claim of a spec that this framework wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecOwner {
    pub(crate) driver: String,
    pub(crate) claim_uid: String,
    /// The request whose metadata it mounts; absent for the spec with a claim's container edits.
    pub(crate) request: Option<String>,
}

impl SpecOwner {
    fn from_file_name(name: &str) -> Option<Self> {
        if let Some(device) = MetadataDevice::from_file_name(name) {
            let request = Some(device.request().to_string());
            return Some(Self {
                driver: device.driver().to_string(),
                claim_uid: device.claim_uid().to_string(),
                request,
            });
        }
        let devices = ClaimDevices::from_file_name(name)?;
        Some(Self { driver: devices.driver().to_string(), claim_uid: devices.claim_uid().to_string(), request: None })
    }
}

/// Reads a directory of CDI specs.
pub(crate) fn read(host: &Host, path: &Path) -> CdiDirectory {
    CdiDirectory { path: path.to_owned(), content: read_content(host, path) }
}

fn read_content(host: &Host, path: &Path) -> io::Result<CdiContent> {
    let directory = host.directory(path)?;
    let mut content = CdiContent { status: directory.status()?, specs: Vec::new(), temporary: Vec::new() };
    for entry in directory.entries()? {
        let path = path.join(&entry.name);
        if is_temporary(&entry.name) {
            content.temporary.push((path, entry.status.modified));
            continue;
        }
        // Runtimes load YAML too, which this framework does not write.
        if !entry.name.ends_with(".json") || entry.status.kind == FileType::Directory {
            continue;
        }
        let spec = match directory.read(&entry.name, MAX_SPEC) {
            Ok(bytes) => parse(&bytes),
            // Removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) if entry.status.kind == FileType::Symlink => continue,
            Err(error) => Err(error.to_string()),
        };
        content.specs.push(SpecFile {
            path,
            owner: SpecOwner::from_file_name(&entry.name),
            status: entry.status,
            spec,
        });
    }
    Ok(content)
}

fn parse(bytes: &[u8]) -> Result<Spec, String> {
    let spec = Spec::parse(bytes).map_err(|error| error.to_string())?;
    validate(&spec).map_err(|error| error.to_string())?;
    Ok(spec)
}
