//! Claims that exclude each other.

use drakkar_plugin::ClaimRef;
use drakkar_sysfs::{ChangeError, MdevParentName, MdevState, PciAddress};

use super::{DeviceManager, DeviceRequest, PrepareError};
use crate::journal::{DeviceRecord, FunctionRecord, Record};
use crate::mode::Mode;
use crate::target::Target;

impl DeviceManager {
    /// Refuses a device that another claim has, or that is part of a function that another claim has.
    pub(super) fn refuse_conflicts(&self, claim: &ClaimRef, request: &DeviceRequest) -> Result<(), PrepareError> {
        let target = &request.target;
        self.refuse_if(claim, request, |other| {
            other.devices.iter().any(|device| device.target == *target).then(|| target.to_string())
        })?;
        let wholes = self.wholes_of(target);
        self.refuse_if(claim, request, |other| {
            let (what, whole) = wholes.iter().find(|(_, whole)| has_function(other, *whole))?;
            Some(format!("{what} {whole}"))
        })
    }

    /// Returns the functions of which a device is a part, and what each is to it.
    fn wholes_of(&self, target: &Target) -> Vec<(&'static str, PciAddress)> {
        let physical = |address| self.physical_function_of(address).map(|physical| ("the physical function", physical));
        match target {
            Target::Function(address) => physical(*address).into_iter().collect(),
            Target::VirtualFunction { physical, .. } => vec![("the physical function", *physical)],
            Target::NewMdev { .. } | Target::Mdev { .. } => {
                let parent = self.parent_of(target);
                parent
                    .into_iter()
                    .flat_map(|parent| [Some(("its parent", parent)), physical(parent)])
                    .flatten()
                    .collect()
            }
        }
    }

    /// Returns the PCI function of which a mediated device is made.
    fn parent_of(&self, target: &Target) -> Option<PciAddress> {
        match target {
            Target::NewMdev { parent: MdevParentName::Pci(address), .. } => Some(*address),
            Target::Mdev { uuid } => MdevState::read(&self.sysfs, uuid).ok()??.parent?.parse().ok(),
            _ => None,
        }
    }

    /// Refuses a function that another claim has as its device, or of which it has a part. That does not depend on the mode: also a
    /// function that is left as it is can be used as a whole.
    pub(super) fn refuse_held(
        &self,
        claim: &ClaimRef,
        request: &DeviceRequest,
        address: PciAddress,
    ) -> Result<(), PrepareError> {
        let is_below = |function: PciAddress| self.physical_function_of(function) == Some(address);
        self.refuse_if(claim, request, |other| {
            if other.devices.iter().any(|device| device.address == Some(address)) {
                return Some(address.to_string());
            }
            let has_function = other.physical_functions.iter().any(|physical| physical.address == address)
                || other.devices.iter().any(|device| device.address.is_some_and(is_below));
            if has_function {
                return Some("one of its virtual functions".to_owned());
            }
            let mut parents = other.devices.iter().filter_map(|device| self.parent_of(&device.target));
            parents
                .any(|parent| parent == address || is_below(parent))
                .then(|| "one of its mediated devices".to_owned())
        })
    }

    /// Refuses a group of which another claim has a member, if one of the two is for user space: who has the group's node reaches
    /// every member.
    pub(super) fn refuse_group_in_use(
        &self,
        claim: &ClaimRef,
        request: &DeviceRequest,
        address: PciAddress,
    ) -> Result<(), PrepareError> {
        let Some(group) = self.group_of(address) else { return Ok(()) };
        let members = self.members_of(group);
        self.refuse_if(claim, request, |other| {
            let is_in_group = |device: &DeviceRecord| {
                // Its node is in the claim's CDI spec, also when the function has left the group.
                let prepared = device.prepared.as_ref().and_then(|prepared| prepared.iommu_group);
                device.address.is_some_and(|address| members.contains(&address) || prepared == Some(group))
            };
            let mut devices = other.devices.iter().filter(|device| is_in_group(device));
            let of_devices = match request.mode {
                Mode::Vfio => devices.next(),
                Mode::Kernel | Mode::None => devices.find(|device| device.mode == Mode::Vfio),
            };
            if let Some(device) = of_devices {
                let member = device.address.filter(|_| device.mode != Mode::Vfio);
                return Some(match member {
                    Some(member) => format!("{member} of the same IOMMU group"),
                    None => format!("IOMMU group {group}"),
                });
            }
            let mut functions = other.functions.iter().filter(|function| function.driver.is_some());
            functions.any(|function| members.contains(&function.address)).then(|| format!("IOMMU group {group}"))
        })
    }

    /// Refuses groups of a claim's devices as [`Self::refuse_group_in_use`] does. For groups that were not known when the call waited
    /// for its turn: meanwhile another claim can have got them.
    pub(super) fn refuse_groups_in_use(&self, record: &Record, requests: &[DeviceRequest]) -> Result<(), PrepareError> {
        for device in &record.devices {
            let request = requests.iter().find(|request| request.target == device.target);
            if let (Some(address), Some(request)) = (device.address, request) {
                self.refuse_group_in_use(&record.claim, request, address)?;
            }
        }
        Ok(())
    }

    /// Returns what another claim's record says of a function that it has changed.
    pub(super) fn function_of_other(&self, claim: &ClaimRef, address: PciAddress) -> Option<FunctionRecord> {
        let records = self.records();
        let others = records.values().filter(|other| other.claim.uid != claim.uid);
        others.flat_map(|other| &other.functions).find(|function| function.address == address).cloned()
    }

    /// Returns the claim that uses a function.
    pub(super) fn user_of(&self, address: PciAddress) -> Option<String> {
        let records = self.records();
        let user = records.values().find(|record| {
            record.devices.iter().any(|device| device.address == Some(address))
                || record.functions.iter().any(|function| function.address == address)
        });
        user.map(|record| format!("claim {}", record.claim))
    }

    /// Adds claim and device to an error of the kernel's.
    pub(super) fn change<T>(
        &self,
        claim: &ClaimRef,
        device: &Target,
        outcome: Result<T, ChangeError>,
    ) -> Result<T, PrepareError> {
        outcome.map_err(|source| PrepareError::Change {
            claim: Box::new(claim.clone()),
            device: device.to_string(),
            source: Box::new(source),
        })
    }

    fn refuse_if(
        &self,
        claim: &ClaimRef,
        request: &DeviceRequest,
        held: impl Fn(&Record) -> Option<String>,
    ) -> Result<(), PrepareError> {
        let records = self.records();
        let others = records.values().filter(|other| other.claim.uid != claim.uid);
        match others.into_iter().find_map(|other| held(other).map(|used| (used, other.claim.clone()))) {
            None => Ok(()),
            Some((used, holder)) => Err(PrepareError::InUse {
                claim: Box::new(claim.clone()),
                device: request.target.clone(),
                used,
                holder: Box::new(holder),
            }),
        }
    }
}

/// Returns whether a claim has a function, as its device or for the sake of another one.
fn has_function(record: &Record, address: PciAddress) -> bool {
    record.devices.iter().any(|device| device.address == Some(address))
        || record.functions.iter().filter(|function| function.driver.is_some()).any(|other| other.address == address)
}
