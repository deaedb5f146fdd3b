//! Doing what a record says, and taking it back. Both can be repeated from any state in between.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::path::Path;

use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{
    Binding, ChangeError, HostUse, MdevState, PciAddress, Restored, VfCount, bind_to, bind_to_kernel_driver,
    create_mdev, remove_mdev, restore, set_num_vfs,
};

use super::turns::{Key, Turn};
use super::{DeviceManager, DeviceRequest, PrepareError, PreparedDevice};
use crate::journal::{DeviceRecord, FunctionRecord, Phase, PhysicalFunctionRecord, PreparedRecord, Record};
use crate::mode::Mode;
use crate::nodes::{kernel_nodes, vfio_nodes};
use crate::target::Target;

impl DeviceManager {
    /// Does what a record says for the first time.
    pub(super) fn apply(
        &self,
        record: &mut Record,
        requests: &[DeviceRequest],
        turn: &Turn<'_>,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        self.write_journal(record)?;
        self.make_virtual_functions(record)?;
        let is_changed = self.plan_functions(record, requests)?;
        // The groups of virtual functions that were just made are known only now.
        let groups: BTreeSet<Key> = self.groups_of(record).into_iter().map(Key::Group).collect();
        let groups = groups.into_iter().filter(|key| !turn.has(key)).collect();
        let _groups_turn = self.turns.take_now(&record.claim, groups)?;
        self.refuse_groups_in_use(record, requests)?;
        if is_changed {
            self.remember(record);
            self.write_journal(record)?;
        }
        self.carry_out(record)?;
        record.phase = Phase::Prepared;
        self.write_journal(record)?;
        self.remember(record);
        self.answer(record)
    }

    /// Does again what the record of a prepared claim says: nothing, unless somebody else has changed something since.
    pub(super) fn confirm(&self, record: &mut Record) -> Result<Vec<PreparedDevice>, PrepareError> {
        let before = record.clone();
        self.make_virtual_functions(record)?;
        self.carry_out(record)?;
        if *record != before {
            self.write_journal(record)?;
            self.remember(record);
        }
        self.answer(record)
    }

    fn make_virtual_functions(&self, record: &Record) -> Result<(), PrepareError> {
        // Found out only if there are virtual functions that a change would remove.
        let host_use = LazyCell::new(|| HostUse::without_inventory(&self.sysfs));
        for physical in &record.physical_functions {
            let PhysicalFunctionRecord { address, num_vfs, .. } = physical;
            let user = |vf| self.user_of(vf).or_else(|| use_by_host(&host_use, vf));
            let set = set_num_vfs(&self.sysfs, *address, *num_vfs, user);
            self.change(&record.claim, &Target::Function(*address), set)?;
        }
        Ok(())
    }

    /// Makes mediated devices, binds functions, writes the CDI spec, and notes the results in the record.
    fn carry_out(&self, record: &mut Record) -> Result<(), PrepareError> {
        let claim = record.claim.clone();
        for (parent, type_id, uuid) in record.made_mdevs() {
            let created = create_mdev(&self.sysfs, parent, type_id, uuid);
            created.map_err(|source| change_error(&claim, format!("mediated device {uuid}"), source))?;
        }
        for function in &record.functions {
            self.require_same_device(&claim, function)?;
            let bound = match &function.driver {
                Some(driver) => bind_to(&self.sysfs, function.address, driver),
                None => {
                    bind_to_kernel_driver(&self.sysfs, function.address, |driver| !driver.contains("vfio")).map(drop)
                }
            };
            bound.map_err(|source| change_error(&claim, function.address.to_string(), source))?;
        }
        let mut prepared = Vec::new();
        for device in &record.devices {
            prepared.push(self.results(record, device)?);
        }
        for (device, prepared) in record.devices.iter_mut().zip(prepared) {
            device.prepared = Some(prepared);
        }
        self.write_spec(record)
    }

    /// Fails if a function is gone, or another device is at its address.
    fn require_same_device(&self, claim: &ClaimRef, function: &FunctionRecord) -> Result<(), PrepareError> {
        let ids = self.ids_of(function.address);
        if ids == function.ids {
            return Ok(());
        }
        let was = if ids.is_empty() { String::new() } else { format!(" (was {}, now {ids})", function.ids) };
        let gone = ChangeError::Gone {
            device: format!("{}{was}", function.address),
            path: self.sysfs.roots().pci_device(&function.address),
        };
        Err(change_error(claim, function.address.to_string(), gone))
    }

