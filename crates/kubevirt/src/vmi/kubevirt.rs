//! The KubeVirt object: the cluster's configuration, as far as DRA reads it.

use serde::Deserialize;
use thiserror::Error;

use super::field_error::{FieldError, from_value, yaml_problem};
use super::null_as_default;

/// Why a document is not a KubeVirt object.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KubeVirtError {
    /// The text is neither YAML nor JSON, or a field has the wrong type.
    #[error("KubeVirt object cannot be read: {}", yaml_problem(.0))]
    Malformed(#[from] Box<serde_saphyr::Error>),
    /// A field has the wrong type.
    #[error("KubeVirt object cannot be read: {0}")]
    Field(#[from] FieldError),
    /// The object has another kind.
    #[error(
        "expected an object of kind KubeVirt, found kind {found:?}: give the output of kubectl get kubevirt -o yaml"
    )]
    Kind {
        /// The kind found.
        found: String,
    },
}

/// KubeVirt's configuration object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KubeVirt {
    /// The object's kind.
    kind: String,
    /// What the administrator configured.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: KubeVirtSpec,
}

/// `spec` of the KubeVirt object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KubeVirtSpec {
    /// The configuration.
    #[serde(deserialize_with = "null_as_default")]
    pub configuration: KubeVirtConfiguration,
}

/// `spec.configuration` of the KubeVirt object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeVirtConfiguration {
    /// The feature gates.
    #[serde(deserialize_with = "null_as_default")]
    pub developer_configuration: DeveloperConfiguration,
    /// The devices of device plugins that VMIs may use; `None` allows all.
    pub permitted_host_devices: Option<PermittedHostDevices>,
}

/// `spec.configuration.developerConfiguration` of the KubeVirt object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeveloperConfiguration {
    /// Gates turned on.
    #[serde(deserialize_with = "null_as_default")]
    pub feature_gates: Vec<String>,
    /// Gates turned off.
    #[serde(deserialize_with = "null_as_default")]
    pub disabled_feature_gates: Vec<String>,
}

/// `spec.configuration.permittedHostDevices` of the KubeVirt object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PermittedHostDevices {
    /// PCI devices.
    #[serde(deserialize_with = "null_as_default")]
    pub pci_host_devices: Vec<PciHostDevice>,
    /// Mediated devices.
    #[serde(deserialize_with = "null_as_default")]
    pub mediated_devices: Vec<MediatedHostDevice>,
    /// USB devices.
    #[serde(deserialize_with = "null_as_default")]
    pub usb: Vec<UsbHostDevice>,
}

/// A PCI device that VMIs may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PciHostDevice {
    /// `vendor:device`.
    pub pci_vendor_selector: String,
    /// The resource name of the device plugin.
    pub resource_name: String,
    /// Whether another device plugin than KubeVirt's serves it.
    pub external_resource_provider: bool,
}

/// A mediated device that VMIs may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MediatedHostDevice {
    /// The name of the type.
    pub mdev_name_selector: String,
    /// The resource name of the device plugin.
    pub resource_name: String,
    /// Whether another device plugin than KubeVirt's serves it.
    pub external_resource_provider: bool,
}

/// A USB device that VMIs may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UsbHostDevice {
    /// The resource name of the device plugin.
    pub resource_name: String,
    /// Whether another device plugin than KubeVirt's serves it.
    pub external_resource_provider: bool,
}

impl KubeVirt {
    /// Reads the object from YAML or JSON.
    ///
    /// # Errors
    ///
    /// The text is malformed, or the object has another kind.
    pub fn from_yaml(text: &str) -> Result<Self, KubeVirtError> {
        Self::from_value(&serde_saphyr::from_str(text).map_err(Box::new)?)
    }

    /// Reads an object that was parsed already.
    ///
    /// # Errors
    ///
    /// A field has the wrong type, or the object has another kind.
    pub fn from_value(document: &serde_json::Value) -> Result<Self, KubeVirtError> {
        let object: Self = from_value(document)?;
        if object.kind == "KubeVirt" { Ok(object) } else { Err(KubeVirtError::Kind { found: object.kind }) }
    }
}

impl PermittedHostDevices {
    /// Whether a device plugin's resource is among the permitted ones.
    #[must_use]
    pub fn permits(&self, resource_name: &str) -> bool {
        self.pci_host_devices.iter().any(|device| device.resource_name == resource_name)
            || self.permits_mediated(resource_name)
            || self.usb.iter().any(|device| device.resource_name == resource_name)
    }

    /// Whether a resource is among the permitted mediated devices.
    #[must_use]
    pub fn permits_mediated(&self, resource_name: &str) -> bool {
        self.mediated_devices.iter().any(|device| device.resource_name == resource_name)
    }
}
