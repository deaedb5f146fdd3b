//! What a simulated host has: devices, drivers and settings of its kernel, in a form that YAML and JSON can hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::PciAddress;

/// A simulated host.
///
/// ```
/// use drakkar_sysfs::simulation::Description;
///
/// let description: Description = serde_json::from_str(
///     r#"{"devices": [{"address": "0000:65:00.0", "vendor": "10de", "device": "2331", "class": "030200"}]}"#,
/// )?;
/// assert_eq!(description.devices[0].vendor, 0x10de);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Description {
    /// What VFIO can do.
    pub vfio: Vfio,
    /// The PCI drivers that are loaded, besides `vfio-pci` and `pcieport`.
    pub drivers: Vec<Driver>,
    /// The PCI devices.
    pub devices: Vec<Device>,
    /// Parents of mediated devices that are no PCI devices, such as the kernel's sample `mtty`.
    pub mdev_parents: Vec<VirtualParent>,
    /// Other files with their content, by path: `proc/mounts`, `proc/net/route`, `sys/class/tty/console/active`.
    pub files: BTreeMap<String, String>,
    /// Other symbolic links with their targets, by path.
    pub links: BTreeMap<String, String>,
}

/// What VFIO can do on a simulated host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Vfio {
    /// Whether the module `vfio-pci` is loaded.
    pub loaded: bool,
    /// Whether there is a character device for each device (`/dev/vfio/devices/vfioN`).
    pub cdev: bool,
    /// Whether there is `/dev/iommu`.
    pub iommufd: bool,
}

impl Default for Vfio {
    /// As distributions have it: groups, no character devices.
    fn default() -> Self {
        Self { loaded: true, cdev: false, iommufd: false }
    }
}

/// A PCI driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// The devices that it can drive, as `vendor:device` in hexadecimal with `*` for any: `10de:*`.
    pub ids: Vec<String>,
    /// Whether it can make virtual functions. One that cannot answers `sriov_numvfs` with `ENOENT`.
    pub sriov: bool,
}

/// A PCI device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// The address.
    #[serde(with = "address")]
    pub address: PciAddress,
    /// The vendor's id, in hexadecimal.
    #[serde(with = "hex16")]
    pub vendor: u16,
    /// The device's id, in hexadecimal.
    #[serde(with = "hex16")]
    pub device: u16,
    /// The id of the board's vendor, in hexadecimal.
    #[serde(default, with = "hex16")]
    pub subsystem_vendor: u16,
    /// The id of the board, in hexadecimal.
    #[serde(default, with = "hex16")]
    pub subsystem_device: u16,
    /// The class, in six hexadecimal digits.
    #[serde(with = "hex32")]
    pub class: u32,
    /// The revision.
    #[serde(default)]
    pub revision: u8,
    /// The root complex, such as `pci0000:64`. Otherwise the device's domain and bus 00.
    #[serde(default)]
    pub pcie_root: Option<String>,
    /// The bridge that the device is behind, which is described before it.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub parent: Option<PciAddress>,
    /// The IOMMU group. Without one `vfio-pci` refuses the device.
    #[serde(default)]
    pub iommu_group: Option<u32>,
    /// The NUMA node.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// The driver that it is bound to at the start; otherwise the first that matches. An empty name means none.
    #[serde(default)]
    pub driver: Option<String>,
    /// The override of its driver.
    #[serde(default)]
    pub driver_override: Option<String>,
    /// Virtual functions.
    #[serde(default)]
    pub sriov: Option<Sriov>,
    /// Types of mediated devices. They exist while a driver other than `vfio-pci` has the device.
    #[serde(default)]
    pub mdev: Option<MdevTypes>,
    /// Whether it is the graphics card of the console.
    #[serde(default)]
    pub boot_vga: bool,
    /// Network interfaces that its own driver makes.
    #[serde(default)]
    pub net: Vec<String>,
    /// DRM nodes that its own driver makes, such as `card0` and `renderD128`.
    #[serde(default)]
    pub drm: Vec<String>,
    /// The `NVMe` controller that its own driver makes, such as `nvme0`, with one namespace.
    #[serde(default)]
    pub nvme: Option<String>,
    /// Other attributes with their content, by name: `current_link_speed`, `reset_method`.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

impl Device {
    /// Returns a device with nothing but its ids.
    pub fn new(address: PciAddress, vendor: u16, device: u16, class: u32) -> Self {
        Self {
            address,
            vendor,
            device,
            subsystem_vendor: 0,
            subsystem_device: 0,
            class,
            revision: 0,
            pcie_root: None,
            parent: None,
            iommu_group: None,
            numa_node: None,
            driver: None,
            driver_override: None,
            sriov: None,
            mdev: None,
            boot_vga: false,
            net: Vec::new(),
            drm: Vec::new(),
            nvme: None,
            attributes: BTreeMap::new(),
        }
    }
}

/// The virtual functions of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sriov {
    /// How many there can be.
    pub total_vfs: u16,
    /// How many there are at the start.
    #[serde(default)]
    pub num_vfs: u16,
    /// The device id of a virtual function, in hexadecimal.
    #[serde(with = "hex16")]
    pub vf_device: u16,
    /// The distance of the first one's routing id to the device's.
    #[serde(default = "default_offset")]
    pub offset: u16,
    /// The distance between two of them.
    #[serde(default = "default_stride")]
    pub stride: u16,
}

fn default_offset() -> u16 {
    0x80
}

fn default_stride() -> u16 {
    1
}

/// The types of mediated devices of a parent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MdevTypes {
    /// What all instances together can take.
    pub capacity: u32,
    /// Whether all instances must be of one type, as with NVIDIA's vGPUs.
    #[serde(default)]
    pub homogeneous: bool,
    /// The types.
    pub types: Vec<MdevType>,
}

/// A type of mediated devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MdevType {
    /// The name of its directory, such as `nvidia-63`.
    pub id: String,
    /// The name for people.
    pub name: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The API, by default `vfio-pci`.
    pub device_api: Option<String>,
    /// What one instance takes of the parent's capacity, by default 1.
    pub cost: Option<u32>,
}

impl MdevType {
    /// Returns what one instance takes of the parent's capacity.
    pub fn cost(&self) -> u32 {
        self.cost.unwrap_or(1).max(1)
    }
}

/// A parent of mediated devices that is no PCI device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VirtualParent {
    /// Its name.
    pub name: String,
    /// Its types.
    #[serde(flatten)]
    pub mdev: MdevTypes,
}

/// An error in a text of the description.
fn parse_hex<E: serde::de::Error>(text: &str, digits: usize) -> Result<u32, E> {
    let number = text.strip_prefix("0x").unwrap_or(text);
    let is_number = (1..=digits).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let error = || E::custom(format_args!("{text:?} is not a hexadecimal number of at most {digits} digits"));
    is_number.then(|| u32::from_str_radix(number, 16).ok()).flatten().ok_or_else(error)
}

mod hex16 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(number: &u16, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:04x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
        // Four digits always fit.
        parse_hex(&String::deserialize(from)?, 4).map(|number| u16::try_from(number).unwrap_or_default())
    }
}

mod hex32 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(number: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:06x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        parse_hex(&String::deserialize(from)?, 6)
    }
}

mod address {
    use super::*;

    pub(super) fn serialize<S: Serializer>(address: &PciAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PciAddress, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod optional_address {
    use super::*;

    pub(super) fn serialize<S: Serializer>(address: &Option<PciAddress>, to: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => to.collect_str(address),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PciAddress>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
