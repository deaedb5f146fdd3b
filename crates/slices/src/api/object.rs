//! Encoding of slices for the API server.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use drakkar_client::{DraVersion, from_v1};
use k8s_openapi::api::resource::v1::ResourceSliceSpec;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::content::{EncodedDevice, SliceHeader, TaintTime};
use super::super::stored::{ForeignMetadata, StoredSlice, read_device};

/// The node that owns the slices: Kubernetes deletes them with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Owner {
    pub(in super::super) name: String,
    pub(in super::super) uid: String,
}

/// A slice to be written.
#[derive(Debug)]
pub(in super::super) struct SliceObject<'a> {
    pub(in super::super) version: DraVersion,
    /// The slice to replace, or the prefix of the new one's name.
    pub(in super::super) target: Result<&'a StoredSlice, String>,
    pub(in super::super) owner: Option<&'a Owner>,
    pub(in super::super) driver: &'a str,
    pub(in super::super) pool: &'a str,
    pub(in super::super) generation: i64,
    pub(in super::super) count: usize,
    pub(in super::super) node: Option<&'a str>,
    pub(in super::super) header: &'a SliceHeader,
    pub(in super::super) devices: &'a [Arc<EncodedDevice>],
    /// The known times of taints by device.
    pub(in super::super) taints: &'a HashMap<String, Vec<TaintTime>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: &'a str,
    kind: &'static str,
    metadata: Metadata<'a>,
    spec: Spec<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    generate_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    owner_references: Vec<Value>,
    #[serde(flatten)]
    foreign: Option<&'a ForeignMetadata>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    driver: &'a str,
    pool: Pool<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<&'a str>,
    #[serde(flatten)]
    header: &'a SliceHeader,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Cow<'a, RawValue>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pool<'a> {
    name: &'a str,
    generation: i64,
    resource_slice_count: usize,
}

impl SliceObject<'_> {
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let replaced = self.target.as_ref().ok();
        let owner_references = self.owner.iter().map(|owner| {
            json!({"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid, "controller": true})
        });
        let devices = self.devices.iter().map(|device| self.device(device)).collect::<Result<_, _>>()?;
        let object = Object {
            api_version: self.version.api_version(),
            kind: "ResourceSlice",
            metadata: Metadata {
                generate_name: self.target.as_ref().err().map(String::as_str),
                name: replaced.map(|slice| slice.name.as_str()),
                uid: replaced.map(|slice| slice.uid.as_str()),
                resource_version: replaced.map(|slice| slice.resource_version.as_str()),
                owner_references: owner_references.collect(),
                foreign: replaced.map(|slice| &slice.foreign),
            },
            spec: Spec {
                driver: self.driver,
                pool: Pool { name: self.pool, generation: self.generation, resource_slice_count: self.count },
                node_name: self.node,
                header: self.header,
                devices,
            },
        };
        if self.version.has_v1_form() {
            return serde_json::to_vec(&object);
        }
        let mut object = serde_json::to_value(&object)?;
        from_v1("ResourceSlice", &mut object);
        serde_json::to_vec(&object)
    }

    /// Returns a device as JSON. Taints without a time get the known one, or an update would reset it.
    fn device<'a>(&self, encoded: &'a EncodedDevice) -> Result<Cow<'a, RawValue>, serde_json::Error> {
        let known = self.taints.get(&*encoded.name).map_or(&[][..], Vec::as_slice);
        let lacks_time = |taint: &TaintTime| taint.added.is_none() && time_of(known, taint).is_some();
        let is_timed = encoded.taints.iter().any(lacks_time);
        if !is_timed {
            return Ok(Cow::Borrowed(&encoded.json));
        }
        let mut device: Value = serde_json::from_str(encoded.json.get())?;
        if let Some(taints) = device.get_mut("taints").and_then(Value::as_array_mut) {
            for (json, taint) in taints.iter_mut().zip(&encoded.taints) {
                if let (None, Some(time)) = (taint.added, time_of(known, taint)) {
                    json["timeAdded"] = Value::String(time);
                }
            }
        }
        serde_json::value::to_raw_value(&device).map(Cow::Owned)
    }

    /// Returns the spec that is sent, as the API's type.
    pub(in super::super) fn spec(&self) -> Result<ResourceSliceSpec, serde_json::Error> {
        let devices =
            self.devices.iter().map(|device| read_device(device.json.get())).collect::<Result<Vec<_>, _>>()?;
        Ok(ResourceSliceSpec {
            devices: (!devices.is_empty()).then_some(devices),
            node_selector: self.header.node_selector.clone(),
            all_nodes: self.header.all_nodes,
            per_device_node_selection: self.header.per_device_node_selection,
            partition_type_attribute: self.header.partition_type_attribute.clone(),
            skip_node_operations: self.header.skip_node_operations.clone(),
            shared_counters: self.header.shared_counters.clone(),
            ..ResourceSliceSpec::default()
        })
    }
}

fn time_of(known: &[TaintTime], taint: &TaintTime) -> Option<String> {
    let added = known.iter().find(|one| one.is_same_taint(taint))?.added?;
    Some(Timestamp::from_second(added).ok()?.to_string())
}
