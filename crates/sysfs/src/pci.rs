//! PCI devices as sysfs describes them.

mod read;

use std::path::PathBuf;

use drakkar_metadata::PciAddress;

pub(crate) use self::read::{MAX_NUMA_NODE, read, root_complex};
use crate::{MdevType, Problem};

/// A PCI device. What the kernel does not know, or does not have for this device, is `None`.
///
/// The kernel sends no events about `driver_override`, `link`, `config`, `power_state`, `numa_node` and `enable_count`: they are
/// as of the last event about the device, or the last [`Inventory::refresh`](crate::Inventory::refresh).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    /// The address, such as `0000:65:00.0`.
    pub address: PciAddress,
    /// The directory of the device below sysfs, without links: `devices/pci0000:64/0000:64:00.0/0000:65:00.0`.
    pub path: PathBuf,
    /// The vendor's id.
    pub vendor: u16,
    /// The device's id.
    pub device: u16,
    /// The id of the vendor of the board.
    pub subsystem_vendor: u16,
    /// The id of the board.
    pub subsystem_device: u16,
    /// The class in 24 bits: base class, subclass, programming interface.
    pub class: u32,
    /// The revision.
    pub revision: u8,
    /// The driver that the device is bound to.
    pub driver: Option<String>,
    /// The only driver that the device may be bound to.
    pub driver_override: Option<String>,
    /// The IOMMU group.
    pub iommu_group: Option<u32>,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// The root complex, such as `pci0000:64`.
    pub pcie_root: Option<String>,
    /// The bridge that the device is behind, unless it is at the root.
    pub upstream: Option<PciAddress>,
    /// What a physical function with SR-IOV has.
    pub sriov: Option<Sriov>,
    /// The physical function that this is a virtual function of.
    pub physical_function: Option<PciAddress>,
    /// The types of mediated devices that can be made of this device.
    pub mdev_types: Vec<MdevType>,
    /// Whether the firmware used this graphics card as console.
    pub boot_vga: bool,
    /// The PCIe link.
    pub link: Option<Link>,
    /// The name of the VFIO character device (`vfio0` for `/dev/vfio/devices/vfio0`), if it has a device node.
    pub vfio_cdev: Option<String>,
    /// Whether the configuration space answers.
    pub config: ConfigSpace,
    /// The power state, such as `D0` or `D3hot`.
    pub power_state: Option<String>,
    /// Whether the kernel may turn the device's power off.
    pub d3cold_allowed: Option<bool>,
    /// The ways in which the kernel can reset the device, in its order. Empty: it cannot.
    pub reset_methods: Vec<String>,
    /// How often the device was enabled, less how often it was disabled.
    pub enable_count: Option<u32>,
    /// What could not be read or is not as expected.
    pub problems: Vec<Problem>,
}

impl PciDevice {
    /// Returns a device about which nothing is known but its address and its directory below sysfs.
    pub fn new(address: PciAddress, path: impl Into<PathBuf>) -> Self {
        Self {
            address,
            path: path.into(),
            vendor: 0,
            device: 0,
            subsystem_vendor: 0,
            subsystem_device: 0,
            class: 0,
            revision: 0,
            driver: None,
            driver_override: None,
            iommu_group: None,
            numa_node: None,
            pcie_root: None,
            upstream: None,
            sriov: None,
            physical_function: None,
            mdev_types: Vec::new(),
            boot_vga: false,
            link: None,
            vfio_cdev: None,
            config: ConfigSpace::Absent,
            power_state: None,
            d3cold_allowed: None,
            reset_methods: Vec::new(),
            enable_count: None,
            problems: Vec::new(),
        }
    }

    /// Returns the base class: the upper 8 of the 24 bits.
    pub fn base_class(&self) -> u8 {
        self.class.to_be_bytes()[1]
    }

    /// Returns whether this is a bridge to another PCI bus (class `0604`).
    pub fn is_pci_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }

    /// Returns whether this is a physical function with SR-IOV.
    pub fn is_physical_function(&self) -> bool {
        self.sriov.is_some()
    }

    /// Returns whether this is a virtual function.
    pub fn is_virtual_function(&self) -> bool {
        self.physical_function.is_some()
    }
}

/// The virtual functions of a physical function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sriov {
    /// The largest number of virtual functions.
    pub total_vfs: u16,
    /// The number of virtual functions now.
    pub num_vfs: u16,
    /// Their addresses, by number.
    pub virtual_functions: Vec<PciAddress>,
    /// Whether the kernel looks for a driver for new virtual functions.
    pub drivers_autoprobe: bool,
}

/// A PCIe link. Speeds are in the kernel's words (`16.0 GT/s PCIe`), widths in lanes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// The current speed. `None`: unknown, as for a device that is gone.
    pub current_speed: Option<String>,
    /// The current width. `None`: unknown or no link.
    pub current_width: Option<u8>,
    /// The largest speed of the device.
    pub max_speed: Option<String>,
    /// The largest width of the device.
    pub max_width: Option<u8>,
}

/// Whether a device's configuration space answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSpace {
    /// There is no file of it: it is not known.
    Absent,
    /// It answers.
    Answers,
    /// All bytes are `ff`: nothing answers at this address any more.
    Gone,
    /// It was not read, because the device is in `D3cold` and reading would turn it on.
    PoweredOff,
    /// It could not be read, or only in part.
    Unreadable(String),
}
