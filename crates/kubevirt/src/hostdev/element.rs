//! libvirt's `<hostdev>` and `<controller>` elements.

use super::{DeviceRef, PciFields};

/// The prefix of an alias that a user of libvirt may choose. libvirt drops user aliases without it.
pub const USER_ALIAS_PREFIX: &str = "ua-";

/// A host device of a domain: libvirt's `<hostdev>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDev {
    /// The alias without the prefix `ua-`, for example `dra-gpu-first`.
    pub alias: String,
    /// The device on the host.
    pub source: Source,
    /// Whether the device has a display (`display="on"`).
    pub display: bool,
    /// Whether the display works before the guest's driver is loaded (`ramfb="on"`).
    pub ramfb: bool,
    /// The position in the guest's boot order.
    pub boot_order: Option<u32>,
    /// The PCI address in the guest; libvirt chooses one if it is absent.
    pub guest_address: Option<PciFields>,
    /// What the metadata says about the device; not part of the element.
    pub origin: Origin,
}

/// A device on the host: `<source>`, with the attributes that depend on its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A PCI device that is bound to vfio-pci.
    Pci(PciFields),
    /// A mediated device.
    Mdev {
        /// The UUID as in the metadata.
        uuid: String,
        /// The device model in the guest.
        model: MdevModel,
    },
    /// A USB device.
    Usb {
        /// The number of the bus.
        bus: String,
        /// The number of the device on its bus.
        device: String,
    },
}

/// The model of a mediated device in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MdevModel {
    /// A PCI device.
    VfioPci,
    /// An adjunct processor of IBM Z.
    VfioAp,
    /// A channel device of IBM Z.
    VfioCcw,
}

impl MdevModel {
    /// Returns libvirt's name of the model.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VfioPci => "vfio-pci",
            Self::VfioAp => "vfio-ap",
            Self::VfioCcw => "vfio-ccw",
        }
    }
}

/// The origin of a host device, and where it is in the host's topology.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The entry of the VMI; absent for a device that was read from a domain.
    pub entry: Option<DeviceRef>,
    /// The driver, pool and device of a DRA device, as `driver/pool/device`.
    pub device: Option<String>,
    /// The NUMA node of the host, as in the metadata.
    pub numa_node: Option<u32>,
    /// The PCIe root complex of the host, as in the metadata.
    pub pcie_root: Option<String>,
}

impl HostDev {
    /// Creates a device without display, boot order or guest address.
    pub fn new(alias: impl Into<String>, source: Source) -> Self {
        Self {
            alias: alias.into(),
            source,
            display: false,
            ramfb: false,
            boot_order: None,
            guest_address: None,
            origin: Origin::default(),
        }
    }

    /// Returns the alias as in the document: with the prefix `ua-`.
    pub fn user_alias(&self) -> String {
        format!("{USER_ALIAS_PREFIX}{}", self.alias)
    }

    /// Returns the PCI address on the host; `None` for other kinds of devices.
    pub fn host_pci(&self) -> Option<&PciFields> {
        match &self.source {
            Source::Pci(fields) => Some(fields),
            Source::Mdev { .. } | Source::Usb { .. } => None,
        }
    }

    /// Returns whether the device is a mediated device.
    pub fn is_mdev(&self) -> bool {
        matches!(self.source, Source::Mdev { .. })
    }
}

/// A PCI controller that a placement adds to a domain: libvirt's `<controller type="pci">`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// The index: the number of the bus that the controller provides.
    pub index: u32,
    /// The kind of controller.
    pub model: ControllerModel,
}

/// The kind of a PCI controller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerModel {
    /// `pcie-expander-bus`: a root bus that belongs to a NUMA node of the guest.
    ExpanderBus {
        /// The number of the bus in the guest; the buses below it have the numbers that follow.
        bus_number: u32,
        /// The NUMA node of the guest.
        node: u32,
    },
    /// `pcie-root-port`: a slot for one device.
    RootPort {
        /// The address, on an expander bus.
        address: PciFields,
    },
}
