//! Making and removing mediated devices.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::bind::{link_name, no_effect, refuse_hung, write};
use crate::{ChangeError, MdevParentName, Sysfs};

/// What the kernel knows of a mediated device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MdevState {
    /// The id of its type.
    pub type_id: Option<String>,
    /// The name of its parent.
    pub parent: Option<String>,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
}

impl MdevState {
    /// Reads the state of a mediated device. `None` if there is no such device.
    pub fn read(sysfs: &Sysfs, uuid: &str) -> Result<Option<Self>, ChangeError> {
        let dir = sysfs.roots().mdev(uuid);
        let target = match std::fs::read_link(&dir) {
            Ok(target) => target,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ChangeError::Read { device: uuid.to_owned(), path: dir, source }),
        };
        let parent = target.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let type_id = link_name(&uuid, &dir.join("mdev_type"))?;
        let iommu_group = link_name(&uuid, &dir.join("iommu_group"))?.and_then(|group| group.parse().ok());
        Ok(Some(Self { type_id, parent, iommu_group }))
    }
}

/// Makes a mediated device of a type. One that exists with the same UUID, parent and type is left alone.
///
/// Choose the UUID and write it down before the call: then no crash can leave an instance that nobody knows.
pub fn create_mdev(sysfs: &Sysfs, parent: &MdevParentName, type_id: &str, uuid: &str) -> Result<(), ChangeError> {
    let uuid = uuid.to_ascii_lowercase();
    let exists = |sysfs: &Sysfs| {
        let Some(state) = MdevState::read(sysfs, &uuid)? else { return Ok(false) };
        if state.type_id.as_deref() == Some(type_id) && state.parent == Some(parent.to_string()) {
            return Ok(true);
        }
        let unknown = || "?".to_owned();
        let found_parent = state.parent.unwrap_or_else(unknown);
        let found_type = state.type_id.unwrap_or_else(unknown);
        Err(ChangeError::MdevDiffers {
            uuid: uuid.clone(),
            found: format!("type {found_type} of {found_parent}"),
            wanted: format!("type {type_id} of {parent}"),
        })
    };
    refuse_hung(sysfs, parent)?;
    if exists(sysfs)? {
        return Ok(());
    }
    let parent_dir = parent_dir(sysfs, parent);
    if !parent_dir.exists() {
        return Err(ChangeError::Gone { device: parent.to_string(), path: parent_dir });
    }
    let path = parent_dir.join("mdev_supported_types").join(type_id);
    if type_id.is_empty() || type_id.contains('/') || !path.exists() {
        return Err(ChangeError::NoMdevType { parent: parent.to_string(), type_id: type_id.to_owned(), path });
    }
    let path = path.join("create");
    // In the parent's name: while its driver hangs, no more threads are to be lost in it.
    let written = write(sysfs, parent, &path, &uuid)?;
    if exists(sysfs)? {
        return Ok(());
    }
    written?;
    Err(no_effect(parent, &path, &uuid, format!("there is no mediated device {uuid}")))
}

/// Removes a mediated device. One that is not there is no error.
pub fn remove_mdev(sysfs: &Sysfs, uuid: &str) -> Result<(), ChangeError> {
    // Also if it is still being made: then it is not there yet, and will be.
    refuse_hung(sysfs, &uuid)?;
    if MdevState::read(sysfs, uuid)?.is_none() {
        return Ok(());
    }
    let path = sysfs.roots().mdev(uuid).join("remove");
    let written = write(sysfs, &uuid, &path, "1")?;
    if MdevState::read(sysfs, uuid)?.is_none() {
        return Ok(());
    }
    written?;
    Err(no_effect(uuid, &path, "1", "it is still there".to_owned()))
}

fn parent_dir(sysfs: &Sysfs, parent: &MdevParentName) -> PathBuf {
    sysfs.roots().sys.join("class/mdev_bus").join(parent.to_string())
}
