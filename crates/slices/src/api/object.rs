//! Encoding of slices for the API server.

use std::borrow::Cow;
use std::collections::HashMap;

use drakkar_client::{DraVersion, from_v1};
use k8s_openapi::api::resource::v1::{Device, ResourceSliceSpec};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::content::{SliceHeader, TaintTime};
use super::super::slice_devices::SliceDevices;
use super::super::stored::{ForeignMetadata, StoredSlice};

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
    pub(in super::super) devices: &'a SliceDevices,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Cow<'a, RawValue>>,
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
        let devices = if self.devices.len() > 0 { Some(self.devices()?) } else { None };
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

    /// Returns the devices as JSON. Taints without a time get the known one, or an update would reset it.
    fn devices(&self) -> Result<Cow<'_, RawValue>, serde_json::Error> {
        let known_time = |(device, taint): &(usize, TaintTime)| {
            let known = self.taints.get(self.devices.name(*device))?;
            if taint.added.is_none() { time_of(known, taint) } else { None }
        };
        let mut times = self.devices.taints().iter().map(known_time);
        if !times.clone().any(|time| time.is_some()) {
            return serde_json::from_str::<&RawValue>(self.devices.json()).map(Cow::Borrowed);
        }
        let mut devices: Vec<Value> = serde_json::from_str(self.devices.json())?;
        let taints = devices.iter_mut().filter_map(|device| device.get_mut("taints")?.as_array_mut()).flatten();
        for (taint, time) in taints.zip(times.by_ref()) {
            if let Some(time) = time {
                taint["timeAdded"] = Value::String(time);
            }
        }
        serde_json::value::to_raw_value(&devices).map(Cow::Owned)
    }

    /// Returns the spec that is sent, as the API's type.
    pub(in super::super) fn spec(&self) -> Result<ResourceSliceSpec, serde_json::Error> {
        let devices: Vec<Device> = serde_json::from_str(self.devices.json())?;
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
