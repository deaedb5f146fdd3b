//! What this driver knows of its devices: which there are, and what a container gets with one.

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, ContainerEdits, Device, DeviceMetadata, DeviceNode, DraPlugin, DriverResources, Handles,
    Pool, PublishedDevice,
};
use serde::Deserialize;

/// The driver's name: a domain name that you own.
pub const DRIVER: &str = "gpu.example.com";
/// The version and kind of the parameters that a DeviceClass or a claim can have.
pub const API_VERSION: &str = "gpu.example.com/v1alpha1";
pub const KIND: &str = "DeviceConfig";

/// Parameters for a device.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeviceConfig {
    /// What the program in the container sees in the variable `DEVICE_MODE`.
    mode: Option<String>,
}

/// A driver with a number of devices that exist in memory only.
#[derive(Debug)]
pub struct Driver;

impl Driver {
    /// Publishes the devices. Replace them with what you find on the node, and publish again whenever that changes.
    pub fn new(handles: &Handles, devices: u16) -> Result<Self, BoxError> {
        let node = handles.node_name().ok_or("--node-name is missing")?;
        let device = |number| PublishedDevice::new(format!("device-{number}")).attribute("model", "m1");
        let pool = Pool::default().devices((0..devices).map(device));
        handles.publish_resources(DriverResources::default().pool(node, pool))?;
        Ok(Self)
    }
}

impl DraPlugin for Driver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let mut devices = Vec::new();
        for result in claim.results() {
            let mut config = DeviceConfig::default();
            for parameters in claim.parameters(result) {
                // Those of the class come first, and those of the claim override them.
                config = parameters.decode_as(API_VERSION, KIND)?;
            }
            devices.push(Device {
                container_edits: edits(&result.device, &config),
                metadata: Some(DeviceMetadata::default().attribute("model", "m1")),
                ..Device::from(result)
            });
        }
        Ok(devices)
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        // Undo here what prepare did to the hardware. The framework removes what it wrote for the container.
        Ok(())
    }
}

/// Returns what the device adds to a container. /dev/null stands for the device node of real hardware.
fn edits(device: &str, config: &DeviceConfig) -> ContainerEdits {
    let edits = ContainerEdits::default()
        .device_node(DeviceNode::mapped("/dev/null", format!("/dev/{device}")))
        .env_var("DEVICE", device);
    match &config.mode {
        Some(mode) => edits.env_var("DEVICE_MODE", mode),
        None => edits,
    }
}
