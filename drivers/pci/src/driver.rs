//! The driver as the kubelet sees it: claims are prepared and unprepared.
//!
//! What is done to devices blocks on the kernel, for seconds at worst, so it runs on threads of its own and is not interrupted
//! when the kubelet gives up. [`DeviceManager`] keeps calls for the same devices apart.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use drakkar_metadata::name::ClaimUid;
use drakkar_plugin::{BoxError, Claim, ClaimRef, Device, DeviceStatus, DraPlugin, Handles, HealthMonitor};
use drakkar_sysfs::{PciAddress, virtual_function};
use serde_json::json;

use crate::claim_config::ClaimConfig;
use crate::devices::{Devices, Unused};
use crate::health;
use crate::metadata::metadata;
use crate::mode::Mode;
use crate::plan::Entry;
use crate::prepare::{DeviceManager, DeviceRequest, HeldDevice, PreparedDevice};
use crate::target::Target;

/// The driver.
#[derive(Debug)]
pub(crate) struct PciDriver {
    pub(crate) devices: Arc<Devices>,
    pub(crate) manager: Arc<DeviceManager>,
    pub(crate) handles: Handles,
    pub(crate) node: String,
}

/// A device that was allocated to a claim, and how the claim wants it.
#[derive(Debug)]
struct Wanted {
    device: Device,
    config: ClaimConfig,
}

/// Why a claim is refused before anything is done.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("request {request}: admin access is not supported by this driver: a device can be in one place only")]
    AdminAccess { request: String },
    #[error(
        "device {device} is not published any more: it is gone, or the driver's configuration has changed; delete the pod, so \
         that another device is allocated"
    )]
    Unknown { device: String },
    #[error(
        "device {device}: {address}: {uses}; end that, or add {address} to allowInUse in the driver's configuration"
    )]
    HostUses { device: String, address: PciAddress, uses: String },
}

impl DraPlugin for PciDriver {
    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, BoxError> {
        let mut wanted = Vec::new();
        for result in claim.results() {
            if result.admin_access == Some(true) {
                return Err(ClaimError::AdminAccess { request: result.request.clone() }.into());
            }
            wanted.push(Wanted { device: Device::from(result), config: ClaimConfig::of(claim, result)? });
        }
        let devices = self.devices.clone();
        let manager = self.manager.clone();
        let reference = claim.reference().clone();
        let work = tokio::task::spawn_blocking(move || prepare(&devices, &manager, &reference, wanted));
        let (prepared, statuses) = work.await??;
        if let Err(error) = self.handles.report_device_status(claim.reference(), statuses) {
            tracing::warn!(claim = %claim.reference(), %error, "device status not reported");
        }
        Ok(prepared)
    }

    async fn unprepare(&self, claim: &ClaimRef) -> Result<(), BoxError> {
        let devices = self.devices.clone();
        let manager = self.manager.clone();
        let uid = claim.uid.clone();
        tokio::task::spawn_blocking(move || {
            let addresses = addresses_of(&manager, &uid);
            let outcome = manager.unprepare(&uid);
            refresh(&devices, addresses);
            outcome
        })
        .await??;
        Ok(())
    }

    fn health_monitor(&self) -> Option<HealthMonitor<Self>> {
        Some(HealthMonitor::new(async |driver: Arc<Self>, reports| {
            health::monitor(driver.devices.clone(), driver.node.clone(), reports).await
        }))
    }
}

type Prepared = (Vec<Device>, Vec<DeviceStatus>);

