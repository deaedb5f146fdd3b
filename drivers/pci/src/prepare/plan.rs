//! What has to be changed for a claim, and whether it may be. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{Binding, ChangeError, MdevParentName, MdevState, PciAddress, VfCount, virtual_function};

use super::turns::Key;
use super::{DeviceManager, DeviceRequest, PrepareError, VFIO_PCI};
use crate::journal::{DeviceRecord, FunctionRecord, Phase, PhysicalFunctionRecord, Record};
use crate::mode::Mode;
use crate::target::Target;

impl DeviceManager {
    /// Returns the record of a claim that is about to be prepared. The functions of virtual functions that do not exist yet are
    /// missing in it.
    pub(super) fn plan(&self, claim: &ClaimRef, requests: &[DeviceRequest]) -> Result<Record, PrepareError> {
        let mut record = Record {
            claim: claim.clone(),
            boot: self.boot.clone(),
            phase: Phase::Preparing,
            devices: Vec::new(),
            functions: Vec::new(),
            physical_functions: Vec::new(),
        };
        for request in requests {
            let target = &request.target;
            if record.devices.iter().any(|device| device.target == *target) {
                return Err(PrepareError::Duplicate { claim: Box::new(claim.clone()), device: target.clone() });
            }
            self.refuse_conflicts(claim, request)?;
            let mut device = DeviceRecord {
                target: target.clone(),
                mode: request.mode,
                iommu_backend: request.iommu_backend,
                address: None,
                uuid: None,
                prepared: None,
            };
            match target {
                Target::Function(_) => {}
                Target::VirtualFunction { physical, index } => {
                    self.plan_virtual_function(&mut record, request, *physical, *index)?;
                }
                // Chosen now and written down first, so that a crash cannot leave an instance that nobody knows.
                Target::NewMdev { .. } => device.uuid = Some(uuid::Uuid::new_v4().to_string()),
                Target::Mdev { uuid } => {
                    let state = self.change(claim, target, MdevState::read(&self.sysfs, uuid))?;
                    let gone = || ChangeError::Gone { device: uuid.clone(), path: self.sysfs.roots().mdev(uuid) };
                    self.change(claim, target, state.ok_or_else(gone))?;
                    device.uuid = Some(uuid.clone());
                }
            }
            record.devices.push(device);
        }
        self.plan_functions(&mut record, requests)?;
        Ok(record)
    }

    /// Adds the number of virtual functions that a device needs.
    fn plan_virtual_function(
        &self,
        record: &mut Record,
        request: &DeviceRequest,
        physical: PciAddress,
        index: u16,
    ) -> Result<(), PrepareError> {
        let read = VfCount::read(&self.sysfs, physical);
        let VfCount { current, .. } = self.change(&record.claim, &request.target, read)?;
        let needed = index.saturating_add(1);
        let wanted = if current >= needed { current } else { needed.max(request.virtual_functions) };
        if let Some(known) = record.physical_functions.iter_mut().find(|known| known.address == physical) {
            known.num_vfs = known.num_vfs.max(wanted);
            return Ok(());
        }
        let records = self.records();
        let others = records.values().filter(|other| other.claim.uid != record.claim.uid);
        let known = others.flat_map(|other| &other.physical_functions).find(|other| other.address == physical);
        let former_vfs = known.map_or(current, |known| known.former_vfs);
        record.physical_functions.push(PhysicalFunctionRecord { address: physical, former_vfs, num_vfs: wanted });
        Ok(())
    }

    /// Adds the functions whose driver has to change, for every device whose function exists and will stay. Returns whether
    /// anything was added.
    pub(super) fn plan_functions(&self, record: &mut Record, requests: &[DeviceRequest]) -> Result<bool, PrepareError> {
        let claim = record.claim.clone();
        let mut functions: BTreeMap<PciAddress, FunctionRecord> =
            record.functions.iter().map(|function| (function.address, function.clone())).collect();
        // All addresses first: a device of the claim is no companion of another one.
        let mut new = Vec::new();
        for request in requests {
            let is_this = |device: &DeviceRecord| device.target == request.target && device.address.is_none();
            let Some(position) = record.devices.iter().position(is_this) else { continue };
            let Some(address) = self.function_of(record, request)? else { continue };
            if record.devices.iter().any(|device| device.address == Some(address)) {
                return Err(PrepareError::Duplicate { claim: Box::new(claim), device: request.target.clone() });
            }
            record.devices[position].address = Some(address);
            new.push((request, address));
        }
        for (request, address) in &new {
            self.refuse_held(&claim, request, *address)?;
            self.refuse_group_in_use(&claim, request, *address)?;
            match request.mode {
                Mode::None => drop(self.binding(&claim, request, *address)?),
                Mode::Kernel => {
                    functions.insert(*address, self.function_record(&claim, request, *address, None)?);
                }
                Mode::Vfio => self.plan_group(record, request, *address, &mut functions)?,
            }
        }
        record.functions = functions.into_values().collect();
        Ok(!new.is_empty())
    }

