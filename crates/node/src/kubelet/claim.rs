//! Claims and devices as a kubelet and a plugin exchange them, in either version of the service.

use std::fmt;

use drakkar_kubelet_api::{checkpoint, dra_v1, dra_v1beta1};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};

/// A claim's namespace, name and UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} (uid {})", self.namespace, self.name, self.uid)
    }
}

impl From<&ClaimId> for ClaimId {
    fn from(claim: &ClaimId) -> Self {
        claim.clone()
    }
}

impl From<&drakkar_client::ClaimRef> for ClaimId {
    fn from(claim: &drakkar_client::ClaimRef) -> Self {
        Self { namespace: claim.namespace.to_string(), name: claim.name.to_string(), uid: claim.uid.to_string() }
    }
}

impl From<&ResourceClaim> for ClaimId {
    fn from(claim: &ResourceClaim) -> Self {
        let metadata = &claim.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { namespace: text(&metadata.namespace), name: text(&metadata.name), uid: text(&metadata.uid) }
    }
}

/// A device that a plugin has prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The requests that the device is for; empty for all.
    pub request_names: Vec<String>,
    /// The pool.
    pub pool_name: String,
    /// The name in the pool.
    pub device_name: String,
    /// The CDI devices that the container runtime injects for it.
    pub cdi_device_ids: Vec<String>,
    /// The share id; never set in v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

impl From<checkpoint::Device> for Device {
    fn from(device: checkpoint::Device) -> Self {
        Self {
            request_names: device.request_names,
            pool_name: device.pool_name,
            device_name: device.device_name,
            cdi_device_ids: device.cdi_device_ids,
            share_id: device.share_id,
        }
    }
}

impl From<&Device> for checkpoint::Device {
    fn from(device: &Device) -> Self {
        let Device { request_names, pool_name, device_name, cdi_device_ids, share_id } = device.clone();
        Self { pool_name, device_name, share_id, request_names, cdi_device_ids }
    }
}

impl From<dra_v1::Device> for Device {
    fn from(device: dra_v1::Device) -> Self {
        Self {
            request_names: device.request_names,
            pool_name: device.pool_name,
            device_name: device.device_name,
            cdi_device_ids: device.cdi_device_ids,
            share_id: device.share_id,
        }
    }
}

impl From<dra_v1beta1::Device> for Device {
    fn from(device: dra_v1beta1::Device) -> Self {
        Self {
            request_names: device.request_names,
            pool_name: device.pool_name,
            device_name: device.device_name,
            cdi_device_ids: device.cdi_device_ids,
            share_id: None,
        }
    }
}
