//! Placement of PCI host devices in the guest.
//!
//! | placement | trigger in KubeVirt | effect |
//! |---|---|---|
//! | default | none | no guest address: libvirt chooses one |
//! | [root complex](on_root_complex) | annotation `kubevirt.io/placePCIDevicesOnRootComplex: "true"` | the next free slot of bus 0 |
//! | [NUMA](numa) | gate `PCINUMAAwareTopology` and dedicated CPUs | an expander bus per guest NUMA node, a root port per device |

mod cpu_set;
mod domain;
mod host;
pub mod numa;

pub use domain::{DomainPlacementError, place_in_domain};
pub use host::HostTopology;

use crate::hostdev::{HostDev, PciFields};
use crate::vmi::VirtualMachineInstance;

/// The annotation of a VMI that asks for devices on the root complex.
const ROOT_COMPLEX_ANNOTATION: &str = "kubevirt.io/placePCIDevicesOnRootComplex";

/// Devices that cannot be placed in the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// All slots of the root bus are taken.
    #[error(
        "no space left on the root PCI bus for {alias}; remove the annotation {ROOT_COMPLEX_ANNOTATION}, or use fewer devices"
    )]
    RootBusFull {
        /// The alias of the first device without a slot.
        alias: String,
    },
    /// The guest's NUMA topology must have every device, and has not.
    #[error("strict PCI NUMA-aware placement failed: {}", .0.join("; "))]
    Unplaced(
        /// The reasons, one or more per device.
        Vec<String>,
    ),
    /// There are not enough bus numbers below the expander buses.
    #[error(
        "insufficient bus numbers for NUMA-aligned PCIe topology: current controller index {index}, last assigned expander bus number {last_bus}"
    )]
    NoBusNumbers {
        /// The index of the last controller.
        index: u32,
        /// The number of the last expander bus.
        last_bus: u32,
    },
}

/// Returns whether a VMI asks for its PCI devices on the root complex, and its architecture has one.
pub fn is_root_complex_requested(vmi: &VirtualMachineInstance) -> bool {
    let is_requested = vmi.metadata.annotations.get(ROOT_COMPLEX_ANNOTATION).is_some_and(|value| value == "true");
    is_requested && has_pcie(&vmi.spec.architecture)
}

/// Returns whether KubeVirt places PCI devices on an architecture; an empty one is the cluster's default.
pub(crate) fn has_pcie(architecture: &str) -> bool {
    matches!(architecture, "" | "amd64" | "arm64")
}

/// Gives each PCI device without a guest address a slot of the root bus.
///
/// KubeVirt places other devices first: `taken` is the number of network interfaces without an address of their own.
///
/// # Errors
/// If the bus has not enough slots. The devices are then unchanged.
pub fn on_root_complex(devices: &mut [HostDev], taken: usize) -> Result<(), PlacementError> {
    let is_unplaced = |device: &&HostDev| device.host_pci().is_some() && device.guest_address.is_none();
    let mut slots = free_slots().skip(taken);
    let mut placed = Vec::new();
    for device in devices.iter().filter(is_unplaced) {
        placed.push(slots.next().ok_or_else(|| PlacementError::RootBusFull { alias: device.alias.clone() })?);
    }
    let unplaced = devices.iter_mut().filter(|device| device.host_pci().is_some() && device.guest_address.is_none());
    for (device, slot) in unplaced.zip(placed) {
        device.guest_address = Some(PciFields::guest("0x00", slot));
    }
    Ok(())
}

/// Returns the slots of the root bus that no built-in device has.
fn free_slots() -> impl Iterator<Item = u8> {
    /// The first sound card.
    const SOUND: u8 = 0x1b;
    /// The SATA controller of QEMU.
    const SATA: u8 = 0x1f;
    // Slot 0 is the host bridge, slot 1 the graphics card.
    (0x02..=0x1f).filter(|slot| ![SOUND, SATA].contains(slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostdev::{MdevModel, Source};

    fn pci(number: usize) -> HostDev {
        let fields = PciFields::parse(&format!("0000:65:{number:02x}.0"), Default::default()).unwrap();
        HostDev::new(format!("dra-gpu-{number}"), Source::Pci(fields))
    }

    #[test]
    fn the_root_complex_has_28_slots_without_those_of_sound_and_sata() {
        let mut devices: Vec<HostDev> = (0..28).map(pci).collect();
        on_root_complex(&mut devices, 0).unwrap();
        let slots: Vec<String> = devices.iter().map(|device| device.guest_address.clone().unwrap().slot).collect();
        assert_eq!((&*slots[0], &*slots[24], &*slots[25], &*slots[27]), ("0x02", "0x1a", "0x1c", "0x1e"));
        devices.push(pci(28));
        let error = on_root_complex(&mut devices, 28).unwrap_err();
        assert_eq!(error, PlacementError::RootBusFull { alias: "dra-gpu-28".into() });
    }

    #[test]
    fn a_device_with_a_guest_address_and_a_mediated_device_take_no_slot() {
        let mut placed = pci(0);
        placed.guest_address = Some(PciFields::guest("0x05", 3));
        let mdev = HostDev::new("dra-gpu-v", Source::Mdev { uuid: "u".into(), model: MdevModel::VfioPci });
        let mut devices = [placed.clone(), mdev.clone(), pci(1)];
        on_root_complex(&mut devices, 1).unwrap();
        assert_eq!(devices[..2], [placed, mdev]);
        assert_eq!(devices[2].guest_address, Some(PciFields::guest("0x00", 3)));
    }
}
