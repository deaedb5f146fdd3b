//! Refusals of PCI functions for programs in user space.

use drakkar_sysfs::{PciAddress, PciDevice};

use super::Refusal;
use crate::config::Mode;
use crate::inventory::Inventory;

/// Returns whether a driver hands its functions to programs in user space.
fn is_for_userspace(driver: &str) -> bool {
    driver.contains("vfio") || matches!(driver, "igb_uio" | "uio_pci_generic" | "pci-stub")
}

/// Returns why a function without an interface must not be handed out.
pub(crate) fn refuse_function(inventory: &Inventory, device: &PciDevice, mode: Mode) -> Option<Refusal> {
    let driver = device.driver.as_deref();
    match driver {
        Some(driver) if !is_for_userspace(driver) => return Some(Refusal::Elsewhere { driver: driver.to_owned() }),
        _ => {}
    }
    if mode != Mode::Dpdk {
        return Some(Refusal::NoInterface { driver: driver.map(str::to_owned) });
    }
    isolation(inventory, device)
}

/// Returns why a function cannot be isolated from the rest of the host.
pub(super) fn isolation(inventory: &Inventory, device: &PciDevice) -> Option<Refusal> {
    let Some(id) = device.iommu_group else { return Some(Refusal::NoIommuGroup) };
    let group = inventory.pci.groups.get(&id)?;
    if group.is_noiommu {
        return Some(Refusal::NoIommu { group: id });
    }
    let is_other = |address: &&PciAddress| {
        let member = inventory.pci.devices.get(*address);
        **address != device.address && member.is_some_and(|member| !member.is_pci_bridge())
    };
    let member = group.devices.iter().find(is_other)?;
    Some(Refusal::GroupShared { group: id, member: *member })
}
