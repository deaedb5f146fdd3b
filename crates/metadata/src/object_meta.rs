//! Kubernetes' `ObjectMeta` with all its fields, so that decoding and encoding another writer's file loses nothing.
//!
//! Drakkar sets only `name`, `namespace`, `uid` and `generation`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::lenient;
use crate::time::Time;

/// The object metadata of the claim that a file describes. The fields are in the order of the JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// The claim's name.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The prefix from which the name was generated.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// The claim's namespace.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// A deprecated field of the API.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub self_link: String,
    /// The claim's UID.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The claim's resource version.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The number of times the metadata was written: 1 at first, incremented with every update. 0 is omitted.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// When the object was created.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Time::is_absent_or_zero")]
    pub creation_timestamp: Option<Time>,
    /// When the object is to be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// The grace period of the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    #[serde(default, deserialize_with = "lenient::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, deserialize_with = "lenient::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The objects that this one depends on.
    #[serde(default, deserialize_with = "lenient::object_list", skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// The finalizers that block the object's deletion.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// The fields that each manager set.
    #[serde(default, deserialize_with = "lenient::object_list", skip_serializing_if = "Vec::is_empty")]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are those of the Kubernetes API")]
pub struct OwnerReference {
    #[serde(default, deserialize_with = "lenient::value")]
    pub api_version: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// The fields that a manager set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are those of the Kubernetes API")]
pub struct ManagedFieldsEntry {
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub manager: String,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub operation: String,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub fields_type: String,
    #[serde(default, rename = "fieldsV1", skip_serializing_if = "Option::is_none")]
    pub fields_v1: Option<FieldsV1>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The field set of a [`ManagedFieldsEntry`]: JSON that is kept as text.
///
/// Two field sets are equal if their texts are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FieldsV1(Box<RawValue>);

impl FieldsV1 {
    /// Creates a field set from any JSON value.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self)
    }

    /// Returns the JSON text.
    pub fn as_json(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for FieldsV1 {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
    }
}

impl Eq for FieldsV1 {}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
