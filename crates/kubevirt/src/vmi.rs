//! The parts of KubeVirt's API objects that DRA reads: `VirtualMachineInstance`, `VirtualMachine`, KubeVirt.
//!
//! The types keep what KubeVirt's rules can see. Unknown fields are skipped. As in Go, `null` is the same as an absent
//! key, with one exception: a device has a [`ClaimRequest`] as soon as `claimName` or `requestName` is a key of its
//! object, whatever the value.

mod device;
mod domain;
mod field_error;
mod kubevirt;
mod network;
mod workload;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

pub use device::{ClaimRequest, Gpu, HostDevice, RamFb, VgpuDisplay, VirtualGpuOptions};
pub use domain::{Cpu, Devices, Domain, Hugepages, Memory, Numa, Quantity, Resources};
pub use field_error::{FieldError, yaml_problem};
pub use kubevirt::{
    DeveloperConfiguration, KubeVirt, KubeVirtConfiguration, KubeVirtError, KubeVirtSpec, MediatedHostDevice,
    PciHostDevice, PermittedHostDevices, UsbHostDevice,
};
pub use network::{Interface, MultusNetwork, Network};
pub use workload::{VirtualMachine, Workload, WorkloadError};

/// A KubeVirt `VirtualMachineInstance`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstance {
    /// The object's metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What the user asks for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: VmiSpec,
}

/// The metadata of an object, as far as it is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectMeta {
    /// The object's name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// The prefix from which the API server makes a name.
    #[serde(rename = "generateName", deserialize_with = "null_as_default")]
    pub generate_name: String,
    /// The object's namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: String,
    /// The object's unique id.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: String,
    /// When the object's deletion was asked for; unset while nobody did.
    #[serde(rename = "deletionTimestamp")]
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

/// `spec` of a `VirtualMachineInstance`, and `spec.template.spec` of a `VirtualMachine`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VmiSpec {
    /// The claims that the launcher pod gets.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_claims: Vec<ResourceClaimRef>,
    /// The virtual machine.
    #[serde(deserialize_with = "null_as_default")]
    pub domain: Domain,
    /// The networks that interfaces connect to.
    #[serde(deserialize_with = "null_as_default")]
    pub networks: Vec<Network>,
    /// The architecture of the guest, empty for the cluster's default.
    #[serde(deserialize_with = "null_as_default")]
    pub architecture: String,
}

/// A claim of the launcher pod: an existing `ResourceClaim`, or a template that makes one per pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimRef {
    /// The name by which devices refer to the claim.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// The name of an existing `ResourceClaim` in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    /// The name of a `ResourceClaimTemplate` in the namespace of the VMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}

/// Reads `null` as the default value, as Go does.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
