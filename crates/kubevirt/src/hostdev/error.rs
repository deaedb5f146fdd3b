//! Errors of creating host devices.

use std::fmt;

use drakkar_metadata::read::ErrorClass;

use super::PciTextError;
use crate::hook::annotation::{self, AnnotationError};
use crate::placement::PlacementError;
use crate::resolve::ResolveError;

/// A list of entries that host devices are created for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceList {
    /// `spec.domain.devices.gpus`.
    Gpus,
    /// `spec.domain.devices.hostDevices`.
    HostDevices,
    /// `spec.domain.devices.interfaces`.
    Interfaces,
    /// The hook's annotation for GPUs.
    AnnotatedGpus,
    /// The hook's annotation for other devices.
    AnnotatedHostDevices,
}

impl DeviceList {
    /// Returns the kind of the entries: `gpu`, `hostDevice` or `network`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Gpus | Self::AnnotatedGpus => "gpu",
            Self::HostDevices | Self::AnnotatedHostDevices => "hostDevice",
            Self::Interfaces => "network",
        }
    }

    /// Returns the annotation that has the list, which the hook reads and KubeVirt does not.
    pub fn annotation(self) -> Option<&'static str> {
        match self {
            Self::AnnotatedGpus => Some(annotation::GPUS),
            Self::AnnotatedHostDevices => Some(annotation::HOST_DEVICES),
            Self::Gpus | Self::HostDevices | Self::Interfaces => None,
        }
    }
}

/// An entry of a VMI that host devices are created for.
///
/// Entries are identified by their position, because two of a list can have the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRef {
    list: DeviceList,
    index: usize,
    name: String,
}

impl DeviceRef {
    /// An entry of a list.
    pub fn new(list: DeviceList, index: usize, name: impl Into<String>) -> Self {
        Self { list, index, name: name.into() }
    }

    /// Returns the list.
    pub fn list(&self) -> DeviceList {
        self.list
    }

    /// Returns the name of the entry.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.list {
            DeviceList::Gpus | DeviceList::AnnotatedGpus => "GPU",
            DeviceList::HostDevices | DeviceList::AnnotatedHostDevices => "host device",
            DeviceList::Interfaces => "interface",
        };
        write!(f, "{kind} {:?}", self.name)?;
        match self.list.annotation() {
            Some(annotation) => write!(f, " of annotation {annotation}"),
            None => Ok(()),
        }
    }
}

/// A VMI whose host devices cannot be created. There is no partial result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostDevError {
    /// A DRA device has no claim name or no request name.
    #[error("{device}: claimName and requestName must both be set")]
    Incomplete {
        /// The entry.
        device: DeviceRef,
    },
    /// The request of a DRA device cannot be resolved.
    #[error("{device}: {error}")]
    Resolve {
        /// The entry.
        device: DeviceRef,
        /// The error.
        #[source]
        error: Box<ResolveError>,
    },
    /// The PCI address of a device is not valid.
    #[error("{device}: {error}")]
    Pci {
        /// The entry.
        device: DeviceRef,
        /// The error.
        #[source]
        error: PciTextError,
    },
    /// The guest's PCI address of an interface is not valid.
    #[error("{device}: guest address: {error}")]
    GuestPci {
        /// The entry.
        device: DeviceRef,
        /// The error.
        #[source]
        error: PciTextError,
    },
    /// The UUID of a mediated device is not valid.
    #[error(
        "{device}: mdevUUID {uuid:?} is not a UUID, and libvirt refuses it; the driver must publish the mediated device's UUID"
    )]
    Uuid {
        /// The entry.
        device: DeviceRef,
        /// The text.
        uuid: String,
    },
    /// The address of a USB device is not valid.
    #[error("{device}: USB address {text:?} must have the form BUS:DEVICE")]
    Usb {
        /// The entry.
        device: DeviceRef,
        /// The text.
        text: String,
    },
    /// The request of an interface has several devices.
    #[error(
        "{device}: its request has {count} devices, but an interface is one device; use one request and one interface per device"
    )]
    SeveralForInterface {
        /// The entry.
        device: DeviceRef,
        /// The number of devices.
        count: usize,
    },
    /// The entries for device plugins and the devices in the environment variables do not match.
    #[error(
        "{list}: {entries} entries of device plugins ({}) but {devices} devices in the environment variables ({})",
        .resources.join(", "),
        if .variables.is_empty() { "none is set".to_owned() } else { .variables.join(", ") }
    )]
    Count {
        /// The list.
        list: &'static str,
        /// The number of entries.
        entries: usize,
        /// The number of devices.
        devices: usize,
        /// The resource names of the entries.
        resources: Vec<String>,
        /// The variables of these resources that are set, with their values.
        variables: Vec<String>,
    },
    /// An interface of a Multus network has no PCI address.
    #[error("{device}: the pod's network status has no PCI address for its network")]
    NoNetworkStatus {
        /// The entry.
        device: DeviceRef,
    },
    /// The alias of a device has characters that libvirt does not accept; it would drop the alias.
    #[error("alias {alias:?} may only have letters, digits, '-', '_' and '.', or libvirt drops it; rename the device")]
    Alias {
        /// The alias.
        alias: String,
    },
    /// Two devices have the same alias.
    #[error("two host devices have the alias {alias:?}, and libvirt refuses them; rename one of the devices")]
    DuplicateAlias {
        /// The alias.
        alias: String,
    },
    /// Two devices are the same PCI device of the host.
    #[error("{first} and {second} are both the PCI device {address}; a device can be passed through once")]
    DuplicateAddress {
        /// The alias of one.
        first: String,
        /// The alias of the other.
        second: String,
        /// The address.
        address: String,
    },
    /// Two devices are the same mediated device.
    #[error("{first} and {second} are both the mediated device {uuid}; a device can be passed through once")]
    DuplicateUuid {
        /// The alias of one.
        first: String,
        /// The alias of the other.
        second: String,
        /// The UUID.
        uuid: String,
    },
    /// Two devices have the same address in the guest.
    #[error("{first} and {second} both have the guest address {address}")]
    DuplicateGuestAddress {
        /// The alias of one.
        first: String,
        /// The alias of the other.
        second: String,
        /// The address.
        address: String,
    },
    /// Two devices have a boot frame buffer.
    #[error(
        "{first} and {second} both have ramfb, but a guest has only one; disable virtualGPUOptions.display.ramFB of one"
    )]
    SeveralRamfb {
        /// The alias of one.
        first: String,
        /// The alias of the other.
        second: String,
    },
    /// The devices cannot be placed in the guest.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// An annotation of the hook cannot be understood.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
}

impl HostDevError {
    /// Returns the entry that the error is about; `None` if it is about several.
    pub fn device(&self) -> Option<&DeviceRef> {
        match self {
            Self::Incomplete { device }
            | Self::Resolve { device, .. }
            | Self::Pci { device, .. }
            | Self::GuestPci { device, .. }
            | Self::Uuid { device, .. }
            | Self::Usb { device, .. }
            | Self::SeveralForInterface { device, .. }
            | Self::NoNetworkStatus { device } => Some(device),
            _ => None,
        }
    }

    /// Returns the class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Resolve { error, .. } => error.class(),
            Self::Count { variables, .. } if variables.is_empty() => ErrorClass::NotFound,
            _ => ErrorClass::Invalid,
        }
    }
}
