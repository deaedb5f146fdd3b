//! Updates of an inventory: what an event names is read again, with its group, its physical function and its parent.
//!
//! An event says where to look and not what is there: the state is read when the event is handled, when the kernel may be
//! further already. So every action is handled in the same way, and a late event does no harm.

use std::collections::BTreeSet;
use std::path::Path;

use drakkar_metadata::PciAddress;

use super::scan::Directories;
use super::{Changes, Inventory, ScanError};
use crate::{DeviceEvent, MdevParentName, Sysfs, Uevent};

/// What is to be read again.
#[derive(Debug, Default)]
struct Stale {
    devices: BTreeSet<PciAddress>,
    mdevs: BTreeSet<String>,
    mdev_parents: BTreeSet<String>,
    is_iommufd: bool,
}

/// What a device belongs to, of which an event about the device may be the only news.
#[derive(Debug)]
struct Relations {
    group: Option<u32>,
    physical_function: Option<PciAddress>,
    upstream: Option<PciAddress>,
    /// Whether it is there now and was not, or the other way round.
    came_or_went: bool,
}

impl Inventory {
    /// Reads again what an event names. Events of other subsystems change nothing and cost nothing.
    pub fn apply(&mut self, sysfs: &Sysfs, event: &Uevent) -> Result<Changes, ScanError> {
        self.apply_all(sysfs, std::slice::from_ref(event))
    }

    /// Reads again what some events name, each device once.
    pub fn apply_all(&mut self, sysfs: &Sysfs, events: &[Uevent]) -> Result<Changes, ScanError> {
        let mut stale = Stale::default();
        for event in events {
            match event {
                Uevent::Overflow => return self.rescan(sysfs),
                Uevent::Device(event) => stale.add(event),
            }
        }
        self.update(sysfs, stale)
    }

    /// Reads some devices again, for what the kernel sends no events about: the link and the configuration space.
    pub fn refresh(
        &mut self,
        sysfs: &Sysfs,
        devices: impl IntoIterator<Item = PciAddress>,
    ) -> Result<Changes, ScanError> {
        self.update(sysfs, Stale { devices: devices.into_iter().collect(), ..Stale::default() })
    }

    /// Reads everything again and compares.
    fn rescan(&mut self, sysfs: &Sysfs) -> Result<Changes, ScanError> {
        let before = std::mem::replace(self, Self::scan(sysfs)?);
        let mut changes = Changes { rescanned: true, ..Changes::default() };
        let devices = before.devices.keys().chain(self.devices.keys()).copied();
        devices.for_each(|address| changes.device(address, before.devices.get(&address), self.devices.get(&address)));
        let groups = before.groups.keys().chain(self.groups.keys()).copied();
        changes.groups = groups.filter(|id| before.groups.get(id) != self.groups.get(id)).collect();
        let mdevs = before.mdevs.keys().chain(self.mdevs.keys());
        changes.mdevs = mdevs.filter(|uuid| before.mdevs.get(*uuid) != self.mdevs.get(*uuid)).cloned().collect();
        let parents = before.mdev_parents.keys().chain(self.mdev_parents.keys());
        let has_changed = |name: &&String| before.mdev_parents.get(*name) != self.mdev_parents.get(*name);
        changes.mdev_parents = parents.filter(has_changed).cloned().collect();
        Ok(changes)
    }

