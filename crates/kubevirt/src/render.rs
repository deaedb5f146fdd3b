//! Pod rendering: what the claims and devices of a VMI add to its launcher pod, as KubeVirt's controller does it.
//!
//! Only the `compute` container gets claims: no init container, sidecar or container of a disk does.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use crate::gates::{FeatureGates, Gate};
use crate::vmi::{
    ClaimRequest, PermittedHostDevices, Quantity, ResourceClaimRef, Resources, VirtualMachineInstance, VmiSpec,
};

/// The memory that VFIO needs beside the guest's, in bytes: once per VMI, whatever the number of devices.
pub const VFIO_MEMORY_OVERHEAD: u64 = 1 << 30;

/// The annotation in which KubeVirt writes the whole memory overhead of a launcher pod.
pub const MEMORY_OVERHEAD_ANNOTATION: &str = "kubevirt.io/memory-overhead-bytes";

/// The resource of KubeVirt's own device plugin for iommufd.
pub const IOMMUFD_RESOURCE: &str = "devices.kubevirt.io/iommufd";

/// The volume by which the launcher learns about SR-IOV devices.
pub const NETWORK_INFO_VOLUME: &str = "network-info-annotation";

/// What a VMI's claims and devices add to its launcher pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LauncherResources {
    /// `spec.resourceClaims` of the pod: the VMI's claims in its order, used or not, whatever the gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<ResourceClaimRef>,
    /// `resources.claims` of the container `compute`: GPUs, host devices, networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ContainerClaim>,
    /// `resources.requests` and `resources.limits` of the container `compute`: what the VMI asks for and its
    /// device-plugin devices. The controller computes CPU and memory from them.
    #[serde(flatten)]
    pub resources: Resources,
    /// The memory in bytes that the devices add to the memory request: [`VFIO_MEMORY_OVERHEAD`] or 0. The sum of all
    /// overheads is in the annotation [`MEMORY_OVERHEAD_ANNOTATION`].
    pub memory_overhead: u64,
    /// Whether the pod has the volume [`NETWORK_INFO_VOLUME`], as every pod with an SR-IOV interface.
    pub network_info: bool,
}

/// An entry of `resources.claims` of a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct ContainerClaim {
    /// The name of the pod's claim.
    pub name: String,
    /// The request: the container gets the devices and the metadata of this request only. Empty for all requests, and then
    /// absent in JSON, as in Kubernetes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request: String,
}

/// Why a VMI gets no pod.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RenderError {
    /// Devices are not among `permittedHostDevices` of the KubeVirt object.
    #[error("{}", texts(devices))]
    NotPermitted {
        /// The devices, GPUs first.
        devices: Vec<NotPermitted>,
    },
}

/// A device that is not among the permitted ones.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind} {device_name} is not permitted in permittedHostDevices configuration")]
pub struct NotPermitted {
    /// `GPU` or `HostDevice`.
    pub kind: &'static str,
    /// The name of the device's entry in the VMI.
    pub name: String,
    /// The resource name of the device plugin; empty for a DRA device whose gate is off.
    pub device_name: String,
}

/// KubeVirt's text for a list of devices.
fn texts(devices: &[NotPermitted]) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Renders the claims and device resources of a VMI's launcher pod.
///
/// A DRA device whose gate is off is left out silently, as in KubeVirt; the claim stays with the pod. `permitted` is
/// `permittedHostDevices` of the KubeVirt object, `None` where it is not set.
///
/// # Errors
///
/// A device is not permitted. There is no such list for DRA devices.
pub fn render(
    vmi: &VirtualMachineInstance,
    gates: &FeatureGates,
    permitted: Option<&PermittedHostDevices>,
) -> Result<LauncherResources, RenderError> {
    let spec = &vmi.spec;
    if let Some(permitted) = permitted {
        check_permitted(spec, gates, permitted)?;
    }
    let devices = &spec.domain.devices;
    let has_sriov = devices.interfaces.iter().any(|interface| interface.sriov);
    let has_vfio = has_sriov || !devices.gpus.is_empty() || !devices.host_devices().is_empty();
    Ok(LauncherResources {
        resource_claims: spec.resource_claims.clone(),
        claims: container_claims(spec, gates),
        resources: resources(spec, gates),
        memory_overhead: if has_vfio { VFIO_MEMORY_OVERHEAD } else { 0 },
        network_info: has_sriov,
    })
}

/// One entry per DRA device: admission has seen to it that no two are equal.
fn container_claims(spec: &VmiSpec, gates: &FeatureGates) -> Vec<ContainerClaim> {
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().filter(|gpu| gpu.is_dra()).map(|gpu| (Gate::GpusWithDra, &gpu.claim_request));
    let host_devices = devices.host_devices().iter().filter(|device| device.is_dra());
    let host_devices = host_devices.map(|device| (Gate::HostDevicesWithDra, &device.claim_request));
    let networks = spec.networks.iter().map(|network| (Gate::NetworkDevicesWithDra, &network.resource_claim));
    let requests = gpus.chain(host_devices).chain(networks);
    requests
        .filter(|(gate, _)| gates.is_enabled(*gate))
        .filter_map(|(_, request)| request.as_ref())
        .map(|ClaimRequest { claim_name, request_name }| ContainerClaim {
            name: claim_name.clone(),
            request: request_name.clone(),
        })
        .collect()
}

fn resources(spec: &VmiSpec, gates: &FeatureGates) -> Resources {
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().filter(|gpu| gpu.is_device_plugin()).map(|gpu| &*gpu.device_name);
    let host_devices = devices.host_devices().iter().filter(|device| device.is_device_plugin());
    let host_devices = host_devices.map(|device| &*device.device_name);
    let iommufd = gates.is_enabled(Gate::Iommufd).then_some(IOMMUFD_RESOURCE);
    let mut resources = spec.domain.resources.clone();
    for name in gpus.chain(host_devices).chain(iommufd) {
        add_one(&mut resources.requests, name);
        add_one(&mut resources.limits, name);
    }
    resources
}

fn add_one(list: &mut BTreeMap<String, Quantity>, name: &str) {
    let count = list.get(name).and_then(|quantity| quantity.0.parse::<u64>().ok()).unwrap_or_default();
    list.insert(name.to_owned(), Quantity(count.saturating_add(1).to_string()));
}

fn check_permitted(spec: &VmiSpec, gates: &FeatureGates, permitted: &PermittedHostDevices) -> Result<(), RenderError> {
    let devices = &spec.domain.devices;
    let gpus =
        devices.gpus.iter().map(|gpu| (Gate::GpusWithDra, "GPU", &gpu.name, &gpu.device_name, &gpu.claim_request));
    let host_devices = devices.host_devices().iter().map(|device| {
        (Gate::HostDevicesWithDra, "HostDevice", &device.name, &device.device_name, &device.claim_request)
    });
    let refused: Vec<NotPermitted> = gpus
        .chain(host_devices)
        // What has a claim is left to DRA, but for a gate that is off.
        .filter(|(gate, .., request)| request.is_none() || !gates.is_enabled(*gate))
        .filter(|(_, _, _, device_name, _)| !permitted.permits(device_name))
        .map(|(_, kind, name, device_name, _)| NotPermitted {
            kind,
            name: name.clone(),
            device_name: device_name.clone(),
        })
        .collect();
    if refused.is_empty() { Ok(()) } else { Err(RenderError::NotPermitted { devices: refused }) }
}

#[cfg(test)]
mod tests;
