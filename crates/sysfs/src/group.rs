//! IOMMU groups, and whether user space can have them.

use std::collections::BTreeMap;
use std::fmt;

use drakkar_metadata::PciAddress;

use crate::mdev::sorted_names;
use crate::read::{Dir, Fields};
use crate::{PciDevice, Problem};

/// An IOMMU group: the devices that the IOMMU cannot tell apart, which therefore go to user space together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IommuGroup {
    /// The number. It is that of `/dev/vfio/N`.
    pub id: u32,
    /// The PCI devices in it.
    pub devices: Vec<PciAddress>,
    /// The other devices in it, by name: mediated devices and those of other buses.
    pub other_devices: Vec<String>,
    /// Whether user space can have the group.
    pub viability: Viability,
    /// Whether VFIO made the group because there is no IOMMU (`enable_unsafe_noiommu_mode`): its devices can read and write
    /// all memory of the host.
    pub is_noiommu: bool,
}

impl IommuGroup {
    /// Reads the members of a group from the directory of all groups. `None` if the group has none.
    ///
    /// The links of PCI devices to their groups and the directory of the group say the same; a group can also have devices
    /// of other buses, which only the directory names.
    pub(crate) fn read(
        groups: Option<&Dir<'_>>,
        id: u32,
        devices: &BTreeMap<PciAddress, PciDevice>,
        linked: Vec<PciAddress>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let mut group =
            Self { id, devices: linked, other_devices: Vec::new(), viability: Viability::default(), is_noiommu: false };
        for address in &group.devices {
            let Some(device) = devices.get(address) else { continue };
            let driver = device.driver.as_deref().filter(|driver| !allows_user_space(driver));
            group.viability.blocking.extend(driver.map(|driver| BlockingMember {
                device: address.to_string(),
                address: Some(*address),
                driver: driver.to_owned(),
            }));
        }
        // VFIO makes such a group when it binds the first device, so no other group needs to be looked at.
        let drivers = group.devices.iter().filter_map(|address| devices.get(address)?.driver.as_deref());
        if let Some(groups) = groups
            && drivers.into_iter().any(|driver| driver.contains("vfio"))
        {
            let mut fields = Fields::new(groups);
            group.is_noiommu = fields.text(&format!("{id}/name")).as_deref() == Some("vfio-noiommu");
            problems.append(&mut fields.problems);
        }
        let directory = groups.map(|groups| groups.dir(&format!("{id}/devices"))).transpose();
        match directory {
            Ok(directory) => {
                if let Some(directory) = directory.flatten() {
                    group.add_others(&directory, problems);
                }
            }
            Err(error) => problems.push(Problem {
                path: groups.map(|groups| groups.path().join(format!("{id}/devices"))).unwrap_or_default(),
                message: error.to_string(),
            }),
        }
        (!group.devices.is_empty() || !group.other_devices.is_empty()).then_some(group)
    }

    fn add_others(&mut self, directory: &Dir<'_>, problems: &mut Vec<Problem>) {
        for name in sorted_names(directory, problems) {
            // A PCI device that is not in the inventory is new or was just removed: an event about it follows.
            if name.parse::<PciAddress>().is_ok() {
                continue;
            }
            match directory.target(&format!("{name}/driver")) {
                Ok(Some(driver)) => {
                    let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    if !allows_user_space(&driver) && !is_mediated(directory, &name) {
                        let member = BlockingMember { device: name.clone(), address: None, driver };
                        self.viability.blocking.push(member);
                    }
                }
                Ok(None) => {}
                Err(error) => problems
                    .push(Problem { path: directory.path().join(&name).join("driver"), message: error.to_string() }),
            }
            self.other_devices.push(name);
        }
    }
}

/// Returns whether a member of a group is a mediated device. Its driver is the parent's part of VFIO, whatever its name.
fn is_mediated(directory: &Dir<'_>, name: &str) -> bool {
    let subsystem = directory.target(&format!("{name}/subsystem"));
    subsystem.is_ok_and(|target| target.is_some_and(|target| target.ends_with("bus/mdev")))
}

/// Returns whether the kernel gives a group to user space while a member has this driver. These drivers do no DMA by
/// themselves: the kernel's own ones for ports and for reserving devices, VFIO's, and vendors' variants of it, which all have
/// it in their names (`mlx5_vfio_pci`, `nvgrace_gpu_vfio_pci`, `nvidia-vgpu-vfio`, `vfio_mdev`).
fn allows_user_space(driver: &str) -> bool {
    matches!(driver, "pcieport" | "pci-stub") || driver.contains("vfio")
}

/// Whether user space can have a group, as VFIO decides it: each member is bound to no driver, to one of VFIO, or to one that
/// does no DMA by itself (`pcieport`, `pci-stub`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Viability {
    /// The members in the way. Empty: user space can have the group now.
    pub blocking: Vec<BlockingMember>,
}

impl Viability {
    /// Returns whether user space can have the group as it is.
    pub fn is_viable(&self) -> bool {
        self.blocking.is_empty()
    }

    /// Returns what remains in the way once these devices are bound to VFIO.
    #[must_use]
    pub fn once_bound(&self, devices: &[PciAddress]) -> Self {
        let remains = |member: &&BlockingMember| member.address.is_none_or(|address| !devices.contains(&address));
        Self { blocking: self.blocking.iter().filter(remains).cloned().collect() }
    }
}

/// A member of a group that keeps user space from having it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockingMember {
    /// The device, by name: a PCI address for PCI devices.
    pub device: String,
    /// Its address, if it is a PCI device.
    pub address: Option<PciAddress>,
    /// The driver that it is bound to.
    pub driver: String,
}

impl fmt::Display for BlockingMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is bound to driver {}", self.device, self.driver)
    }
}

impl fmt::Display for Viability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_viable() {
            return f.write_str("viable");
        }
        f.write_str("not viable: ")?;
        for (index, member) in self.blocking.iter().enumerate() {
            write!(f, "{}{member}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
