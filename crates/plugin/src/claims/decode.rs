//! Decodes claims, and converts every version of the API to v1.

use std::collections::BTreeMap;

use drakkar_client::{DraVersion, to_v1};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec, ResourceClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

/// A claim in the form of v1, whatever its `apiVersion`.
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

impl From<Fetched> for ResourceClaim {
    fn from(Fetched { metadata, spec, status }: Fetched) -> Self {
        Self { metadata, spec, status }
    }
}

/// Decodes a claim of any version.
pub(super) fn claim(body: &[u8], version: DraVersion) -> Result<ResourceClaim, serde_json::Error> {
    if version.has_v1_form() {
        return Ok(serde_json::from_slice::<Fetched>(body)?.into());
    }
    let mut object: serde_json::Value = serde_json::from_slice(body)?;
    to_v1("ResourceClaim", &mut object);
    Ok(serde_json::from_value::<Fetched>(object)?.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_managed_fields_are_dropped() {
        let metadata = json!({
            "annotations": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 0,
            "deletionTimestamp": "2026-01-02T03:04:06Z", "finalizers": ["f"], "generateName": "g", "generation": 1,
            "labels": {"l": "m"}, "name": "gpus", "namespace": "default",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"}],
            "resourceVersion": "7", "selfLink": "/here", "uid": "u-2",
        });
        let mut object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}},
            "status": {"allocation": {"devices": {"results": [
                {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d"}
            ]}}},
        });
        let expected: ResourceClaim = serde_json::from_value(object.clone()).unwrap();
        object["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:status": {}}}]);
        assert_eq!(claim(object.to_string().as_bytes(), DraVersion::V1).unwrap(), expected);

        object["apiVersion"] = json!("resource.k8s.io/v1beta2");
        assert_eq!(claim(object.to_string().as_bytes(), DraVersion::V1beta2).unwrap(), expected, "of another version");
    }

    /// The fields of a plain request move into `exactly`.
    #[test]
    fn a_v1beta1_claim_is_converted_to_v1() {
        let of = |requests: serde_json::Value| {
            json!({"metadata": {"name": "gpus"}, "spec": {"devices": {"requests": requests}}}).to_string()
        };
        let subrequests = json!([{"name": "small", "deviceClassName": "gpus"}]);
        let old = of(json!([
            {"name": "gpu", "deviceClassName": "gpus", "count": 2, "adminAccess": true},
            {"name": "any", "firstAvailable": subrequests},
        ]));
        let new = of(json!([
            {"name": "gpu", "exactly": {"deviceClassName": "gpus", "count": 2, "adminAccess": true}},
            {"name": "any", "firstAvailable": subrequests},
        ]));
        assert_eq!(claim(old.as_bytes(), DraVersion::V1beta1).unwrap(), claim(new.as_bytes(), DraVersion::V1).unwrap());
    }
}
