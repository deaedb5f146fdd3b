//! CDI specs: which device nodes a container gets with which device of a claim.
//!
//! One file for each claim, `{CDI directory}/{driver}_{class}_{claim UID}.json`, with a CDI device for each device that has
//! nodes. A container gets the CDI devices of the requests that it names, so it sees no node of another request. Runtimes look
//! at a file as soon as it has its name: it is renamed to it when it is complete.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_cdi::{
    Class, ContainerEdits, Device, DeviceNode, Mount, NameError, QualifiedName, Spec, ValidationError, Vendor,
    validate_strict,
};
use drakkar_metadata::name::{ClaimUid, DriverName};

use crate::files::{Files, temporary_name, write_atomically};

/// The mode of a spec, which runtimes without root privileges read too.
const MODE: u32 = 0o644;

/// A failure with the CDI spec of a claim.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// A name is not valid in CDI.
    #[error("{0}")]
    Name(#[from] NameError),
    /// The spec would be refused by runtimes.
    #[error("the CDI spec would be refused: {0}")]
    Invalid(#[from] ValidationError),
    /// The file could not be written, read or removed.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Where the CDI specs of a driver are, and where device nodes are.
#[derive(Debug, Clone)]
pub struct SpecSettings {
    /// The directory of CDI specs.
    pub directory: PathBuf,
    /// The driver, which is the vendor of the CDI devices.
    pub driver: DriverName,
    /// The class of the CDI devices. A driver with several kinds of specs has a class for each.
    pub class: &'static str,
    /// The host's `/dev` as the driver sees it.
    pub dev: PathBuf,
    /// The host's `/dev` as the container runtime sees it.
    pub host_dev: PathBuf,
}

/// The CDI specs of a driver, of one class.
#[derive(Debug, Clone)]
pub struct Specs {
    files: Arc<dyn Files>,
    settings: SpecSettings,
}

impl Specs {
    /// The specs in a directory, which exists.
    pub fn new(files: Arc<dyn Files>, settings: SpecSettings) -> Self {
        Self { files, settings }
    }

    /// Returns the CDI name of a claim's device.
    pub fn id(&self, uid: &ClaimUid, device: &str) -> Result<QualifiedName, CdiError> {
        Ok(QualifiedName {
            vendor: Vendor::try_from(&self.settings.driver)?,
            class: Class::strict(self.settings.class)?,
            device: drakkar_cdi::DeviceName::strict(format!("{uid}_{device}"))?,
        })
    }

    /// Writes the spec of a claim, unless it is there as it should be. `devices` are names with their nodes relative to `/dev`;
    /// those without nodes are left out, and without any the claim has no spec.
    pub fn write(&self, uid: &ClaimUid, devices: &[(String, Vec<String>)]) -> Result<(), CdiError> {
        let mut spec = Spec::default();
        for (name, nodes) in devices.iter().filter(|(_, nodes)| !nodes.is_empty()) {
            let id = self.id(uid, name)?;
            spec.kind = id.kind();
            let mut container_edits = ContainerEdits::default();
            for node in nodes {
                self.add_node(&mut container_edits, node);
            }
            spec.devices.push(Device { name: id.device.to_string(), container_edits, ..Device::default() });
        }
        if spec.devices.is_empty() {
            return self.remove(uid);
        }
        spec.cdi_version = spec.minimum_version().to_string();
        validate_strict(&spec)?;
        let name = self.file_name(uid);
        let content = spec.to_json();
        // Runtimes read all specs again whenever one is written.
        if self.files.read(&self.settings.directory, &name).is_ok_and(|known| known.as_ref() == Some(&content)) {
            return Ok(());
        }
        let written = write_atomically(&*self.files, &self.settings.directory, &name, &content, MODE);
        written.map_err(|source| CdiError::File { action: "write", path: self.settings.directory.join(&name), source })
    }

    /// Removes the spec of a claim.
    pub fn remove(&self, uid: &ClaimUid) -> Result<(), CdiError> {
        self.remove_file(&self.file_name(uid))
    }

    /// Removes specs of claims that are not known, and what interrupted writes have left.
    pub fn remove_orphans(&self, known: &BTreeSet<ClaimUid>) -> Result<(), CdiError> {
        let listed = self.files.list(&self.settings.directory);
        let names = listed.map_err(|source| CdiError::File {
            action: "list",
            path: self.settings.directory.clone(),
            source,
        })?;
        let prefix = self.file_prefix();
        let claim_of = |name: &str| ClaimUid::new(name.strip_prefix(&prefix)?.strip_suffix(".json")?).ok();
        for name in names {
            let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            let is_temporary = inner.is_some_and(|inner| claim_of(inner).is_some() && temporary_name(inner) == name);
            let is_orphan = claim_of(&name).is_some_and(|uid| !known.contains(&uid));
            if is_temporary || is_orphan {
                self.remove_file(&name)?;
            }
        }
        Ok(())
    }

    fn add_node(&self, edits: &mut ContainerEdits, node: &str) {
        let path = Path::new("/dev").join(node).to_string_lossy().into_owned();
        let host_path = self.settings.host_dev.join(node).to_string_lossy().into_owned();
        let kind = self.settings.dev.join(node).metadata().map(|status| status.file_type());
        if kind.is_ok_and(|kind| !kind.is_char_device() && !kind.is_block_device()) {
            // A simulated node is a plain file, which no runtime takes for a device.
            let options = ["bind", "rw"].map(str::to_owned).into();
            edits.mounts.push(Mount { host_path, container_path: path, options, ..Mount::default() });
            return;
        }
        let host_path = if host_path == path { String::new() } else { host_path };
        let permissions = "rw".to_owned();
        edits.device_nodes.push(DeviceNode { path, host_path, permissions, ..DeviceNode::default() });
    }

    fn remove_file(&self, name: &str) -> Result<(), CdiError> {
        let removed = self.files.remove(&self.settings.directory, name);
        removed.map_err(|source| CdiError::File { action: "remove", path: self.settings.directory.join(name), source })
    }

    fn file_name(&self, uid: &ClaimUid) -> String {
        format!("{}{uid}.json", self.file_prefix())
    }

    fn file_prefix(&self) -> String {
        format!("{}_{}_", self.settings.driver, self.settings.class)
    }
}
