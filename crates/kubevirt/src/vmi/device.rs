//! GPUs and host devices, and what decides whether one is served by DRA or by a device plugin.

use serde::{Deserialize, Deserializer};

use super::null_as_default;

/// An entry of `spec.domain.devices.gpus`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "DeviceKeys")]
pub struct Gpu {
    /// The name, which becomes part of libvirt's alias.
    pub name: String,
    /// The resource name of a device plugin, empty for a DRA device.
    pub device_name: String,
    /// The claim and its request, present as soon as one of the two keys is.
    pub claim_request: Option<ClaimRequest>,
    /// Display options of a vGPU.
    pub virtual_gpu_options: Option<VirtualGpuOptions>,
    /// A tag for the config drive, without effect on a DRA device.
    pub tag: String,
}

/// An entry of `spec.domain.devices.hostDevices`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "DeviceKeys")]
pub struct HostDevice {
    /// The name, which becomes part of libvirt's alias.
    pub name: String,
    /// The resource name of a device plugin, empty for a DRA device.
    pub device_name: String,
    /// The claim and its request, present as soon as one of the two keys is.
    pub claim_request: Option<ClaimRequest>,
    /// A tag for the config drive, without effect on a DRA device.
    pub tag: String,
}

/// A reference to one request of one of the VMI's claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimRequest {
    /// The name of an entry of `spec.resourceClaims`.
    #[serde(deserialize_with = "null_as_default")]
    pub claim_name: String,
    /// The name of a request in that claim.
    #[serde(deserialize_with = "null_as_default")]
    pub request_name: String,
}

/// `virtualGPUOptions` of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VirtualGpuOptions {
    /// The display of the vGPU.
    pub display: Option<VgpuDisplay>,
}

/// `virtualGPUOptions.display` of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VgpuDisplay {
    /// Whether the display is on; unset means true.
    pub enabled: Option<bool>,
    /// The boot frame buffer.
    #[serde(rename = "ramFB")]
    pub ram_fb: Option<RamFb>,
}

/// `virtualGPUOptions.display.ramFB` of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RamFb {
    /// Whether the frame buffer is on; unset means true.
    pub enabled: Option<bool>,
}

impl Gpu {
    /// Whether the device comes from a claim: no device name, and a claim request.
    #[must_use]
    pub fn is_dra(&self) -> bool {
        self.device_name.is_empty() && self.claim_request.is_some()
    }

    /// Whether the device comes from a device plugin: a device name, and no claim request.
    #[must_use]
    pub fn is_device_plugin(&self) -> bool {
        !self.device_name.is_empty() && self.claim_request.is_none()
    }

    /// The display options, if there are any.
    #[must_use]
    pub fn display(&self) -> Option<&VgpuDisplay> {
        self.virtual_gpu_options.as_ref()?.display.as_ref()
    }
}

impl HostDevice {
    /// Whether the device comes from a claim: no device name, and a claim request.
    #[must_use]
    pub fn is_dra(&self) -> bool {
        self.device_name.is_empty() && self.claim_request.is_some()
    }

    /// Whether the device comes from a device plugin: a device name, and no claim request.
    #[must_use]
    pub fn is_device_plugin(&self) -> bool {
        !self.device_name.is_empty() && self.claim_request.is_none()
    }
}

impl VgpuDisplay {
    /// Whether the display is on, which is the default.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Whether the boot frame buffer is on: it is unless it or the display is disabled.
    #[must_use]
    pub fn is_ram_fb_enabled(&self) -> bool {
        self.is_enabled() && self.ram_fb.as_ref().and_then(|ram_fb| ram_fb.enabled).unwrap_or(true)
    }
}

/// The keys of a device as they are in the document; a present key with `null` is `Some(None)`.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object", rename_all = "camelCase")]
struct DeviceKeys {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
    #[serde(deserialize_with = "null_as_default")]
    device_name: String,
    #[serde(deserialize_with = "present")]
    claim_name: Option<Option<String>>,
    #[serde(deserialize_with = "present")]
    request_name: Option<Option<String>>,
    #[serde(rename = "virtualGPUOptions")]
    virtual_gpu_options: Option<VirtualGpuOptions>,
    #[serde(deserialize_with = "null_as_default")]
    tag: String,
}

impl DeviceKeys {
    fn claim_request(&mut self) -> Option<ClaimRequest> {
        if self.claim_name.is_none() && self.request_name.is_none() {
            return None;
        }
        Some(ClaimRequest {
            claim_name: self.claim_name.take().flatten().unwrap_or_default(),
            request_name: self.request_name.take().flatten().unwrap_or_default(),
        })
    }
}

impl From<DeviceKeys> for Gpu {
    fn from(mut keys: DeviceKeys) -> Self {
        Self {
            claim_request: keys.claim_request(),
            name: keys.name,
            device_name: keys.device_name,
            virtual_gpu_options: keys.virtual_gpu_options,
            tag: keys.tag,
        }
    }
}

impl From<DeviceKeys> for HostDevice {
    fn from(mut keys: DeviceKeys) -> Self {
        Self { claim_request: keys.claim_request(), name: keys.name, device_name: keys.device_name, tag: keys.tag }
    }
}

/// Tells a key with `null` from an absent key.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
