//! Refusals: the devices that are not published although a rule matches them, each with its reason.
//!
//! A device that the host uses is published only if the rule has its address in `allowInUse`. A device that cannot be handed
//! out, because it is a bridge or has no IOMMU group, is never published in that mode.
//!
//! Refusals are about handing out a whole function. Virtual functions and mediated devices leave it where it is, so they are
//! published even if the function that they are made of is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use drakkar_sysfs::{HostUse, InUseKind, Inventory, PciAddress, PciDevice};

use crate::config::{Companions, Rule};
use crate::mode::Mode;

/// The reason why a device is not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Other devices are behind it.
    #[error("it is a bridge: other devices are behind it")]
    Bridge,
    /// The host uses the device.
    #[error("the host uses it: {uses}; to publish it all the same, add {address} to the rule's allowInUse")]
    InUse {
        /// The device.
        address: PciAddress,
        /// What the host uses it for.
        uses: String,
    },
    /// Whether the host uses the device could not be found out.
    #[error(
        "it is not known whether the host uses it: {problem}; give the driver the host's procfs (--proc-root), sysfs and /dev, or, if \
         the host does not use it, add {address} to the rule's allowInUse"
    )]
    UseUnknown {
        /// The device.
        address: PciAddress,
        /// What could not be found out.
        problem: String,
    },
    /// The device cannot be isolated.
    #[error(
        "it has no IOMMU group, so vfio-pci cannot isolate it: enable the IOMMU in the firmware and with intel_iommu=on or \
         amd_iommu=on, or set mode: kernel or mode: none (vfio without an IOMMU is not supported)"
    )]
    NoIommuGroup,
    /// VFIO has made the device's IOMMU group although there is no IOMMU.
    #[error(
        "its IOMMU group {group} has no IOMMU behind it (vfio-noiommu), so it could read and write all memory of the host: enable \
         the IOMMU in the firmware and with intel_iommu=on or amd_iommu=on, and turn enable_unsafe_noiommu_mode off, or set mode: \
         kernel or mode: none"
    )]
    NoIommu {
        /// The group.
        group: u32,
    },
    /// Whether the host uses another device of the IOMMU group could not be found out.
    #[error(
        "its IOMMU group {group} also has {member}, of which it is not known whether the host uses it: {problem}; give the driver \
         the host's procfs (--proc-root), sysfs and /dev, or, if the host does not use it, add {member} to the rule's allowInUse"
    )]
    GroupUseUnknown {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
        /// What could not be found out.
        problem: String,
    },
    /// The host uses another device of the IOMMU group.
    #[error(
        "its IOMMU group {group} also has {member}, which the host uses: {uses}; to allow that, add {member} to the rule's allowInUse"
    )]
    GroupInUse {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
        /// What the host uses it for.
        uses: String,
    },
    /// Another device of the IOMMU group is excluded.
    #[error(
        "its IOMMU group {group} also has {member}, which exclude matches: the group is handed out as a whole or not at all"
    )]
    GroupExcluded {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
    },
    /// Whether `exclude` matches another device of the IOMMU group could not be found out.
    #[error(
        "its IOMMU group {group} also has {member}, of which it is not known whether exclude matches: {problem}; correct the expression"
    )]
    GroupExcludeUnknown {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
        /// The expression that fails, and why.
        problem: String,
    },
    /// Another device of the IOMMU group has parts that would be lost.
    #[error(
        "its IOMMU group {group} also has {member}, which would lose its {count} virtual functions: the group is handed out as a whole \
         or not at all; enable ACS in the firmware, so that each function has a group, or set mode: kernel or mode: none"
    )]
    GroupVirtualFunctions {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
        /// The number of virtual functions.
        count: u16,
    },
    /// No counter can keep claims for the IOMMU group apart.
    #[error(
        "it shares its IOMMU group {group} with other published devices, and is itself a part of a device and has parts: a device has \
         no counter for all three; publish it or its mediated devices, not both"
    )]
    GroupShared {
        /// The group.
        group: u32,
    },
    /// A claim holds the same function, a part of it, or what it is a part of.
    #[error(
        "a claim holds {device}, which is the same function, a part of it or the whole: it is published when that claim ends"
    )]
    Held {
        /// The name of the claim's device.
        device: String,
    },
    /// No rule selects another device of the IOMMU group.
    #[error(
        "its IOMMU group {group} also has {member}, which no rule selects: the host could not use it while a claim has the \
         group; set companions: bind to allow that, or select it"
    )]
    Companion {
        /// The group.
        group: u32,
        /// The other device.
        member: PciAddress,
    },
    /// A device of another bus is in the IOMMU group.
    #[error("its IOMMU group {group} also has {member}, which is no PCI device and cannot be handed out")]
    GroupOther {
        /// The group.
        group: u32,
        /// The other device, by name.
        member: String,
    },
    /// The device has virtual functions that are not the driver's.
    #[error(
        "it has {count} virtual functions that this driver has not made, and handing it out would remove them: remove them"
    )]
    VirtualFunctions {
        /// The number of virtual functions.
        count: u16,
    },
    /// The host uses a virtual function of the device.
    #[error("the host uses its virtual function {member}: {uses}")]
    VirtualFunctionInUse {
        /// The virtual function.
        member: PciAddress,
        /// What the host uses it for.
        uses: String,
    },
    /// There are mediated devices of the device.
    #[error("it has the mediated device {uuid}, which was not made by this driver: remove it first")]
    HasMdev {
        /// The mediated device.
        uuid: String,
    },
}

