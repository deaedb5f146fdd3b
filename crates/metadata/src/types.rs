//! The version-neutral types of a metadata file's content.
//!
//! They can hold everything that another writer's file can, including values that [validation](mod@crate::validate)
//! refuses (an attribute with two values, a pool without a name), so that decoding and encoding loses nothing. The JSON
//! names and their order are those of `metadata.resource.k8s.io`; see [`crate::v1beta1`] and [`crate::v1alpha1`] for
//! documents with a version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attribute::DeviceAttribute;
use crate::lenient;
use crate::object_meta::ObjectMeta;

/// The content of a metadata file: one driver's devices of one claim.
///
/// It is the version-neutral form of the API's `DeviceMetadata`. A file written for KEP-5304 has exactly one entry in
/// `requests`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// The name, namespace, UID and generation of the claim, and other fields that another writer set.
    pub metadata: ObjectMeta,
    /// The entry of `pod.spec.resourceClaims` for which the claim was generated; only for claims from a template.
    pub pod_claim_name: Option<String>,
    /// The requests of the claim that this file describes.
    pub requests: Vec<Request>,
}

/// The devices allocated for one request of a claim (`DeviceMetadataRequest` in Go).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Request {
    /// The request's name; `request/subrequest` where the claim listed alternatives.
    #[serde(default, deserialize_with = "lenient::value")]
    pub name: String,
    /// The devices, in the driver's order.
    #[serde(default, deserialize_with = "lenient::object_list", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
}

impl Request {
    /// Returns the request's name without a subrequest: the name in the pod spec, and of the file's directory.
    pub fn base_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// One allocated device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The driver that manages the device.
    #[serde(default, deserialize_with = "lenient::value")]
    pub driver: String,
    /// The pool that the device belongs to.
    #[serde(default, deserialize_with = "lenient::value")]
    pub pool: String,
    /// The device's name in its pool.
    #[serde(default, deserialize_with = "lenient::value")]
    pub name: String,
    /// The device's attributes by name, with or without a domain (`example.com/model`, `model`).
    #[serde(default, deserialize_with = "lenient::object_map", skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// The interface, addresses and hardware address of a network device.
    #[serde(default, deserialize_with = "lenient::optional_object", skip_serializing_if = "Option::is_none")]
    pub network_data: Option<NetworkDeviceData>,
}

/// A network device in the pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "NetworkDeviceDataNames")]
pub struct NetworkDeviceData {
    /// The interface's name in the pod's network namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    /// Addresses with their prefix length, for example `10.0.0.5/24`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// The hardware (MAC) address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hardware_address: String,
}

/// The field names from which [`NetworkDeviceData`] is deserialized.
///
/// The names of KEP-5304's prose (`addresses`, `hwAddress`) count only if the API's field is empty. They are unknown
/// fields to the API, so a value of another type is ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetworkDeviceDataNames {
    #[serde(default, deserialize_with = "lenient::value")]
    interface_name: String,
    #[serde(default, deserialize_with = "lenient::list")]
    ips: Vec<String>,
    #[serde(default, deserialize_with = "lenient::value")]
    hardware_address: String,
    #[serde(default, deserialize_with = "lenient::strings_if_any")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "lenient::strings_if_any")]
    hw_address: Vec<String>,
}

impl From<NetworkDeviceDataNames> for NetworkDeviceData {
    fn from(names: NetworkDeviceDataNames) -> Self {
        let NetworkDeviceDataNames { interface_name, ips, hardware_address, addresses, hw_address } = names;
        Self {
            interface_name,
            ips: if ips.is_empty() { addresses } else { ips },
            hardware_address: if hardware_address.is_empty() {
                hw_address.into_iter().next().unwrap_or_default()
            } else {
                hardware_address
            },
        }
    }
}
