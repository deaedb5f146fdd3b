//! Reading mediated devices, their types and their parents.

use std::ffi::OsStr;
use std::path::Path;

use super::{Mdev, MdevParent, MdevParentName, MdevType};
use crate::Problem;
use crate::read::{Dir, Fields};

/// Reads the types of mediated devices that a device has.
pub(crate) fn read_types(device: &mut Fields<'_>) -> Vec<MdevType> {
    let dir = device.dir.dir("mdev_supported_types");
    let Some(dir) = device.take("mdev_supported_types", dir) else { return Vec::new() };
    let mut types = Vec::new();
    for id in sorted_names(&dir, &mut device.problems) {
        let directory = dir.dir(&id);
        let Some(directory) = device.take(&format!("mdev_supported_types/{id}"), directory) else { continue };
        let mut fields = Fields::new(&directory);
        types.push(MdevType {
            name: fields.text("name").filter(|text| !text.is_empty()),
            description: fields.text("description").filter(|text| !text.is_empty()),
            device_api: fields.text("device_api").filter(|text| !text.is_empty()),
            available_instances: fields.number("available_instances").unwrap_or_default(),
            instances: instances(&mut fields),
            id,
        });
        device.problems.append(&mut fields.problems);
    }
    types
}

/// Returns the number of instances of a type.
fn instances(mdev_type: &mut Fields<'_>) -> u32 {
    let dir = mdev_type.dir.dir("devices");
    let Some(dir) = mdev_type.take("devices", dir) else { return 0 };
    u32::try_from(sorted_names(&dir, &mut mdev_type.problems).len()).unwrap_or(u32::MAX)
}

/// Reads a mediated device from the directory with the links to all of them. `None` if it is not there.
pub(crate) fn read(mdevs: &Dir<'_>, uuid: &str) -> Option<Mdev> {
    let mut link = Fields::new(mdevs);
    let path = mdevs.target_below_sys(uuid);
    let path = link.take(uuid, path).unwrap_or_default();
    let dir = mdevs.dir(uuid);
    let dir = link.take(uuid, dir)?;
    let mut fields = Fields::new(&dir);
    fields.problems = link.problems;
    let parent = path.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
    let mut mdev = Mdev {
        uuid: uuid.to_owned(),
        type_id: fields.link("mdev_type"),
        parent: parent_name(parent),
        driver: fields.link("driver"),
        iommu_group: fields.link_to("iommu_group", "the number of a group"),
        vfio_cdev: fields.vfio_cdev(),
        path,
        problems: Vec::new(),
    };
    if mdev.type_id.is_none() && fields.problems.is_empty() {
        fields.problem("mdev_type", "there is no such link");
    }
    mdev.problems = fields.problems;
    let is_gone = !mdev.problems.is_empty() && !mdevs.exists(uuid);
    (!is_gone).then_some(mdev)
}

/// Reads a parent that is no PCI device from the directory with the links to all parents. `None` if it is not there.
pub(crate) fn read_parent(parents: &Dir<'_>, name: &str) -> Option<MdevParent> {
    let mut link = Fields::new(parents);
    let path = parents.target_below_sys(name);
    let path = link.take(name, path).unwrap_or_default();
    let dir = parents.dir(name);
    let dir = link.take(name, dir)?;
    let mut fields = Fields::new(&dir);
    fields.problems = link.problems;
    let mdev_types = read_types(&mut fields);
    Some(MdevParent { name: name.to_owned(), path, mdev_types, problems: fields.problems })
}

fn parent_name(name: &str) -> MdevParentName {
    name.parse().map_or_else(|_| MdevParentName::Other(name.to_owned()), MdevParentName::Pci)
}

/// Returns the names in a directory in order. What is wrong with it is a problem.
pub(crate) fn sorted_names(dir: &Dir<'_>, problems: &mut Vec<Problem>) -> Vec<String> {
    let mut names = Vec::new();
    match dir.names() {
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(name) => names.push(name),
                    Err(problem) => problems.push(problem),
                }
            }
        }
        Err(error) => problems.push(Problem { path: dir.path().to_owned(), message: error.to_string() }),
    }
    names.sort_unstable();
    names
}
