//! The attributes of devices: in resource slices, in metadata files, and in the CEL expressions of the configuration.
//!
//! An attribute that is not known is omitted, never guessed.

use drakkar_cel::{DeviceError, DeviceValue};
pub use drakkar_driver_kit::attributes::{Attributes, Numa};
use drakkar_driver_kit::attributes::{hex, set, set_place, text};
use drakkar_plugin::attributes::{NUMA_NODE, PCI_BUS_ID, PCIE_ROOT};
use drakkar_sysfs::{MdevType, PciDevice};
use pci_ids::FromId as _;

use crate::DRIVER_NAME;
use crate::config::{Rule, base_class, subclass};

/// The name of the attribute for the UUID of a mediated device, which KubeVirt reads.
pub const MDEV_UUID: &str = drakkar_metadata::well_known::MDEV_UUID[0];

/// The names that the driver publishes, which a rule cannot replace.
const OWN: [&str; 23] = [
    PCI_BUS_ID,
    PCIE_ROOT,
    NUMA_NODE,
    MDEV_UUID,
    "kind",
    "vendorID",
    "deviceID",
    "subsystemVendorID",
    "subsystemDeviceID",
    "vendor",
    "model",
    "class",
    "subclass",
    "classCode",
    "iommuGroup",
    "driver",
    "mode",
    "physicalFunction",
    "vfIndex",
    "mdevType",
    "mdevTypeName",
    "mdevParent",
    "rule",
];

/// Returns whether the driver publishes an attribute of this name itself.
pub(crate) fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

/// What a device is to the driver: the value of the attribute `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A PCI function without SR-IOV.
    Pci,
    /// A physical function that can have virtual functions.
    PhysicalFunction,
    /// A virtual function.
    VirtualFunction,
    /// A mediated device.
    Mdev,
}

impl Kind {
    /// Returns the kind of a PCI device.
    pub fn of(device: &PciDevice) -> Self {
        if device.is_virtual_function() {
            Self::VirtualFunction
        } else if device.sriov.as_ref().is_some_and(|sriov| sriov.total_vfs > 0) {
            Self::PhysicalFunction
        } else {
            Self::Pci
        }
    }

    /// Returns the value of the attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pci => "pci",
            Self::PhysicalFunction => "pf",
            Self::VirtualFunction => "vf",
            Self::Mdev => "mdev",
        }
    }
}

/// Returns the attributes of a PCI device. `driver` is the kernel driver that it has when no claim uses it: the current one
/// would change with every claim.
pub fn of_pci(device: &PciDevice, driver: Option<&str>, numa: &Numa) -> Attributes {
    let mut attributes = of_origin(device, numa);
    set(&mut attributes, PCI_BUS_ID, Some(device.address.attribute()));
    set(&mut attributes, "kind", Some(Kind::of(device).as_str().into()));
    set(&mut attributes, "iommuGroup", device.iommu_group.map(|group| i64::from(group).into()));
    set(&mut attributes, "driver", driver.map(text));
    let physical = device.physical_function.map(|address| address.attribute());
    set(&mut attributes, "physicalFunction", physical);
    attributes
}

/// Returns the attributes of a virtual function that does not exist yet: those that follow from its physical function. Address,
/// IOMMU group and device id are known once it is made.
pub fn of_planned_vf(physical: &PciDevice, numa: &Numa) -> Attributes {
    let mut attributes = of_origin(physical, numa);
    for name in ["deviceID", "model"] {
        attributes.remove(name);
    }
    set(&mut attributes, "kind", Some(Kind::VirtualFunction.as_str().into()));
    set(&mut attributes, "physicalFunction", Some(physical.address.attribute()));
    attributes
}

/// Returns the attributes of a mediated device of a PCI device, as far as they follow from its parent and its type.
pub fn of_mdev(parent: &PciDevice, numa: &Numa) -> Attributes {
    let mut attributes = of_origin(parent, numa);
    set(&mut attributes, "kind", Some(Kind::Mdev.as_str().into()));
    set(&mut attributes, "mdevParent", Some(parent.address.attribute()));
    attributes
}

/// Returns the attributes of a mediated device whose parent is no PCI device.
pub fn of_other_mdev(parent: &str) -> Attributes {
    let mut attributes = Attributes::new();
    set(&mut attributes, "kind", Some(Kind::Mdev.as_str().into()));
    set(&mut attributes, "mdevParent", Some(text(parent)));
    attributes
}

/// Adds the attributes of a type of mediated devices.
pub fn add_type(attributes: &mut Attributes, mdev_type: &MdevType) {
    set(attributes, "mdevType", Some(text(&mdev_type.id)));
    set(attributes, "mdevTypeName", mdev_type.name.as_deref().map(text));
}

/// Adds what a rule says of its devices.
pub fn add_rule(attributes: &mut Attributes, rule: &Rule) {
    attributes.extend(rule.attributes.clone());
    set(attributes, "rule", rule.name.as_deref().map(text));
}

/// Returns what a device has in common with the virtual functions and mediated devices that are made of it.
fn of_origin(device: &PciDevice, numa: &Numa) -> Attributes {
    let mut attributes = Attributes::new();
    set_place(&mut attributes, device, numa);
    set(&mut attributes, "vendorID", Some(hex(device.vendor)));
    set(&mut attributes, "deviceID", Some(hex(device.device)));
    set(&mut attributes, "subsystemVendorID", Some(hex(device.subsystem_vendor)));
    set(&mut attributes, "subsystemDeviceID", Some(hex(device.subsystem_device)));
    set(&mut attributes, "vendor", vendor_name(device.vendor).map(text));
    set(&mut attributes, "model", model_name(device.vendor, device.device).map(text));
    set(&mut attributes, "class", base_class(device.class).map(text));
    set(&mut attributes, "subclass", subclass(device.class).map(text));
    set(&mut attributes, "classCode", Some(format!("0x{:06x}", device.class).into()));
    attributes
}

/// Returns the vendor's name, from the PCI id database.
pub fn vendor_name(vendor: u16) -> Option<&'static str> {
    pci_ids::Vendor::from_id(vendor).map(pci_ids::Vendor::name)
}

/// Returns the device's name, from the PCI id database.
pub fn model_name(vendor: u16, device: u16) -> Option<&'static str> {
    pci_ids::Device::from_vid_pid(vendor, device).map(pci_ids::Device::name)
}

/// Returns attributes as CEL expressions see them.
pub fn cel_value(attributes: &Attributes) -> Result<DeviceValue, DeviceError> {
    drakkar_driver_kit::attributes::cel_value(DRIVER_NAME, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_id_database() {
        assert_eq!(vendor_name(0x10de), Some("NVIDIA Corporation"));
        assert_eq!(model_name(0x10de, 0x2236), Some("GA102GL [A10]"));
        assert_eq!(model_name(0x10de, 0xffff), None);
        assert_eq!(vendor_name(0x0002), None);
    }
}