    /// Returns the function of a device, unless it has none, or it is yet to be made.
    fn function_of(&self, record: &Record, request: &DeviceRequest) -> Result<Option<PciAddress>, PrepareError> {
        match &request.target {
            Target::Function(address) => Ok(Some(*address)),
            Target::VirtualFunction { physical, index } => {
                let planned = record.physical_functions.iter().find(|known| known.address == *physical);
                let read = VfCount::read(&self.sysfs, *physical);
                let now = self.change(&record.claim, &request.target, read)?.current;
                if planned.is_some_and(|planned| planned.num_vfs != now) {
                    return Ok(None);
                }
                self.change(&record.claim, &request.target, virtual_function(&self.sysfs, *physical, *index))
            }
            Target::NewMdev { .. } | Target::Mdev { .. } => Ok(None),
        }
    }

    /// Adds a function for user space, and the members of its group that have to go along.
    fn plan_group(
        &self,
        record: &Record,
        request: &DeviceRequest,
        address: PciAddress,
        functions: &mut BTreeMap<PciAddress, FunctionRecord>,
    ) -> Result<(), PrepareError> {
        let claim = &record.claim;
        let boxed = || Box::new(claim.clone());
        self.binding(claim, request, address)?;
        let group = self.group_of(address);
        if let Some(published) = request.iommu_group
            && group != Some(published)
        {
            let device = request.target.clone();
            return Err(PrepareError::GroupChanged { claim: boxed(), device, published, now: group });
        }
        let Some(group) = group else {
            return Err(PrepareError::NoGroup { claim: boxed(), device: request.target.clone() });
        };
        if self.is_without_iommu(group) {
            return Err(PrepareError::NoIommu { claim: boxed(), device: request.target.clone(), group });
        }
        let mut refused = Vec::new();
        for member in self.members_of(group) {
            let is_own =
                record.devices.iter().any(|device| device.mode == Mode::Vfio && device.address == Some(member));
            let read = Binding::read(&self.sysfs, member);
            let Some(now) = self.change(claim, &request.target, read)? else { continue };
            let in_the_way = now.driver.as_deref().filter(|driver| !allows_user_space(driver));
            if !is_own {
                // A member without driver stays so: the kernel gives it to none while user space has the group.
                let Some(driver) = in_the_way else { continue };
                if !request.companions.contains(&member) {
                    refused.push((member, driver.to_owned()));
                    continue;
                }
            }
            let driver = now.driver.as_deref().filter(|driver| driver.contains("vfio")).unwrap_or(VFIO_PCI);
            functions.insert(member, self.function_record(claim, request, member, Some(driver))?);
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(PrepareError::Companions { claim: boxed(), device: request.target.clone(), group, members: refused })
    }

    /// Returns the record of a function with its first state: that of another claim that has changed it, or what it is now.
    fn function_record(
        &self,
        claim: &ClaimRef,
        request: &DeviceRequest,
        address: PciAddress,
        driver: Option<&str>,
    ) -> Result<FunctionRecord, PrepareError> {
        if let Some(other) = self.function_of_other(claim, address) {
            return Ok(other);
        }
        let now = self.binding(claim, request, address)?;
        let stays = match (driver, now.driver.as_deref()) {
            (_, None) => true,
            (Some(wanted), Some(now)) => now == wanted,
            (None, Some(now)) => !now.contains("vfio"),
        };
        if !stays && let Some(parts) = self.change(claim, &request.target, self.parts_of(address))? {
            let boxed = Box::new(claim.clone());
            let device = request.target.clone();
            return Err(PrepareError::HasParts { claim: boxed, device, function: address, parts });
        }
        Ok(FunctionRecord {
            address,
            ids: self.ids_of(address),
            driver: driver.map(str::to_owned),
            former_driver: now.driver,
            former_override: now.driver_override,
        })
    }

    /// Returns what would be destroyed if a function left its driver.
    fn parts_of(&self, address: PciAddress) -> Result<Option<String>, ChangeError> {
        let vfs = match VfCount::read(&self.sysfs, address) {
            Ok(count) => count.current,
            Err(ChangeError::NoSriov { .. } | ChangeError::Gone { .. }) => 0,
            Err(error) => return Err(error),
        };
        if vfs > 0 {
            return Ok(Some(format!("{vfs} virtual functions")));
        }
        let types = self.sysfs.roots().pci_device(&address).join("mdev_supported_types");
        let mdevs: usize = names(&types).iter().map(|id| names(&types.join(id).join("devices")).len()).sum();
        Ok((mdevs > 0).then(|| format!("{mdevs} mediated devices")))
    }

    /// Returns the binding of a function that must exist.
    fn binding(&self, claim: &ClaimRef, request: &DeviceRequest, address: PciAddress) -> Result<Binding, PrepareError> {
        let path = self.sysfs.roots().pci_device(&address);
        let read = Binding::read(&self.sysfs, address)
            .and_then(|binding| binding.ok_or(ChangeError::Gone { device: address.to_string(), path }));
        self.change(claim, &request.target, read)
    }

    /// Returns the ids of a function. Empty if there is none.
    pub(super) fn ids_of(&self, address: PciAddress) -> String {
        let dir = self.sysfs.roots().pci_device(&address);
        let files = ["vendor", "device", "subsystem_vendor", "subsystem_device"];
        let ids = files.map(|file| std::fs::read_to_string(dir.join(file)).unwrap_or_default());
        let ids = ids.iter().map(|text| text.trim().trim_start_matches("0x"));
        ids.filter(|id| !id.is_empty()).collect::<Vec<_>>().join(":")
    }

    /// Returns the IOMMU group of a function.
    pub(super) fn group_of(&self, address: PciAddress) -> Option<u32> {
        link_name(&self.sysfs.roots().pci_device(&address).join("iommu_group"))?.parse().ok()
    }

    /// Returns the physical function of a virtual function.
    pub(super) fn physical_function_of(&self, address: PciAddress) -> Option<PciAddress> {
        link_name(&self.sysfs.roots().pci_device(&address).join("physfn"))?.parse().ok()
    }

    /// Returns the groups of a claim's functions.
    pub(super) fn groups_of(&self, record: &Record) -> BTreeSet<u32> {
        let devices = record.devices.iter().filter_map(|device| device.address);
        let functions = record.functions.iter().map(|function| function.address);
        devices.chain(functions).filter_map(|address| self.group_of(address)).collect()
    }

    /// Returns whether VFIO has made a group because there is no IOMMU.
    fn is_without_iommu(&self, group: u32) -> bool {
        let name = self.sysfs.roots().group_devices(group).with_file_name("name");
        std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "vfio-noiommu")
    }

