//! What the host itself uses: its disks, its routes, its console.
//!
//! A device that the host lives on must not be given to a virtual machine by mistake. This finds such devices from the inside:
//! from the mounts, swaps and routes of process 1 over the virtual devices between (partitions, device mapper, RAID, bonds,
//! bridges, VLANs) down to the PCI devices. Bridges above them are not listed: they cannot be passed through.
//!
//! The [`Roots`](crate::Roots) must be the host's: in a container, `/proc` of the host, or a shared process namespace.
//! Where it is not known what is below a mounted disk (ZFS and its volumes, DRBD), this is a [`Problem`].
//!
//! Not seen: IPv4 routes of tables other than the main one, all but the first next hop of a multipath
//! route, interfaces with link-local addresses alone, mounts and routes in namespaces other than that of process 1, and disks
//! that a program has open without a mount.

mod block;
mod console;
mod network;
mod text;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use drakkar_metadata::PciAddress;

use crate::{Inventory, Problem, Sysfs};

/// What the host uses. With [`HostUse::problems`] it is not known completely.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostUse {
    /// The devices that the host uses, and what for.
    pub devices: BTreeMap<PciAddress, Vec<InUse>>,
    /// What could not be found out.
    pub problems: Vec<Problem>,
}

/// A use of a device by the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// What kind of use it is.
    pub kind: InUseKind,
    /// The use in words, such as `/dev/vda1 is mounted at /`.
    pub detail: String,
}

/// A kind of use of a device by the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InUseKind {
    /// A disk with the host's system is behind it.
    SystemDisk,
    /// A disk with another mounted file system is behind it.
    MountedDisk,
    /// A disk behind it is part of a volume: device mapper (LVM, multipath, encryption), RAID, bcache. It need not be mounted.
    Volume,
    /// Swap space is behind it.
    Swap,
    /// A default route goes over it.
    DefaultRoute,
    /// Another route goes over it.
    Route,
    /// An interface of it is part of another one: a bond, a bridge, a virtual switch.
    Interface,
    /// The console is on it.
    Console,
    /// One of its virtual functions is used.
    PhysicalFunction,
    /// It is in one IOMMU group with a device that is used.
    SameGroup,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl HostUse {
    /// Finds out what the host uses.
    pub fn find(sysfs: &Sysfs, inventory: &Inventory) -> Self {
        let mut found = Self::without_inventory(sysfs);
        console::find(sysfs, inventory, &mut found);
        found.add_physical_functions(inventory);
        found.add_groups(inventory);
        found
    }

    /// Finds out which disks and network cards the host uses itself, without what follows from groups and virtual functions.
    /// For a look at few devices: no device is read.
    pub fn without_inventory(sysfs: &Sysfs) -> Self {
        let mut found = Self::default();
        block::find(sysfs, &mut found);
        network::find(sysfs, &mut found);
        found
    }

    /// Returns the uses of a device. Empty: the host does not use it.
    pub fn of(&self, address: &PciAddress) -> &[InUse] {
        self.devices.get(address).map_or(&[], Vec::as_slice)
    }

    /// Adds a use, once.
    fn add(&mut self, address: PciAddress, kind: InUseKind, detail: String) {
        let uses = self.devices.entry(address).or_default();
        let new = InUse { kind, detail };
        if !uses.contains(&new) {
            uses.push(new);
        }
    }

    fn problem(&mut self, path: impl Into<PathBuf>, message: impl Into<String>) {
        let problem = Problem { path: path.into(), message: message.into() };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// A physical function takes its virtual functions with it.
    fn add_physical_functions(&mut self, inventory: &Inventory) {
        let used: Vec<PciAddress> = self.devices.keys().copied().collect();
        for address in used {
            let physical = inventory.devices.get(&address).and_then(|device| device.physical_function);
            if let Some(physical) = physical {
                let detail = format!("its virtual function {address} is used: {}", self.first_detail(&address));
                self.add(physical, InUseKind::PhysicalFunction, detail);
            }
        }
    }

    /// A group goes to user space as a whole.
    fn add_groups(&mut self, inventory: &Inventory) {
        let used: Vec<PciAddress> = self.devices.keys().copied().collect();
        for address in used {
            let group = inventory.devices.get(&address).and_then(|device| device.iommu_group);
            let Some(group) = group.and_then(|group| inventory.groups.get(&group)) else { continue };
            let detail = self.first_detail(&address);
            for member in group.devices.iter().filter(|member| **member != address) {
                // A bridge in the group is not passed through and needs no protection.
                if inventory.devices.get(member).is_some_and(|device| !device.is_pci_bridge()) {
                    let detail = format!("it is in IOMMU group {} with {address}, which is used: {detail}", group.id);
                    self.add(*member, InUseKind::SameGroup, detail);
                }
            }
        }
    }

    fn first_detail(&self, address: &PciAddress) -> String {
        self.of(address).first().map(ToString::to_string).unwrap_or_default()
    }
}

/// Returns the PCI device that a path below sysfs leads to: the last one in it. Those before are bridges.
pub(crate) fn controller(path: &Path) -> Option<PciAddress> {
    path.components().rev().find_map(|part| part.as_os_str().to_str()?.parse().ok())
}

/// Returns the path of a link's target below sysfs. `None` if there is no such link.
pub(crate) fn target(sysfs: &Sysfs, link: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(sysfs.roots().sys.join(link)).ok()?;
    let directory = sysfs.roots().sys.join(link.parent().unwrap_or(Path::new("")));
    crate::read::resolve(&directory, &target).strip_prefix(&sysfs.roots().sys).ok().map(Path::to_owned)
}

/// Adds a problem if a directory below sysfs is there and cannot be read.
fn require_readable(sysfs: &Sysfs, directory: &str, found: &mut HostUse) {
    let path = sysfs.roots().sys.join(directory);
    match std::fs::read_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => found.problem(path, error.to_string()),
        _ => {}
    }
}

/// Returns the names in a directory below sysfs that are text, in order. A directory that does not exist has none.
fn names(sysfs: &Sysfs, directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(sysfs.roots().sys.join(directory)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn last(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)
}
