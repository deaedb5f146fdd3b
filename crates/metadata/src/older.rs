//! Two formats that were designed but never released. They are decoded, never written.
//!
//! VEP 10 (GPUs with DRA in KubeVirt) has one file per claim with `apiVersion: resource.k8s.io/v1alpha1`, `device` instead
//! of a device's `name`, and, in one of its tables, `stringValue` instead of `string`. The early draft of KEP-5304 has
//! neither version nor devices: `claims[].requests[].attributes` with plain values.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::attribute::DeviceAttribute;
use crate::decode::{Decoded, Format};
use crate::lenient;
use crate::object_meta::ObjectMeta;
use crate::types::{Device, Metadata, NetworkDeviceData, Request};

/// The `apiVersion` of VEP 10's format.
pub(crate) const VEP10_API_VERSION: &str = "resource.k8s.io/v1alpha1";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Vep10 {
    #[serde(default, deserialize_with = "lenient::object")]
    metadata: ObjectMeta,
    pod_claim_name: Option<String>,
    #[serde(default, deserialize_with = "lenient::object_list")]
    requests: Vec<Vep10Request>,
}

#[derive(Default, Deserialize)]
struct Vep10Request {
    #[serde(default, deserialize_with = "lenient::value")]
    name: String,
    #[serde(default, deserialize_with = "lenient::object_list")]
    devices: Vec<Vep10Device>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vep10Device {
    #[serde(default, deserialize_with = "lenient::value")]
    driver: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pool: String,
    device: Option<String>,
    name: Option<String>,
    #[serde(default, deserialize_with = "lenient::object_map")]
    attributes: BTreeMap<String, Vep10Attribute>,
    #[serde(default, deserialize_with = "lenient::optional_object")]
    network_data: Option<NetworkDeviceData>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vep10Attribute {
    int_value: Option<i64>,
    bool_value: Option<bool>,
    string_value: Option<String>,
    version_value: Option<String>,
    int: Option<i64>,
    bool: Option<bool>,
    string: Option<String>,
    version: Option<String>,
}

impl From<Vep10> for Metadata {
    fn from(document: Vep10) -> Self {
        let Vep10 { metadata, pod_claim_name, requests } = document;
        Self { metadata, pod_claim_name, requests: requests.into_iter().map(Into::into).collect() }
    }
}

impl From<Vep10Request> for Request {
    fn from(request: Vep10Request) -> Self {
        Self { name: request.name, devices: request.devices.into_iter().map(Into::into).collect() }
    }
}

impl From<Vep10Device> for Device {
    fn from(device: Vep10Device) -> Self {
        Self {
            driver: device.driver,
            pool: device.pool,
            name: device.device.or(device.name).unwrap_or_default(),
            attributes: device.attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
            network_data: device.network_data,
        }
    }
}

impl From<Vep10Attribute> for DeviceAttribute {
    fn from(attribute: Vep10Attribute) -> Self {
        Self {
            int: attribute.int.or(attribute.int_value),
            bool: attribute.bool.or(attribute.bool_value),
            string: attribute.string.or(attribute.string_value),
            version: attribute.version.or(attribute.version_value),
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct EarlyDraft {
    #[serde(deserialize_with = "lenient::object_list")]
    claims: Vec<DraftClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DraftClaim {
    claim_name: String,
    #[serde(default, deserialize_with = "lenient::object_list")]
    requests: Vec<DraftRequest>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DraftRequest {
    request_name: String,
    #[serde(default, deserialize_with = "lenient::map")]
    attributes: BTreeMap<String, PlainValue>,
}

impl EarlyDraft {
    /// Converts the draft to one element per claim, in which each request has one device with the request's attributes.
    ///
    /// The draft has no names of devices, pools or drivers; the driver is in the file's name.
    pub(crate) fn into_claims(self) -> Vec<Decoded> {
        let request = |request: DraftRequest| Request {
            name: request.request_name,
            devices: vec![Device {
                attributes: request.attributes.into_iter().map(|(name, value)| (name, value.0)).collect(),
                ..Device::default()
            }],
        };
        let claim = |claim: DraftClaim| Decoded {
            metadata: Metadata {
                metadata: ObjectMeta { name: claim.claim_name, ..ObjectMeta::default() },
                pod_claim_name: None,
                requests: claim.requests.into_iter().map(request).collect(),
            },
            format: Format::EarlyDraft,
        };
        self.claims.into_iter().map(claim).collect()
    }
}

/// A value of the early draft: a string, as in the draft's examples, or a number or boolean.
#[derive(Default)]
struct PlainValue(DeviceAttribute);

impl<'de> Deserialize<'de> for PlainValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlainVisitor;

        impl Visitor<'_> for PlainVisitor {
            type Value = DeviceAttribute;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(text.into())
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(number.into())
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
                match i64::try_from(number) {
                    Ok(number) => Ok(number.into()),
                    Err(_) => {
                        Err(E::invalid_value(serde::de::Unexpected::Unsigned(number), &"a 64-bit signed integer"))
                    }
                }
            }
        }

        deserializer.deserialize_any(PlainVisitor).map(PlainValue)
    }
}
