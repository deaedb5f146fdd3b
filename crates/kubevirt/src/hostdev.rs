//! Host devices of a VMI: from claims, device plugins and networks to libvirt's `<hostdev>`.
//!
//! The order is KubeVirt's: host devices of device plugins, host devices of claims, GPUs of device plugins, GPUs of
//! claims, interfaces of Multus networks, interfaces of claims. KubeVirt creates no device if there is any error;
//! [`convert`] goes on and returns all of them.
//!
//! What [`Behaviour::Extended`] adds to released KubeVirt:
//!
//! - A request with several devices becomes several host devices, with the aliases `dra-gpu-NAME-0`, `dra-gpu-NAME-1`
//!   and so on. The display options of the GPU apply to the first of them.
//! - A PCI slot above 0x1f, a UUID that is none, and two devices with the same alias, address or UUID are errors with the
//!   names of the devices. Released KubeVirt leaves them to libvirt.
//! - The devices that the hook's annotations name come last, if [`Options::annotated`] asks for them.

mod conversion;
mod element;
mod error;
mod pci_fields;
mod unique;

pub use conversion::{Conversion, Options, convert, dra_gpus, dra_host_devices, dra_interfaces};
pub use element::{Controller, ControllerModel, HostDev, MdevModel, Origin, Source, USER_ALIAS_PREFIX};
pub use error::{DeviceList, DeviceRef, HostDevError};
pub use pci_fields::{PciFields, PciTextError};

use crate::behaviour::Behaviour;
use crate::device_plugin::Environment;
use crate::resolve::Resolver;
use crate::vmi::VirtualMachineInstance;

/// Creates all host devices of a VMI.
///
/// # Errors
/// If any device cannot be created.
pub fn host_devices(
    vmi: &VirtualMachineInstance,
    resolver: &Resolver,
    environment: &Environment,
    options: &Options,
) -> Result<Vec<HostDev>, HostDevError> {
    convert(vmi, resolver, environment, options).into_result()
}

/// Checks the UUID of a mediated device. Released KubeVirt leaves that to libvirt.
pub(crate) fn check_uuid(device: &DeviceRef, uuid: &str, behaviour: Behaviour) -> Result<(), HostDevError> {
    if behaviour.is_strict() || is_libvirt_uuid(uuid) {
        return Ok(());
    }
    Err(HostDevError::Uuid { device: device.clone(), uuid: uuid.to_owned() })
}

/// Returns whether libvirt's schema accepts a text as UUID: hexadecimal digits with dashes as usual, or without any.
pub(crate) fn is_libvirt_uuid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = text.split('-').map(str::len);
    text.split('-').all(is_hex) && (text.len() == 32 && !text.contains('-') || lengths.eq([8, 4, 4, 4, 12]))
}