/// Prepares a claim. Blocks.
fn prepare(
    devices: &Devices,
    manager: &DeviceManager,
    claim: &ClaimRef,
    wanted: Vec<Wanted>,
) -> Result<Prepared, BoxError> {
    // What the kubelet asks for again. A claim that was not prepared to its end is like a new one.
    let is_own = |held: &HeldDevice| held.claim.uid == claim.uid && held.is_prepared;
    let held: BTreeSet<Target> = manager.held().into_iter().filter(is_own).map(|held| held.target).collect();
    let mut unused = Vec::new();
    let mut requests: Vec<DeviceRequest> = Vec::new();
    let mut entries = Vec::new();
    for wanted in &wanted {
        let name = &wanted.device.device_name;
        let entry = devices.entry(name).ok_or_else(|| ClaimError::Unknown { device: name.clone() })?;
        let request = request(&entry, wanted.config);
        if !held.contains(&entry.target) {
            unused.extend(to_be_unused(devices, name, &request));
        }
        // One device can serve two requests of a claim.
        if requests.iter().all(|other| other.target != request.target) {
            requests.push(request);
        }
        entries.push(entry);
    }
    require_unused(devices, &unused)?;
    let outcome = manager.prepare(claim, &requests);
    refresh(devices, addresses_of(manager, &claim.uid));
    let prepared = outcome?;
    let mut answer = Vec::new();
    let mut statuses = Vec::new();
    for (wanted, entry) in wanted.into_iter().zip(entries) {
        let Some(device) = prepared.iter().find(|device| device.target == entry.target) else { continue };
        let attributes = device.address.and_then(|address| devices.attributes(address));
        statuses.push(status(&wanted.device, device));
        answer.push(Device {
            cdi_device_ids: device.cdi_id.iter().map(ToString::to_string).collect(),
            metadata: Some(metadata(&entry, device, attributes.as_deref())),
            ..wanted.device
        });
    }
    Ok((answer, statuses))
}

/// Returns what is to be done to a device: what the claim asks for, or else its rule.
fn request(entry: &Entry, config: ClaimConfig) -> DeviceRequest {
    let group = entry.attributes.get("iommuGroup").and_then(|group| group.int);
    DeviceRequest {
        target: entry.target.clone(),
        mode: config.mode.unwrap_or(entry.settings.mode),
        iommu_backend: config.iommu_backend.unwrap_or(entry.settings.iommu_backend),
        iommu_group: group.and_then(|group| u32::try_from(group).ok()),
        companions: entry.settings.companions.clone(),
        virtual_functions: entry.settings.virtual_functions,
    }
}

/// Returns the functions that the host must not use if a device is to be handed out. A virtual function that does not exist yet
/// has none, and a mediated device leaves its parent where it is.
fn to_be_unused(devices: &Devices, name: &str, request: &DeviceRequest) -> Option<Unused> {
    let (rule_of, address) = match request.target {
        Target::Function(address) => (address, address),
        Target::VirtualFunction { physical, index } => {
            (physical, virtual_function(devices.sysfs(), physical, index).ok().flatten()?)
        }
        Target::NewMdev { .. } | Target::Mdev { .. } => return None,
    };
    let companions = if request.mode == Mode::Vfio { request.companions.as_slice() } else { &[] };
    let functions = [address].iter().chain(companions).copied().collect();
    Some(Unused { device: name.to_owned(), rule_of, functions })
}

/// Refuses devices that the host has begun to use since they were published. Events do not tell of mounts and routes.
fn require_unused(devices: &Devices, unused: &[Unused]) -> Result<(), ClaimError> {
    match devices.host_use(unused) {
        Some((device, address, uses)) => Err(ClaimError::HostUses { device, address, uses }),
        None => Ok(()),
    }
}

/// Returns the status of a prepared device for the API server.
fn status(device: &Device, prepared: &PreparedDevice) -> DeviceStatus {
    let message = match (prepared.mode, &prepared.driver) {
        (Mode::None, _) => "left as it was".to_owned(),
        (_, Some(driver)) => format!("bound to {driver}"),
        (_, None) => "without a driver".to_owned(),
    };
    let mut data = serde_json::Map::new();
    let mut set = |name: &str, value: serde_json::Value| {
        if !value.is_null() {
            data.insert(name.to_owned(), value);
        }
    };
    set("mode", json!(prepared.mode.to_string()));
    set("pciBusID", json!(prepared.address.map(|address| address.to_string())));
    set("mdevUUID", json!(prepared.mdev_uuid));
    set("iommuGroup", json!(prepared.iommu_group));
    set("driver", json!(prepared.driver));
    let status = DeviceStatus::new(&device.pool_name, &device.device_name).ready("Prepared", message).data(data.into());
    DeviceStatus { share_id: device.share_id.clone(), ..status }
}

/// Returns the functions of a claim's devices.
fn addresses_of(manager: &DeviceManager, claim: &ClaimUid) -> Vec<PciAddress> {
    manager.held().into_iter().filter(|held| held.claim.uid == *claim).filter_map(|held| held.address).collect()
}

fn refresh(devices: &Devices, addresses: Vec<PciAddress>) {
    if let Err(error) = devices.claims_changed(addresses) {
        tracing::warn!(%error, "devices of a claim not read");
    }
}