    /// Writes the CDI spec of a claim, unless it is there already.
    pub(super) fn write_spec(&self, record: &Record) -> Result<(), PrepareError> {
        let nodes =
            |device: &DeviceRecord| device.prepared.iter().flat_map(|prepared| prepared.nodes.clone()).collect();
        let devices: Vec<(String, Vec<String>)> =
            record.devices.iter().map(|device| (device.target.name(), nodes(device))).collect();
        let written = self.specs.write(&record.claim.uid, &devices);
        written.map_err(|source| PrepareError::Cdi { claim: Box::new(record.claim.clone()), source })
    }

    /// Reads what has become of a device.
    fn results(&self, record: &Record, device: &DeviceRecord) -> Result<PreparedRecord, PrepareError> {
        let claim = &record.claim;
        let (dir, iommu_group, driver) = match (&device.uuid, device.address) {
            (Some(uuid), _) => {
                let state = self.change(claim, &device.target, MdevState::read(&self.sysfs, uuid))?;
                let dir = self.sysfs.roots().mdev(uuid);
                let driver = link_name(&dir.join("driver"));
                (dir, state.and_then(|state| state.iommu_group), driver)
            }
            (None, Some(address)) => {
                let binding = self.change(claim, &device.target, Binding::read(&self.sysfs, address))?;
                let path = self.sysfs.roots().pci_device(&address);
                let gone = || ChangeError::Gone { device: address.to_string(), path: path.clone() };
                let binding = self.change(claim, &device.target, binding.ok_or_else(gone))?;
                (path, self.group_of(address), binding.driver)
            }
            (None, None) => {
                // The number of virtual functions is right, and this one is not among them.
                let path = self.sysfs.roots().sys.join("bus/pci/devices");
                let gone = ChangeError::Gone { device: device.target.to_string(), path };
                return self.change(claim, &device.target, Err(gone));
            }
        };
        let is_mdev = device.uuid.is_some();
        let nodes = match device.mode {
            Mode::None => Ok(Vec::new()),
            Mode::Vfio => vfio_nodes(&self.sysfs, &dir, iommu_group, device.iommu_backend),
            // A mediated device has no driver but that of VFIO.
            Mode::Kernel if is_mdev => vfio_nodes(&self.sysfs, &dir, iommu_group, device.iommu_backend),
            Mode::Kernel => kernel_nodes(&self.sysfs, &dir),
        };
        let nodes = nodes.map_err(|source| PrepareError::Node {
            claim: Box::new(claim.clone()),
            device: device.target.clone(),
            source,
        })?;
        let members = iommu_group.filter(|_| device.mode == Mode::Vfio).map(|group| self.members_of(group));
        let members = members.unwrap_or_default();
        let is_own = |address| record.devices.iter().any(|own| own.address == Some(address));
        let companions = record.functions.iter().map(|function| function.address);
        let companions = companions.filter(|address| members.contains(address) && !is_own(*address)).collect();
        Ok(PreparedRecord { iommu_group, driver, nodes, companions })
    }

    /// Returns the answer to a claim about its devices.
    pub(super) fn answer(&self, record: &Record) -> Result<Vec<PreparedDevice>, PrepareError> {
        let claim = &record.claim;
        let answer = |device: &DeviceRecord| {
            let prepared = device.prepared.clone().unwrap_or_default();
            let id = || self.specs.id(&claim.uid, &device.target.name());
            let id = (!prepared.nodes.is_empty()).then(id).transpose();
            let cdi_id = id.map_err(|source| PrepareError::Cdi { claim: Box::new(claim.clone()), source })?;
            Ok(PreparedDevice {
                target: device.target.clone(),
                mode: device.mode,
                cdi_id,
                address: device.address,
                mdev_uuid: device.uuid.clone(),
                iommu_group: prepared.iommu_group,
                driver: prepared.driver,
                nodes: prepared.nodes.iter().map(|node| Path::new("/dev").join(node)).collect(),
                companions: prepared.companions,
            })
        };
        record.devices.iter().map(answer).collect()
    }

