//! Slices that the API server stores, reduced to what has to be kept in memory.

use std::collections::BTreeMap;

use drakkar_client::{DraVersion, to_v1};
use k8s_openapi::api::resource::v1::{Device, ResourceSliceSpec};
use serde::Deserialize;
use serde_json::Value;

use super::content::{Digest, SliceHeader, TaintTime, device_digest, taint_times};

/// Metadata that other clients may have added to a slice, and that an update must keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct ForeignMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finalizers: Option<Vec<String>>,
}

/// A slice that the API server stores.
#[derive(Debug, Clone)]
pub(super) struct StoredSlice {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) foreign: ForeignMetadata,
    pub(super) pool: String,
    pub(super) generation: i64,
    pub(super) count: i64,
    pub(super) digest: Digest,
    /// The names of its devices, in order.
    pub(super) devices: Box<[Box<str>]>,
    /// The taints of its devices, in order, each with the index of its device.
    pub(super) taints: Box<[(usize, TaintTime)]>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    spec: ResourceSliceSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(flatten)]
    foreign: ForeignMetadata,
}

impl StoredSlice {
    /// Decodes a slice from JSON.
    pub(super) fn read(json: &[u8], version: DraVersion) -> Result<Self, serde_json::Error> {
        let Object { metadata, mut spec } = read(json, version)?;
        let devices = spec.devices.take().unwrap_or_default();
        let header = SliceHeader::take(&mut spec);
        let mut names = Vec::with_capacity(devices.len());
        let mut digests = Vec::with_capacity(devices.len());
        let mut taints = Vec::new();
        for (index, mut device) in devices.into_iter().enumerate() {
            taints.extend(taint_times(&device).into_iter().map(|taint| (index, taint)));
            digests.push(device_digest(&mut device)?);
            names.push(device.name.into_boxed_str());
        }
        Ok(Self {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            foreign: metadata.foreign,
            pool: spec.pool.name,
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            digest: header.digest(digests.into_iter())?,
            devices: names.into(),
            taints: taints.into(),
        })
    }

    /// Returns whether this is a newer state of the object than that of a resource version.
    pub(super) fn is_newer_than(&self, resource_version: &str) -> bool {
        is_newer(&self.resource_version, resource_version)
    }

    /// Returns all taints, each with the name of its device.
    pub(super) fn taints_by_device(&self) -> impl Iterator<Item = (&str, &TaintTime)> {
        self.taints.iter().filter_map(|(index, taint)| Some((&**self.devices.get(*index)?, taint)))
    }
}

/// Returns whether one resource version is newer than another. They are numbers, though the API used to call them
/// opaque.
pub(super) fn is_newer(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}

/// Decodes the whole spec of a slice from JSON.
pub(super) fn read_spec(json: &[u8], version: DraVersion) -> Result<ResourceSliceSpec, serde_json::Error> {
    Ok(read(json, version)?.spec)
}

fn read(json: &[u8], version: DraVersion) -> Result<Object, serde_json::Error> {
    if version.has_v1_form() {
        return serde_json::from_slice(json);
    }
    let mut object: Value = serde_json::from_slice(json)?;
    to_v1("ResourceSlice", &mut object);
    serde_json::from_value(object)
}

/// Decodes a device in the form in which it is sent.
pub(super) fn read_device(json: &str) -> Result<Device, serde_json::Error> {
    serde_json::from_str(json)
}
