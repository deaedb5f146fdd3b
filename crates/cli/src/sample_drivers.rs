//! Two sample drivers for demos and tests: a GPU driver that knows its devices when a claim is prepared, and a network
//! driver that knows the addresses only later.
//!
//! They are drivers like any other, on the same framework, and there is no hardware behind them.

use std::sync::Arc;
use std::time::Duration;

use drakkar_plugin::{
    BoxError, Claim, ClaimRef, Device, DeviceAttribute, DeviceMetadata, DraPlugin, DriverResources, MetadataUpdater,
    NetworkDeviceData, PluginBuilder, Pool, PublishedDevice,
};
use tokio::sync::mpsc;

/// The name of the GPU driver.
pub(crate) const GPU_DRIVER: &str = "gpu.example.com";
/// The name of the network driver.
pub(crate) const NET_DRIVER: &str = "net.example.com";

/// How long it takes to set a network up, or so it shall seem.
const NETWORK_SETUP: Duration = Duration::from_millis(300);

/// The network interfaces on every node, and what they become.
const INTERFACES: [(&str, &str, &str); 2] =
    [("eth1", "10.9.0.5/24", "02:00:00:00:00:05"), ("eth2", "10.9.0.6/24", "02:00:00:00:00:06")];

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    /// A driver of GPUs, whose metadata is there when a claim is prepared.
    Gpu {
        /// How many.
        count: u16,
    },
    /// A driver of two network interfaces, whose metadata comes later. It reports the addresses to the claim's status.
    Net,
}

impl Sample {
    /// The driver's name.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Gpu { .. } => GPU_DRIVER,
            Self::Net => NET_DRIVER,
        }
    }

    /// Runs the driver until a signal ends it. `builder` says where; the client is the one that the environment describes.
    pub(crate) async fn run(self, builder: PluginBuilder, node: &str) -> Result<(), BoxError> {
        let helper = match self {
            Self::Gpu { .. } => builder.start(Gpu).await?,
            Self::Net => {
                let (prepared, queue) = mpsc::unbounded_channel();
                let helper = builder.start(Net { prepared }).await?;
                tokio::spawn(set_up_networks(queue, helper.metadata_updater()));
                helper
            }
        };
        helper.publish_resources(DriverResources::default().pool(node, Pool::default().devices(self.devices())))?;
        Ok(helper.run_until_signal().await?)
    }

    /// What it has.
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

/// Where a GPU would be on the bus.
fn pci_address(index: u16) -> String {
    format!("0000:{:02x}:{:02x}.0", 3 + index / 32, index % 32)
}

struct Gpu;

impl DraPlugin for Gpu {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let prepare = |result| {
            let device = Device::from(result);
            let index = device.device_name.strip_prefix("gpu-").and_then(|index| index.parse::<u16>().ok());
            let index = index.ok_or_else(|| format!("there is no GPU {}", device.device_name))?;
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

/// Returns no devices: the framework takes them from the allocation, and the metadata comes with the first update.
struct Net {
    prepared: mpsc::UnboundedSender<Network>,
}

/// A network to set up.
struct Network {
    claim: ClaimRef,
    request: String,
    pool: String,
    device: String,
}

impl DraPlugin for Net {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        for result in claim.results() {
            let (request, pool, device) = (result.request.clone(), result.pool.clone(), result.device.clone());
            self.prepared.send(Network { claim: claim.reference().clone(), request, pool, device })?;
        }
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: &ClaimRef) -> Result<(), BoxError> {
        Ok(())
    }
}

/// What a hook in the container runtime does on a real node: sets networks up, and tells pod and API server of it.
async fn set_up_networks(mut queue: mpsc::UnboundedReceiver<Network>, updater: Arc<dyn MetadataUpdater>) {
    while let Some(network) = queue.recv().await {
        let updater = updater.clone();
        tokio::spawn(async move {
            tokio::time::sleep(NETWORK_SETUP).await;
            let claim = network.claim.clone();
            if let Err(error) = set_up(network, &*updater).await {
                tracing::warn!(%claim, error, "the network is not set up");
            }
        });
    }
}

async fn set_up(network: Network, updater: &dyn MetadataUpdater) -> Result<(), BoxError> {
    let Network { claim, request, pool, device } = network;
    let (_, address, hardware) = *INTERFACES
        .iter()
        .find(|(name, ..)| *name == device)
        .ok_or_else(|| format!("there is no interface {device}"))?;
    let data = NetworkDeviceData {
        interface_name: "net1".to_owned(),
        ips: vec![address.to_owned()],
        hardware_address: hardware.to_owned(),
    };
    let metadata = DeviceMetadata { network_data: Some(data), ..DeviceMetadata::default().attribute("mtu", 9000_i64) };
    let told = Device { pool_name: pool, device_name: device, metadata: Some(metadata), ..Device::default() };
    updater.update_request_metadata(&claim, &request, vec![told]).and_report().await?;
    Ok(())
}