    /// Takes back everything that a record says, as far as no other claim needs it, then removes the record. What fails does not
    /// keep the rest from being taken back; the record stays, and the first failure is returned.
    pub(super) fn take_back(&self, record: &Record) -> Result<(), PrepareError> {
        let claim = &record.claim;
        let mut failures = Vec::new();
        let removed = self.specs.remove(&claim.uid);
        failures.extend(removed.err().map(|source| PrepareError::Cdi { claim: Box::new(claim.clone()), source }));
        for function in record.functions.iter().rev() {
            if self.function_of_other(claim, function.address).is_some() {
                continue;
            }
            if self.require_same_device(claim, function).is_err() {
                tracing::warn!(%claim, device = %function.address, "device is gone, nothing to restore");
                continue;
            }
            let former = function.former();
            match restore(&self.sysfs, function.address, function.driver.as_deref(), &former) {
                Ok(Restored::Unchanged | Restored::Done) => {}
                Ok(outcome) => {
                    let former_driver = former.driver.as_deref().unwrap_or("none");
                    tracing::warn!(%claim, device = %function.address, former_driver, ?outcome, "device not restored");
                }
                Err(source) => failures.push(change_error(claim, function.address.to_string(), source)),
            }
        }
        for (_, _, uuid) in record.made_mdevs() {
            let removed = remove_mdev(&self.sysfs, uuid);
            let failed = |source| change_error(claim, format!("mediated device {uuid}"), source);
            failures.extend(removed.err().map(failed));
        }
        for physical in &record.physical_functions {
            failures.extend(self.restore_virtual_functions(claim, physical).err());
        }
        match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => {
                let path = self.journal.path(&claim.uid);
                let removed = self.journal.remove(&claim.uid);
                removed.map_err(|source| PrepareError::Journal { claim: Box::new(claim.clone()), path, source })?;
                self.records().remove(&claim.uid);
                Ok(())
            }
        }
    }

    /// Sets the number of virtual functions to what it was, unless another claim needs them, somebody has changed it, or the host
    /// has begun to use one of them.
    fn restore_virtual_functions(
        &self,
        claim: &ClaimRef,
        physical: &PhysicalFunctionRecord,
    ) -> Result<(), PrepareError> {
        let PhysicalFunctionRecord { address, former_vfs, num_vfs } = physical;
        let needs = |other: &&Record| {
            other.claim.uid != claim.uid && other.physical_functions.iter().any(|other| other.address == *address)
        };
        if self.records().values().any(|other| needs(&other)) {
            return Ok(());
        }
        let read = VfCount::read(&self.sysfs, *address);
        let count = match read {
            Err(error) if error.is_gone() => return Ok(()),
            Err(error @ ChangeError::NoSriov { .. }) => {
                tracing::warn!(%claim, device = %address, %error, "virtual functions not restored");
                return Ok(());
            }
            read => self.change(claim, &Target::Function(*address), read)?.current,
        };
        if count == *former_vfs {
            return Ok(());
        }
        // 0 is on the way from one number to another.
        if count != *num_vfs && count != 0 {
            tracing::warn!(%claim, device = %address, count, "number of virtual functions was changed by somebody else");
            return Ok(());
        }
        // What this claim itself had is free already, so that the host can use it like the others.
        let host_use = LazyCell::new(|| HostUse::without_inventory(&self.sysfs));
        match set_num_vfs(&self.sysfs, *address, *former_vfs, |vf| use_by_host(&host_use, vf)) {
            Err(error @ ChangeError::VfInUse { vf, .. })
                if !host_use.of(&vf).is_empty() || !self.is_own_function_bound(claim, vf) =>
            {
                tracing::warn!(%claim, device = %address, %error, "virtual functions not restored");
                Ok(())
            }
            outcome => self.change(claim, &Target::Function(*address), outcome),
        }
    }

    /// Returns whether the virtual function in the way is one of the claim's own, which could not be taken back.
    fn is_own_function_bound(&self, claim: &ClaimRef, vf: PciAddress) -> bool {
        let record = self.record(&claim.uid);
        record.is_some_and(|record| record.functions.iter().any(|function| function.address == vf))
    }
}

/// Returns what the host uses a function for.
fn use_by_host(host_use: &HostUse, function: PciAddress) -> Option<String> {
    host_use.of(&function).first().map(|used| format!("the host: {used}"))
}

fn change_error(claim: &ClaimRef, device: String, source: ChangeError) -> PrepareError {
    PrepareError::Change { claim: Box::new(claim.clone()), device, source: Box::new(source) }
}

fn link_name(path: &Path) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}
