//! What the driver's devices add to containers: checked, and turned into the CDI devices of the claim.

use std::collections::HashMap;
use std::path::Path;

use drakkar_cdi::{ClaimDevices, validate_edits};
use drakkar_metadata::name::DriverName;
use drakkar_metadata::path::{KEP_DIR, KUBERNETES_DIR};

use super::driver_response::DriverResponseError;
use crate::claim::Claim;
use crate::driver::Device;

/// Checks what a device adds to containers.
pub(super) fn check(claim: &Claim, device: &Device) -> Result<(), DriverResponseError> {
    let edits = &device.container_edits;
    if edits.is_empty() {
        return Ok(());
    }
    let pool = || device.pool_name.clone();
    let name = || device.device_name.clone();
    let reference = || Box::new(claim.reference().clone());
    if let Err(source) = validate_edits(edits) {
        let source = Box::new(source);
        return Err(DriverResponseError::ContainerEdits { claim: reference(), pool: pool(), device: name(), source });
    }
    let mounts = &edits.mounts;
    match mounts.iter().enumerate().find(|(_, mount)| covers_metadata(&mount.container_path)) {
        None => Ok(()),
        Some((index, mount)) => Err(DriverResponseError::MetadataPath {
            claim: reference(),
            pool: pool(),
            device: name(),
            index,
            path: mount.container_path.clone(),
        }),
    }
}

/// Whether a mount would be seen where containers see their metadata: each container sees that of the requests that it
/// references, and of no others.
fn covers_metadata(container_path: &str) -> bool {
    // In most images one of the two is a link to the other.
    let path = match container_path.strip_prefix("/run/") {
        Some(rest) => Path::new("/var/run").join(rest),
        None => container_path.into(),
    };
    [KUBERNETES_DIR, KEP_DIR].iter().any(|directory| path.starts_with(directory))
}

/// Takes the edits of all devices, and gives each device with edits the ID of a CDI device that has them.
///
/// The CDI devices are in an order of their own, and so are their names: a driver that returns its devices in another order
/// after a restart gets the same spec and the same IDs.
pub(super) fn take(
    claim: &Claim,
    driver: &DriverName,
    devices: &mut [Device],
) -> Result<Vec<drakkar_cdi::Device>, DriverResponseError> {
    let mut edited: Vec<&mut Device> = devices.iter_mut().filter(|device| !device.container_edits.is_empty()).collect();
    if edited.is_empty() {
        return Ok(Vec::new());
    }
    let invalid = |source| {
        let claim = Box::new(claim.reference().clone());
        DriverResponseError::CdiName { claim, source: Box::new(source) }
    };
    let of_claim = ClaimDevices::new(driver.clone(), claim.reference().uid.clone()).map_err(invalid)?;
    edited.sort_by_cached_key(|device| {
        (device.device_name.clone(), device.pool_name.clone(), device.share_id.clone(), device.requests.clone())
    });
    let mut cdi_devices: Vec<drakkar_cdi::Device> = Vec::with_capacity(edited.len());
    let mut names: HashMap<String, usize> = HashMap::new();
    for device in edited {
        let count = names.entry(device.device_name.clone()).or_default();
        *count += 1;
        // No device has an underscore in its name, so that no two of these are the same.
        let name = match *count {
            1 => device.device_name.clone(),
            count => format!("{}_{count}", device.device_name),
        };
        let id = of_claim.id(&name).map_err(invalid)?;
        device.cdi_device_ids.push(id.to_string());
        cdi_devices.push(drakkar_cdi::Device {
            name: id.device.to_string(),
            container_edits: std::mem::take(&mut device.container_edits),
            ..drakkar_cdi::Device::default()
        });
    }
    Ok(cdi_devices)
}
