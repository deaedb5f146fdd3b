//! Two sample drivers for demos and tests: a GPU driver, which has its metadata when a claim is prepared, and a network
//! driver, which knows the addresses only later.
//!
//! They use the framework like any driver, but have no hardware.

use std::time::Duration;

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceAttribute, DeviceMetadata, DraPlugin, DriverResources, Handles,
    NetworkDeviceData, PluginBuilder, Pool, PublishedDevice,
};

/// The name of the GPU driver.
pub(crate) const GPU_DRIVER: &str = "gpu.example.com";
/// The name of the network driver.
pub(crate) const NET_DRIVER: &str = "net.example.com";

/// The simulated time to set up a network.
const NETWORK_SETUP_TIME: Duration = Duration::from_millis(300);

/// The network interfaces of a node, with their addresses and hardware addresses.
const INTERFACES: [(&str, &str, &str); 2] =
    [("eth1", "10.9.0.5/24", "02:00:00:00:00:05"), ("eth2", "10.9.0.6/24", "02:00:00:00:00:06")];

/// A sample driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    /// A driver of GPUs, whose metadata is known when a claim is prepared.
    Gpu {
        /// The number of GPUs.
        count: u16,
    },
    /// A driver of two network interfaces, whose metadata is known later. It reports the addresses in the claim's status.
    Net,
}

impl Sample {
    /// Returns the driver's name.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Gpu { .. } => GPU_DRIVER,
            Self::Net => NET_DRIVER,
        }
    }

    /// Runs the driver until a signal ends it, and publishes its devices in the pool `node`.
    pub(crate) async fn run(self, builder: PluginBuilder, node: &str) -> Result<(), BoxError> {
        let resources = DriverResources::default().pool(node, Pool::default().devices(self.devices()));
        let helper = match self {
            Self::Gpu { .. } => {
                builder
                    .start_with(|handles| {
                        handles.publish_resources(resources)?;
                        Ok(Gpu)
                    })
                    .await?
            }
            Self::Net => {
                builder
                    .start_with(|handles| {
                        handles.publish_resources(resources)?;
                        Ok(Net { handles })
                    })
                    .await?
            }
        };
        Ok(helper.run_until_signal().await?)
    }

    /// Returns the devices to publish.
    fn devices(self) -> Vec<PublishedDevice> {
        let gpu = |index: u16| {
            PublishedDevice::new(format!("gpu-{index}"))
                .attribute("resource.kubernetes.io/pciBusID", pci_address(index))
                .attribute("model", "LATEST-GPU-MODEL")
                .attribute("driverVersion", DeviceAttribute::version("1.0.0"))
                .capacity("memory", "80Gi")
        };
        match self {
            Self::Gpu { count } => (0..count).map(gpu).collect(),
            Self::Net => INTERFACES.iter().map(|(name, ..)| PublishedDevice::new(*name)).collect(),
        }
    }
}

/// Returns the PCI address of a GPU.
fn pci_address(index: u16) -> String {
    format!("0000:{:02x}:{:02x}.0", 3 + index / 32, index % 32)
}

struct Gpu;

impl DraPlugin for Gpu {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let prepare = |result| {
            let device = Device::from(result);
            let index = device.device_name.strip_prefix("gpu-").and_then(|index| index.parse::<u16>().ok());
            let index = index.ok_or_else(|| format!("unknown GPU {}", device.device_name))?;
            let metadata = DeviceMetadata::default()
                .attribute("resource.kubernetes.io/pciBusID", pci_address(index))
                .attribute("index", i64::from(index))
                .attribute("model", "LATEST-GPU-MODEL")
                .attribute("driverVersion", DeviceAttribute::version("1.0.0"));
            Ok(Device { metadata: Some(metadata), ..device })
        };
        claim.results().map(prepare).collect()
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A network driver. Its `prepare` returns no devices: the framework takes them from the allocation, and the first update
/// writes the metadata.
struct Net {
    handles: Handles,
}

impl DraPlugin for Net {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        for result in claim.results() {
            let handles = self.handles.clone();
            let claim = claim.reference().clone();
            let request = result.request.clone();
            let device = Device::from(result);
            tokio::spawn(async move {
                if let Err(error) = set_up_network(&handles, &claim, &request, device).await {
                    tracing::warn!(%claim, error, "network setup failed");
                }
            });
        }
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Does what a hook of the container runtime does on a real node: sets up the network of a pod, then updates the metadata and
/// reports the same to the API server.
async fn set_up_network(handles: &Handles, claim: &ClaimRef, request: &str, device: Device) -> Result<(), BoxError> {
    tokio::time::sleep(NETWORK_SETUP_TIME).await;
    let (_, address, hardware) = *INTERFACES
        .iter()
        .find(|(name, ..)| *name == device.device_name)
        .ok_or_else(|| format!("unknown interface {}", device.device_name))?;
    let data = NetworkDeviceData {
        interface_name: "net1".to_owned(),
        ips: vec![address.to_owned()],
        hardware_address: hardware.to_owned(),
    };
    let metadata = DeviceMetadata { network_data: Some(data), ..DeviceMetadata::default().attribute("mtu", 9000_i64) };
    let device = Device { metadata: Some(metadata), ..device };
    handles.update_request_metadata(claim, request, vec![device]).and_report().await?;
    Ok(())
}