impl Refusal {
    /// Returns a short name of the reason, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::InUse { .. } => "in_use",
            Self::UseUnknown { .. } | Self::GroupUseUnknown { .. } => "use_unknown",
            Self::NoIommu { .. } => "no_iommu",
            Self::NoIommuGroup => "no_iommu_group",
            Self::GroupInUse { .. } => "group_in_use",
            Self::GroupExcluded { .. } | Self::GroupExcludeUnknown { .. } => "group_excluded",
            Self::GroupShared { .. } => "group_shared",
            Self::GroupVirtualFunctions { .. } => "group_virtual_functions",
            Self::Held { .. } => "held",
            Self::Companion { .. } => "companion",
            Self::GroupOther { .. } => "group_other",
            Self::VirtualFunctions { .. } => "virtual_functions",
            Self::VirtualFunctionInUse { .. } => "virtual_function_in_use",
            Self::HasMdev { .. } => "has_mdev",
        }
    }
}

/// What the refusals depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protection<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) host_use: &'a HostUse,
    /// The devices that a rule selects.
    pub(crate) selected: &'a BTreeSet<PciAddress>,
    /// The devices that `exclude` matches.
    pub(crate) excluded: &'a BTreeSet<PciAddress>,
    /// The devices of which it is not known whether `exclude` matches, and why.
    pub(crate) failed: &'a BTreeMap<PciAddress, String>,
    /// The mediated devices that this driver has made.
    pub(crate) own_mdevs: &'a BTreeSet<String>,
    /// The physical functions whose virtual functions this driver has made.
    pub(crate) own_physical: &'a BTreeSet<PciAddress>,
}