    fn update(&mut self, sysfs: &Sysfs, mut stale: Stale) -> Result<Changes, ScanError> {
        let mut changes = Changes::default();
        if stale.is_iommufd {
            self.read_iommufd(sysfs);
        }
        if stale.devices.is_empty() && stale.mdevs.is_empty() && stale.mdev_parents.is_empty() {
            return Ok(changes);
        }
        let mut problems = Vec::new();
        let directories = Directories::open(sysfs, &mut problems)?;
        self.add_problems(problems);
        let mut groups = BTreeSet::new();

        for uuid in &stale.mdevs {
            let before = self.mdevs.get(uuid).cloned();
            self.read_mdev(&directories, uuid);
            let after = self.mdevs.get(uuid);
            groups.extend([&before, &after.cloned()].into_iter().flatten().filter_map(|mdev| mdev.iommu_group));
            // The parent has one instance less to give, or one more.
            for mdev in before.iter().chain(after) {
                match &mdev.parent {
                    MdevParentName::Pci(address) => drop(stale.devices.insert(*address)),
                    MdevParentName::Other(name) => drop(stale.mdev_parents.insert(name.clone())),
                }
            }
            if before.as_ref() != after {
                changes.mdevs.insert(uuid.clone());
            }
        }
        for name in &stale.mdev_parents {
            let before = self.mdev_parents.get(name).cloned();
            self.read_mdev_parent(&directories, name);
            if before.as_ref() != self.mdev_parents.get(name) {
                changes.mdev_parents.insert(name.clone());
            }
        }

        let mut related = BTreeSet::new();
        for device in self.reread(sysfs, &stale.devices, &mut changes) {
            groups.extend(device.group);
            related.extend(device.physical_function);
            // The port above a slot has another link with a device in it than without.
            related.extend(device.upstream.filter(|_| device.came_or_went));
        }
        // A physical function whose virtual functions come or go has other numbers; its own group stays.
        let related = related.difference(&stale.devices).copied().collect();
        self.reread(sysfs, &related, &mut changes);

        let before: Vec<_> = groups.iter().map(|id| (*id, self.groups.get(id).cloned())).collect();
        self.reread_groups(&directories, &groups);
        let has_changed = |(id, before): (u32, Option<_>)| (before.as_ref() != self.groups.get(&id)).then_some(id);
        changes.groups = before.into_iter().filter_map(has_changed).collect();
        Ok(changes)
    }

    /// Reads devices again. Returns what each belongs to, as it was and as it is.
    fn reread(&mut self, sysfs: &Sysfs, addresses: &BTreeSet<PciAddress>, changes: &mut Changes) -> Vec<Relations> {
        let before: Vec<_> = addresses.iter().map(|address| (*address, self.devices.get(address).cloned())).collect();
        self.read_devices(sysfs, addresses);
        let mut related = Vec::new();
        for (address, before) in before {
            let after = self.devices.get(&address);
            changes.device(address, before.as_ref(), after);
            let came_or_went = before.is_some() != after.is_some();
            related.extend(before.iter().chain(after).map(|device| Relations {
                group: device.iommu_group,
                physical_function: device.physical_function,
                upstream: device.upstream,
                came_or_went,
            }));
        }
        related
    }
}

impl Changes {
    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        let Self { added, removed, changed, groups, mdevs, mdev_parents, rescanned: _ } = self;
        [added, removed, changed].iter().all(|set| set.is_empty())
            && groups.is_empty()
            && mdevs.is_empty()
            && mdev_parents.is_empty()
    }

    fn device<T: PartialEq>(&mut self, address: PciAddress, before: Option<&T>, after: Option<&T>) {
        match (before, after) {
            (None, Some(_)) => drop(self.added.insert(address)),
            (Some(_), None) => drop(self.removed.insert(address)),
            (before, after) if before != after => drop(self.changed.insert(address)),
            _ => {}
        }
    }
}

impl Stale {
    fn add(&mut self, event: &DeviceEvent) {
        let name = last(&event.path);
        match event.subsystem.as_str() {
            "pci" => self.devices.extend(name.and_then(|name| name.parse::<PciAddress>().ok())),
            "mdev" => self.mdevs.extend(name.map(str::to_owned)),
            // …/0000:65:00.0/vfio-dev/vfio0: the character device of a PCI or mediated device.
            "vfio-dev" => match event.path.ancestors().nth(2).and_then(last).map(|name| (name, name.parse())) {
                Some((_, Ok(address))) => drop(self.devices.insert(address)),
                Some((uuid, Err(_))) => drop(self.mdevs.insert(uuid.to_owned())),
                None => {}
            },
            "misc" if name == Some("iommu") => self.is_iommufd = true,
            // Of any other subsystem: a driver has begun or ceased to offer mediated devices.
            _ if event.properties.contains_key("MDEV_STATE") => self.mdev_parents.extend(name.map(str::to_owned)),
            _ => {}
        }
    }
}

fn last(path: &Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}
