//! Kubernetes' `ObjectMeta`, whole: what a foreign file says about its claim comes out again as it went in.
//!
//! Our own files set `name`, `namespace`, `uid` and `generation` only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::lenient;
use crate::time::Time;

/// Metadata of the claim that a file describes. The fields are in the order in which they are written.
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
    /// How often the metadata was written: 1 the first time, one more with every update. 0 is not written.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// When the object was created.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Time::is_absent_or_zero")]
    pub creation_timestamp: Option<Time>,
    /// When the object is to be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// How long a graceful deletion may take.
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
    /// What must be done before the object may go.
    #[serde(default, deserialize_with = "lenient::list", skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Who set which field.
    #[serde(default, deserialize_with = "lenient::object_list", skip_serializing_if = "Vec::is_empty")]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are the API's and say all there is to say")]
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

/// The fields that one manager set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are the API's and say all there is to say")]
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

/// The field set of a [`ManagedFieldsEntry`]: JSON that is kept as it was written and only indented anew.
///
/// Two are equal if their text is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FieldsV1(Box<RawValue>);

impl FieldsV1 {
    /// Takes any JSON value, or says where it is not JSON.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self)
    }

    /// The JSON text.
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
