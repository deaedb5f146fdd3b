//! The attributes of interfaces: in resource slices, in metadata files, and in the expressions and patterns of the configuration.
//!
//! An attribute that is not known is omitted, never guessed. Everything that a rule can match by is an attribute, so an interface that
//! is in a pod is matched by what was recorded of it.

use drakkar_cel::{DeviceError, DeviceValue};
pub use drakkar_driver_kit::attributes::{Attributes, Numa};
use drakkar_driver_kit::attributes::{hex, set, set_place, text};
use drakkar_netlink::LinkKind;
use drakkar_pci::attributes::{model_name, vendor_name};
use drakkar_plugin::attributes::{NUMA_NODE, PCI_BUS_ID, PCIE_ROOT};
use drakkar_sysfs::PciDevice;

use crate::DRIVER_NAME;
use crate::config::Rule;
use crate::inventory::{HostInterface, Inventory};

/// The name of the interface on the host.
pub const INTERFACE_NAME: &str = "interfaceName";
/// The kind of the interface: `physical`, `vf`, `dummy`, `veth`, `vlan` …
pub const TYPE: &str = "type";
/// The hardware address.
pub const MAC: &str = "mac";
/// The driver of the device behind the interface.
pub const DRIVER: &str = "driver";

/// The name of the RDMA device of the interface.
pub const RDMA_DEVICE: &str = "rdmaDevice";

/// The names that the driver publishes, which a rule cannot replace.
const OWN: [&str; 26] = [
    PCI_BUS_ID,
    PCIE_ROOT,
    NUMA_NODE,
    INTERFACE_NAME,
    TYPE,
    MAC,
    DRIVER,
    "alias",
    "mtu",
    "speed",
    "duplex",
    "state",
    "rdma",
    RDMA_DEVICE,
    "ipv4",
    "ipv6",
    "parent",
    "vlanID",
    "vendorID",
    "deviceID",
    "vendor",
    "model",
    "physicalFunction",
    "iommuGroup",
    "mode",
    "rule",
];

/// The most attributes that a rule adds. A device has at most 32.
pub(crate) const MAX_EXTRA: usize = 32 - OWN.len();

/// Returns whether the driver publishes an attribute of this name itself.
pub(crate) fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

/// Returns the attributes of an interface.
pub fn of_interface(inventory: &Inventory, interface: &HostInterface, numa: &Numa) -> Attributes {
    let link = &interface.link;
    let mut attributes = Attributes::new();
    let function = inventory.function(interface);
    if let Some(device) = function {
        set_function(&mut attributes, device, numa);
    } else {
        set(&mut attributes, PCI_BUS_ID, interface.pci().map(|address| address.attribute()));
    }
    // Of a device behind another bus, such as virtio, the driver of the interface's own device is the one that people know.
    let driver = interface.device.driver.as_deref().or_else(|| function?.driver.as_deref());
    set(&mut attributes, DRIVER, driver.map(text));
    set(&mut attributes, INTERFACE_NAME, Some(text(&link.name)));
    set(&mut attributes, TYPE, Some(text(inventory.kind(interface).as_str())));
    set(&mut attributes, MAC, link.address.as_ref().map(|address| text(&address.to_string())));
    set(&mut attributes, "alias", link.alias.as_deref().filter(|alias| !alias.is_empty()).map(text));
    set(&mut attributes, "mtu", Some(i64::from(link.mtu).into()));
    set(&mut attributes, "speed", interface.device.speed.map(|speed| i64::from(speed).into()));
    set(&mut attributes, "duplex", interface.device.duplex.as_deref().map(text));
    set(&mut attributes, "state", Some(text(&link.state.to_string())));
    set(&mut attributes, "rdma", Some(interface.rdma.is_some().into()));
    set(&mut attributes, RDMA_DEVICE, interface.rdma.as_deref().map(text));
    set(&mut attributes, "ipv4", Some(interface.reachable_addresses().any(|address| address.is_ipv4()).into()));
    set(&mut attributes, "ipv6", Some(interface.reachable_addresses().any(|address| address.is_ipv6()).into()));
    let parent = link.parent.filter(|parent| parent.namespace.is_none() && link.kind != LinkKind::Veth);
    let parent = parent.and_then(|parent| inventory.interfaces.get(&parent.index));
    set(&mut attributes, "parent", parent.map(|parent| text(&parent.link.name)));
    if let LinkKind::Vlan { id } = link.kind {
        set(&mut attributes, "vlanID", Some(i64::from(id).into()));
    }
    attributes
}

/// Returns the attributes of a PCI function that has no interface.
pub fn of_function(device: &PciDevice, numa: &Numa) -> Attributes {
    let mut attributes = Attributes::new();
    set_function(&mut attributes, device, numa);
    set(&mut attributes, DRIVER, device.driver.as_deref().map(text));
    let kind = if device.is_virtual_function() { "vf" } else { "physical" };
    set(&mut attributes, TYPE, Some(kind.into()));
    attributes
}

fn set_function(attributes: &mut Attributes, device: &PciDevice, numa: &Numa) {
    set_place(attributes, device, numa);
    set(attributes, PCI_BUS_ID, Some(device.address.attribute()));
    set(attributes, "vendorID", Some(hex(device.vendor)));
    set(attributes, "deviceID", Some(hex(device.device)));
    set(attributes, "vendor", vendor_name(device.vendor).map(text));
    set(attributes, "model", model_name(device.vendor, device.device).map(text));
    set(attributes, "physicalFunction", device.physical_function.map(|address| address.attribute()));
    set(attributes, "iommuGroup", device.iommu_group.map(|group| i64::from(group).into()));
}

/// Adds what a rule says of its devices.
pub fn add_rule(attributes: &mut Attributes, rule: &Rule) {
    attributes.extend(rule.attributes.clone());
    set(attributes, "mode", Some(rule.mode.as_str().into()));
    set(attributes, "rule", rule.name.as_deref().map(text));
}

/// Returns the text of an attribute.
pub(crate) fn text_of<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.get(name).and_then(|value| value.string.as_deref())
}

/// Returns attributes as CEL expressions see them.
pub fn cel_value(attributes: &Attributes) -> Result<DeviceValue, DeviceError> {
    drakkar_driver_kit::attributes::cel_value(DRIVER_NAME, attributes)
}
