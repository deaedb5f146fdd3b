//! The walk over all devices, and the pieces of it that an update repeats.

use std::collections::{BTreeMap, BTreeSet};

use drakkar_metadata::PciAddress;

use super::reader::{self, Reading};
use super::{Inventory, Problem, ScanError};
use crate::mdev::{self, sorted_names};
use crate::read::Dir;
use crate::{IommuGroup, PciDevice, Sysfs};

/// The directories that devices are looked up in. Those of features that the kernel does not have are missing.
pub(super) struct Directories<'a> {
    pub(super) devices: Dir<'a>,
    groups: Option<Dir<'a>>,
    mdevs: Option<Dir<'a>>,
    mdev_parents: Option<Dir<'a>>,
}

impl<'a> Directories<'a> {
    /// Opens those that are needed, each of which has its problems recorded.
    pub(super) fn open(sysfs: &'a Sysfs, problems: &mut Vec<Problem>) -> Result<Self, ScanError> {
        let path = sysfs.roots().pci_devices();
        let devices = match Dir::open(sysfs, path.clone()) {
            Ok(Some(devices)) => devices,
            Ok(None) => return Err(ScanError::List { path, source: std::io::ErrorKind::NotFound.into() }),
            Err(source) => return Err(ScanError::List { path, source }),
        };
        let mut optional = |name: &str| {
            let path = sysfs.roots().sys.join(name);
            Dir::open(sysfs, path.clone()).unwrap_or_else(|error| {
                problems.push(Problem { path, message: error.to_string() });
                None
            })
        };
        Ok(Self {
            devices,
            groups: optional("kernel/iommu_groups"),
            mdevs: optional("bus/mdev/devices"),
            mdev_parents: optional("class/mdev_bus"),
        })
    }
}

impl Inventory {
    /// Reads all devices. A device with missing or odd files is in the inventory, with its [`Problem`]s; only a host without
    /// PCI devices in sysfs is an error.
    pub fn scan(sysfs: &Sysfs) -> Result<Self, ScanError> {
        let mut inventory = Self::default();
        let mut problems = Vec::new();
        let directories = Directories::open(sysfs, &mut problems)?;

        let names = directories.devices.names();
        let names = names.map_err(|source| ScanError::List { path: directories.devices.path().to_owned(), source })?;
        let mut addresses = BTreeSet::new();
        for name in names {
            match name.map(|name| (name.parse::<PciAddress>(), name)) {
                Ok((Ok(address), _)) => drop(addresses.insert(address)),
                Ok((Err(error), name)) => {
                    problems.push(Problem { path: directories.devices.path().join(name), message: error.to_string() });
                }
                Err(problem) => problems.push(problem),
            }
        }
        inventory.read_devices(sysfs, &addresses);

        if let Some(mdevs) = &directories.mdevs {
            for uuid in sorted_names(mdevs, &mut problems) {
                inventory.read_mdev(&directories, &uuid);
            }
        }
        if let Some(parents) = &directories.mdev_parents {
            for name in sorted_names(parents, &mut problems) {
                inventory.read_mdev_parent(&directories, &name);
            }
        }

        let mut groups = inventory.linked_groups(|_| true);
        if let Some(directory) = &directories.groups {
            for name in sorted_names(directory, &mut problems) {
                match name.parse() {
                    Ok(id) => drop(groups.entry(id).or_default()),
                    Err(_) => problems.push(Problem {
                        path: directory.path().join(name),
                        message: "is not the number of a group".to_owned(),
                    }),
                }
            }
        }
        inventory.read_groups(&directories, groups, &mut problems);
        inventory.read_iommufd(sysfs);
        inventory.problems = problems;
        Ok(inventory)
    }

    /// Reads PCI devices again, or removes them. What cannot be read stays as it is, with a problem.
    pub(super) fn read_devices(&mut self, sysfs: &Sysfs, addresses: &BTreeSet<PciAddress>) {
        for (address, reading) in reader::read(sysfs, addresses) {
            match reading {
                Reading::Found(device) => drop(self.devices.insert(address, *device)),
                Reading::Absent => drop(self.devices.remove(&address)),
                Reading::Unknown(message) => {
                    let device = self.devices.entry(address).or_insert_with(|| PciDevice::new(address, ""));
                    let problem = Problem { path: sysfs.roots().pci_device(&address), message };
                    if !device.problems.contains(&problem) {
                        device.problems.push(problem);
                    }
                }
            }
        }
    }

    pub(super) fn read_mdev(&mut self, directories: &Directories<'_>, uuid: &str) {
        match directories.mdevs.as_ref().and_then(|mdevs| mdev::read(mdevs, uuid)) {
            Some(mdev) => drop(self.mdevs.insert(uuid.to_owned(), mdev)),
            None => drop(self.mdevs.remove(uuid)),
        }
    }

    /// Reads a parent of mediated devices again, unless it is a PCI device, or removes it.
    pub(super) fn read_mdev_parent(&mut self, directories: &Directories<'_>, name: &str) {
        if name.parse::<PciAddress>().is_ok() {
            return;
        }
        match directories.mdev_parents.as_ref().and_then(|parents| mdev::read_parent(parents, name)) {
            Some(parent) => drop(self.mdev_parents.insert(name.to_owned(), parent)),
            None => drop(self.mdev_parents.remove(name)),
        }
    }

    /// Returns the groups that PCI devices have links to, with these devices.
    fn linked_groups(&self, is_wanted: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<PciAddress>> {
        let mut groups = BTreeMap::<u32, Vec<PciAddress>>::new();
        for device in self.devices.values() {
            if let Some(group) = device.iommu_group.filter(|group| is_wanted(*group)) {
                groups.entry(group).or_default().push(device.address);
            }
        }
        groups
    }

    /// Reads some groups again, or removes them.
    pub(super) fn reread_groups(&mut self, directories: &Directories<'_>, ids: &BTreeSet<u32>) {
        let mut groups = self.linked_groups(|group| ids.contains(&group));
        for id in ids {
            groups.entry(*id).or_default();
        }
        let mut problems = Vec::new();
        self.read_groups(directories, groups, &mut problems);
        self.add_problems(problems);
    }

    /// Adds what is not known yet, so that the same problem does not pile up with every update.
    pub(super) fn add_problems(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
    }

    fn read_groups(
        &mut self,
        directories: &Directories<'_>,
        groups: BTreeMap<u32, Vec<PciAddress>>,
        problems: &mut Vec<Problem>,
    ) {
        for (id, linked) in groups {
            match IommuGroup::read(directories.groups.as_ref(), id, &self.devices, linked, problems) {
                Some(group) => drop(self.groups.insert(id, group)),
                None => drop(self.groups.remove(&id)),
            }
        }
    }

    pub(super) fn read_iommufd(&mut self, sysfs: &Sysfs) {
        self.iommufd = sysfs.roots().dev.join("iommu").exists();
    }
}
