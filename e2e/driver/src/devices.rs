//! The simulated devices and their attributes.

use drakkar_plugin::{
    BoxError, DeviceAttribute, DeviceMetadata, DriverResources, NetworkDeviceData, Pool, PublishedDevice,
};

const PREFIX: &str = "dev-";

/// The name of a device.
pub(crate) fn name(index: usize) -> String {
    format!("{PREFIX}{index}")
}

/// The resources that the driver publishes.
pub(crate) fn resources(node: &str, count: usize) -> Result<DriverResources, BoxError> {
    let device = |index| {
        let device = SimulatedDevice::named(&name(index))?;
        Ok(PublishedDevice::new(name(index))
            .attribute("index", device.index)
            .attribute("model", "e2e")
            .attribute("driverVersion", DeviceAttribute::version("1.0.0"))
            .capacity("memory", "80Gi"))
    };
    let devices = (0..count).map(device).collect::<Result<Vec<_>, BoxError>>()?;
    Ok(DriverResources::default().pool(node, Pool::default().devices(devices)))
}

/// A simulated device, from whose index everything else is derived.
pub(crate) struct SimulatedDevice {
    index: i64,
}

impl SimulatedDevice {
    pub(crate) fn named(name: &str) -> Result<Self, BoxError> {
        let index = name.strip_prefix(PREFIX).and_then(|index| index.parse().ok());
        Ok(Self { index: index.ok_or_else(|| format!("device {name} does not exist"))? })
    }

    /// The metadata for containers.
    pub(crate) fn metadata(&self, revision: i64) -> DeviceMetadata {
        let high = self.index / 250;
        let low = self.index % 250 + 1;
        let network = NetworkDeviceData {
            interface_name: format!("net{}", self.index),
            ips: vec![format!("10.9.{high}.{low}/16")],
            hardware_address: format!("02:00:00:00:{high:02x}:{low:02x}"),
        };
        let metadata = DeviceMetadata::default()
            .attribute("index", self.index)
            .attribute("model", "e2e")
            .attribute("driverVersion", DeviceAttribute::version("1.0.0"))
            .attribute("revision", revision);
        DeviceMetadata { network_data: Some(network), ..metadata }
    }
}