    /// Returns the functions of a group.
    pub(super) fn members_of(&self, group: u32) -> BTreeSet<PciAddress> {
        let members = names(&self.sysfs.roots().group_devices(group));
        members.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Adds what a call for a device works on.
    pub(super) fn add_keys(&self, target: &Target, keys: &mut BTreeSet<Key>) {
        match target {
            Target::Function(address) => self.add_function_keys(*address, keys),
            Target::VirtualFunction { physical, index } => {
                keys.insert(Key::Device(physical.to_string()));
                if let Ok(Some(address)) = virtual_function(&self.sysfs, *physical, *index) {
                    self.add_function_keys(address, keys);
                }
            }
            Target::NewMdev { parent: MdevParentName::Pci(address), .. } => self.add_function_keys(*address, keys),
            Target::NewMdev { parent: MdevParentName::Other(name), .. } => {
                keys.insert(Key::Device(name.clone()));
            }
            Target::Mdev { uuid } => {
                let parent = MdevState::read(&self.sysfs, uuid).ok().flatten().and_then(|state| state.parent);
                match parent.as_deref().map(str::parse) {
                    Some(Ok(address)) => self.add_function_keys(address, keys),
                    _ => drop(keys.insert(Key::Device(uuid.clone()))),
                }
            }
        }
    }

    fn add_function_keys(&self, address: PciAddress, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::Device(address.to_string()));
        keys.extend(self.group_of(address).map(Key::Group));
        let physical = link_name(&self.sysfs.roots().pci_device(&address).join("physfn"));
        keys.extend(physical.map(Key::Device));
    }

    /// Adds what taking a record back works on.
    pub(super) fn add_record_keys(&self, record: &Record, keys: &mut BTreeSet<Key>) {
        record.devices.iter().for_each(|device| self.add_keys(&device.target, keys));
        record.functions.iter().for_each(|function| self.add_function_keys(function.address, keys));
        keys.extend(record.physical_functions.iter().map(|physical| Key::Device(physical.address.to_string())));
    }
}

/// Returns whether the kernel gives a group to user space while a member has this driver.
fn allows_user_space(driver: &str) -> bool {
    matches!(driver, "pcieport" | "pci-stub") || driver.contains("vfio")
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn link_name(path: &PathBuf) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}