impl Protection<'_> {
    /// Returns why a whole function must not be handed out by a rule.
    pub(crate) fn refusal(&self, device: &PciDevice, rule: &Rule) -> Option<Refusal> {
        if device.base_class() == 0x06 {
            return Some(Refusal::Bridge);
        }
        if let Some(uses) = self.use_of(device.address, rule) {
            return Some(Refusal::InUse { address: device.address, uses });
        }
        if let Some(problem) = self.unknown_use_of(device.address, rule) {
            return Some(Refusal::UseUnknown { address: device.address, problem });
        }
        self.parts(device, rule).or_else(|| if rule.mode == Mode::Vfio { self.group(device, rule) } else { None })
    }

    /// Returns why the parts of a function keep it from being handed out as a whole.
    fn parts(&self, device: &PciDevice, rule: &Rule) -> Option<Refusal> {
        if let Some(sriov) = device.sriov.as_ref().filter(|sriov| sriov.num_vfs > 0) {
            let used = sriov.virtual_functions.iter().find_map(|member| Some((*member, self.use_of(*member, rule)?)));
            if let Some((member, uses)) = used {
                return Some(Refusal::VirtualFunctionInUse { member, uses });
            }
            if !self.own_physical.contains(&device.address) {
                return Some(Refusal::VirtualFunctions { count: sriov.num_vfs });
            }
        }
        let parent = drakkar_sysfs::MdevParentName::Pci(device.address);
        let mut mdevs = self.inventory.mdevs.values().filter(|mdev| mdev.parent == parent);
        let foreign = mdevs.find(|mdev| !self.own_mdevs.contains(&mdev.uuid))?;
        Some(Refusal::HasMdev { uuid: foreign.uuid.clone() })
    }

    /// Returns why the IOMMU group of a device cannot be handed out.
    fn group(&self, device: &PciDevice, rule: &Rule) -> Option<Refusal> {
        let Some(id) = device.iommu_group else { return Some(Refusal::NoIommuGroup) };
        let group = self.inventory.groups.get(&id)?;
        if group.is_noiommu {
            return Some(Refusal::NoIommu { group: id });
        }
        // A mediated device has a group of its own; anything else in this one is a device of another bus.
        if let Some(member) = group.other_devices.first() {
            return Some(Refusal::GroupOther { group: id, member: member.clone() });
        }
        for member in self.companions(device) {
            if let Some(uses) = self.use_of(member, rule) {
                return Some(Refusal::GroupInUse { group: id, member, uses });
            }
            if let Some(problem) = self.unknown_use_of(member, rule) {
                return Some(Refusal::GroupUseUnknown { group: id, member, problem });
            }
            if self.excluded.contains(&member) {
                return Some(Refusal::GroupExcluded { group: id, member });
            }
            if let Some(problem) = self.failed.get(&member).cloned() {
                return Some(Refusal::GroupExcludeUnknown { group: id, member, problem });
            }
            if let Some(count) = self.virtual_functions_to_lose(member) {
                return Some(Refusal::GroupVirtualFunctions { group: id, member, count });
            }
            if rule.companions == Companions::Refuse && !self.selected.contains(&member) {
                return Some(Refusal::Companion { group: id, member });
            }
        }
        None
    }

    /// Returns whether `exclude` matches a device, or may match it.
    pub(crate) fn is_excluded(&self, address: PciAddress) -> bool {
        self.excluded.contains(&address) || self.failed.contains_key(&address)
    }

    /// Returns the number of virtual functions that a device would lose if it were bound to vfio-pci.
    fn virtual_functions_to_lose(&self, address: PciAddress) -> Option<u16> {
        let device = self.inventory.devices.get(&address)?;
        let has_vfio = device.driver.as_deref().is_none_or(|driver| driver.contains("vfio"));
        device.sriov.as_ref().map(|sriov| sriov.num_vfs).filter(|count| *count > 0 && !has_vfio)
    }

    /// Returns the devices that have to be bound to vfio-pci together with a device: those of its group, without bridges.
    pub(crate) fn companions(&self, device: &PciDevice) -> Vec<PciAddress> {
        let group = device.iommu_group.and_then(|id| self.inventory.groups.get(&id));
        let members = group.map(|group| group.devices.as_slice()).unwrap_or_default();
        let is_endpoint = |address: &PciAddress| {
            *address != device.address
                && self.inventory.devices.get(address).is_some_and(|member| !member.is_pci_bridge())
        };
        members.iter().copied().filter(is_endpoint).collect()
    }

    /// Returns why it is not known whether the host uses a device, unless the rule allows it by name. Virtual functions that this
    /// driver has made are its own.
    fn unknown_use_of(&self, address: PciAddress, rule: &Rule) -> Option<String> {
        let device = self.inventory.devices.get(&address).filter(|_| !rule.allow_in_use.contains(&address))?;
        let is_own = device.physical_function.is_some_and(|physical| self.own_physical.contains(&physical));
        if is_own { None } else { unknown_use(self.host_use, device) }
    }

    /// Returns what the host uses a device for, unless the rule allows it by name.
    fn use_of(&self, address: PciAddress, rule: &Rule) -> Option<String> {
        direct_use(self.host_use, address).filter(|_| !rule.allow_in_use.contains(&address))
    }
}

/// Returns why it is not known whether the host uses a device. Without the host's mounts every disk may be in use, without its routes
/// every network card, and without what is known of its console every graphics card. Both disks and network cards can be behind
/// a serial bus such as USB.
pub(crate) fn unknown_use(host_use: &HostUse, device: &PciDevice) -> Option<String> {
    let (has_disks, has_interfaces, has_console) = match (device.base_class(), device.class >> 8 & 0xff) {
        (0x01, _) | (0x08, 0x05) => (true, false, false),
        (0x02 | 0x0d, _) => (false, true, false),
        (0x0c, _) => (true, true, false),
        (0x03, _) => (false, false, true),
        _ => return None,
    };
    let is_about = |path: &Path| {
        let has = |name: &str| path.components().any(|part| part.as_os_str() == name);
        has_disks && (path.ends_with("mountinfo") || path.ends_with("swaps") || is_block_device(path))
            || has_interfaces && has("net")
            || has_console && is_console(path, device)
    };
    host_use.problems.iter().find(|problem| is_about(&problem.path)).map(ToString::to_string)
}

fn is_block_device(path: &Path) -> bool {
    // A simulated host can be in /dev/shm, with all its files.
    (path.starts_with("/dev") && !path.starts_with("/dev/shm"))
        || path.ends_with("class/block")
        || path.parent().is_some_and(|parent| parent.ends_with("dev/block"))
}

/// Returns whether a path is about the console: that of the device itself, or of any.
fn is_console(path: &Path, device: &PciDevice) -> bool {
    path.ends_with(format!("{}/boot_vga", device.address))
        || path.ends_with("class/graphics")
        || path.ends_with("class/drm")
}

/// Returns what the host uses a device for. What it uses the virtual functions and the group of the device for has refusals of
/// its own, which name the other device.
pub(crate) fn direct_use(host_use: &HostUse, address: PciAddress) -> Option<String> {
    let is_direct = |kind: InUseKind| !matches!(kind, InUseKind::PhysicalFunction | InUseKind::SameGroup);
    let uses: Vec<_> =
        host_use.of(&address).iter().filter(|used| is_direct(used.kind)).map(ToString::to_string).collect();
    (!uses.is_empty()).then(|| uses.join(", "))
}
