//! The parts of a claim that each prepare needs, decoded without the rest: most of a claim is its spec, its node selector and its
//! managed fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use drakkar_client::ClaimRef;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationResult, ResourceClaim, ResourceClaimSpec, ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The annotation with the entry of `pod.spec.resourceClaims`, on claims that the claim controller creates from a template.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// The parts of a claim that each prepare needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// The annotation of claims that are made from a template.
    pub(crate) pod_claim_name: Option<String>,
    pub(crate) is_allocated: bool,
    /// `status.allocation.devices`.
    pub(crate) devices: DeviceAllocationResult,
    pub(crate) reserved_for: Vec<Consumer>,
    /// The drivers of the entries in `status.devices`.
    pub(crate) reported_by: Vec<String>,
}

/// Something that a claim is reserved for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Consumer {
    /// `pods` for a pod.
    #[serde(default)]
    pub(crate) resource: String,
    #[serde(default)]
    pub(crate) name: String,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    metadata: WireMetadata<'a>,
    status: Option<WireStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMetadata<'a> {
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    resource_version: Option<Cow<'a, str>>,
    annotations: Option<WireAnnotations>,
}

/// The one annotation that matters.
struct WireAnnotations(Option<String>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    allocation: Option<WireAllocation>,
    reserved_for: Option<Vec<Consumer>>,
    devices: Option<Vec<WireDevice>>,
}

#[derive(Deserialize)]
struct WireAllocation {
    devices: Option<DeviceAllocationResult>,
}

#[derive(Deserialize)]
struct WireDevice {
    #[serde(default)]
    driver: String,
}

impl<'de> Deserialize<'de> for WireAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Annotations;
        impl<'de> Visitor<'de> for Annotations {
            type Value = WireAnnotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireAnnotations, A::Error> {
                let mut found = None;
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if key == POD_CLAIM_NAME {
                        found = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(WireAnnotations(found))
            }
        }
        deserializer.deserialize_map(Annotations)
    }
}

impl Summary {
    /// Decodes the summary of an object in JSON, in the form of v1.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, serde_json::Error> {
        let Wire { metadata, status } = serde_json::from_slice(body)?;
        let mut summary = Self {
            uid: metadata.uid.map(Cow::into_owned).unwrap_or_default(),
            resource_version: metadata.resource_version.map(Cow::into_owned).unwrap_or_default(),
            pod_claim_name: metadata.annotations.and_then(|annotations| annotations.0),
            ..Self::default()
        };
        if let Some(status) = status {
            summary.is_allocated = status.allocation.is_some();
            summary.devices = status.allocation.and_then(|allocation| allocation.devices).unwrap_or_default();
            summary.reserved_for = status.reserved_for.unwrap_or_default();
            summary.reported_by = status.devices.into_iter().flatten().map(|device| device.driver).collect();
        }
        Ok(summary)
    }

    /// Returns the summary of an object.
    pub(super) fn of(object: &ResourceClaim) -> Self {
        let status = object.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let annotations = object.metadata.annotations.as_ref();
        let consumers = status.and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
        let reported = status.and_then(|status| status.devices.as_deref()).unwrap_or_default();
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
            pod_claim_name: annotations.and_then(|annotations| annotations.get(POD_CLAIM_NAME)).cloned(),
            is_allocated: allocation.is_some(),
            devices: allocation.and_then(|allocation| allocation.devices.clone()).unwrap_or_default(),
            reserved_for: consumers
                .iter()
                .map(|consumer| Consumer { resource: consumer.resource.clone(), name: consumer.name.clone() })
                .collect(),
            reported_by: reported.iter().map(|device| device.driver.clone()).collect(),
        }
    }

    /// Returns an object with what the summary has.
    pub(super) fn to_object(&self, reference: &ClaimRef) -> ResourceClaim {
        let mut object = ResourceClaim::default();
        object.metadata.namespace = Some(reference.namespace.to_string());
        object.metadata.name = Some(reference.name.to_string());
        object.metadata.uid = Some(self.uid.clone());
        let allocation = AllocationResult { devices: Some(self.devices.clone()), ..AllocationResult::default() };
        object.status = Some(ResourceClaimStatus { allocation: Some(allocation), ..ResourceClaimStatus::default() });
        object
    }
}

/// Decodes a whole object in JSON, in the form of v1.
pub(super) fn decode_object(body: &[u8]) -> Result<ResourceClaim, serde_json::Error> {
    let Fetched { metadata, spec, status } = serde_json::from_slice(body)?;
    Ok(ResourceClaim { metadata, spec, status })
}

/// A claim, whatever its `apiVersion`.
#[derive(Deserialize)]
struct Fetched {
    #[serde(with = "Metadata")]
    metadata: ObjectMeta,
    spec: Option<ResourceClaimSpec>,
    status: Option<ResourceClaimStatus>,
}

/// An object's metadata without the managed fields, which often are half of a claim and which drivers do not need.
#[derive(Deserialize)]
#[serde(remote = "ObjectMeta", rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip)]
    managed_fields: Option<Vec<ManagedFieldsEntry>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object() -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "annotations": {"a": "b", (POD_CLAIM_NAME): "gpus"}, "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionGracePeriodSeconds": 0, "deletionTimestamp": "2026-01-02T03:04:06Z", "finalizers": ["f"],
                "generateName": "g", "generation": 1, "labels": {"l": "m"}, "name": "gpus", "namespace": "default",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"}],
                "resourceVersion": "7", "selfLink": "/here", "uid": "u-2",
            },
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d"}],
                        "config": [{"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}],
                    },
                    "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
                    ]}]},
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u-1"}],
                "devices": [{"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {"x": 1}}],
            },
        })
    }

    #[test]
    fn only_the_managed_fields_are_dropped() {
        let mut object = object();
        let expected: ResourceClaim = serde_json::from_value(object.clone()).unwrap();
        object["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:status": {}}}]);
        assert_eq!(decode_object(object.to_string().as_bytes()).unwrap(), expected);
    }

    #[test]
    fn a_summary_is_the_same_from_bytes_and_from_the_object() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut object = object();
            change(&mut object);
            object
        };
        let cases = [
            object(),
            with(&|object| drop(object.as_object_mut().unwrap().remove("status"))),
            with(&|object| object["status"]["allocation"] = Value::Null),
            with(&|object| object["status"]["allocation"] = json!({})),
            with(&|object| object["metadata"]["annotations"] = Value::Null),
            with(&|object| object["metadata"]["annotations"] = json!({"a\"b": "c\nd", (POD_CLAIM_NAME): "g\u{e9}"})),
            json!({"metadata": {}}),
        ];
        for case in cases {
            let whole: ResourceClaim = serde_json::from_value(case.clone()).unwrap();
            let summary = Summary::decode(case.to_string().as_bytes()).unwrap();
            assert_eq!(summary, Summary::of(&whole), "{case}");
            assert_eq!(summary.is_allocated, case["status"]["allocation"].is_object(), "{case}");
        }
        let summary = Summary::of(&serde_json::from_value(object()).unwrap());
        assert_eq!((summary.uid.as_str(), summary.pod_claim_name.as_deref()), ("u-2", Some("gpus")));
        assert_eq!(summary.reported_by, ["gpu.example.com"]);
        assert_eq!(summary.reserved_for, [Consumer { resource: "pods".into(), name: "p".into() }]);
    }

    #[test]
    fn wrong_types_are_errors() {
        for wrong in
            [r#"{"metadata": []}"#, r#"{"metadata": {"uid": 1}}"#, r#"{"metadata": {}, "status": "x"}"#, "{", ""]
        {
            assert!(Summary::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
