//! Slices that the API server stores, reduced to what has to be kept in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;

use drakkar_client::{DraVersion, to_v1};
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourcePool, ResourceSliceSpec};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::content::{Digest, SliceHeader, TaintTime, device_digest, taint_times};
use super::slice_devices::SliceDevices;

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
    pub(super) devices: StoredDevices,
    /// The taints of its devices, in order, each with the index of its device.
    pub(super) taints: Box<[(usize, TaintTime)]>,
    /// The number of devices that had to be decoded.
    pub(super) decoded: usize,
}

/// The devices of a stored slice, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredDevices {
    /// The names, each with a line break.
    names: Box<str>,
    digests: Box<[StoredDigests]>,
}

/// The digests of a stored device.
#[derive(Debug, Clone, Copy)]
struct StoredDigests {
    /// The digest of its text. A server that does not change the device returns the same text again.
    text: Digest,
    /// The digest of its meaning.
    meaning: Digest,
}

impl StoredDevices {
    pub(super) fn len(&self) -> usize {
        self.digests.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.split_terminator('\n')
    }
}

/// What is known of a slice that is about to be read: devices with the same text need not be decoded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Expected<'a> {
    /// The devices that were sent.
    pub(super) sent: Option<&'a SliceDevices>,
    /// The slice as it was stored before.
    pub(super) before: Option<&'a StoredSlice>,
}

#[derive(Deserialize)]
struct Object<'a> {
    metadata: Metadata,
    #[serde(borrow)]
    spec: Spec<'a>,
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

/// The spec of a slice, whose devices are not decoded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    pool: ResourcePool,
    #[serde(default)]
    node_selector: Option<NodeSelector>,
    #[serde(default)]
    all_nodes: Option<bool>,
    #[serde(default)]
    per_device_node_selection: Option<bool>,
    #[serde(default)]
    partition_type_attribute: Option<String>,
    #[serde(default)]
    skip_node_operations: Option<Vec<String>>,
    #[serde(default)]
    shared_counters: Option<Vec<CounterSet>>,
    #[serde(default, borrow)]
    devices: Option<Vec<&'a RawValue>>,
}

impl StoredSlice {
    /// Decodes a slice from JSON.
    pub(super) fn read(json: &[u8], version: DraVersion) -> Result<Self, serde_json::Error> {
        Self::read_expected(json, version, Expected::default())
    }

    /// Decodes a slice of which something is known from JSON.
    pub(super) fn read_expected(
        json: &[u8],
        version: DraVersion,
        expected: Expected<'_>,
    ) -> Result<Self, serde_json::Error> {
        let json = v1_form(json, version)?;
        let Object { metadata, spec } = serde_json::from_slice(&json)?;
        let names_before = expected.before.map(|before| before.devices.names().collect()).unwrap_or_default();
        let mut devices = Reading { expected, names_before, ..Reading::default() };
        for device in spec.devices.iter().flatten() {
            devices.read(device.get().as_bytes())?;
        }
        let mut header = ResourceSliceSpec {
            node_selector: spec.node_selector,
            all_nodes: spec.all_nodes,
            per_device_node_selection: spec.per_device_node_selection,
            partition_type_attribute: spec.partition_type_attribute,
            skip_node_operations: spec.skip_node_operations,
            shared_counters: spec.shared_counters,
            ..ResourceSliceSpec::default()
        };
        Ok(Self {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            foreign: metadata.foreign,
            pool: spec.pool.name,
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            digest: SliceHeader::take(&mut header).digest(devices.digests.iter().map(|device| device.meaning))?,
            devices: StoredDevices { names: devices.names.into(), digests: devices.digests.into() },
            taints: devices.taints.into(),
            decoded: devices.decoded,
        })
    }

    /// Returns whether this is a newer state of the object than that of a resource version.
    pub(super) fn is_newer_than(&self, resource_version: &str) -> bool {
        is_newer(&self.resource_version, resource_version)
    }

    /// Returns all taints, each with the name of its device.
    pub(super) fn taints_by_device(&self) -> impl Iterator<Item = (&str, &TaintTime)> {
        let names: Vec<&str> = if self.taints.is_empty() { Vec::new() } else { self.devices.names().collect() };
        self.taints.iter().filter_map(move |(index, taint)| Some((*names.get(*index)?, taint)))
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

/// The devices of a slice that were read so far.
#[derive(Default)]
struct Reading<'a> {
    expected: Expected<'a>,
    /// The names of the slice as it was stored before.
    names_before: Vec<&'a str>,
    /// The next device of the slice as it was stored before.
    next: usize,
    names: String,
    digests: Vec<StoredDigests>,
    taints: Vec<(usize, TaintTime)>,
    decoded: usize,
}

impl Reading<'_> {
    /// Reads a device.
    fn read(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        let index = self.digests.len();
        let text = Digest::of(json);
        let Expected { sent, before } = self.expected;
        let sent = sent.filter(|sent| index < sent.len() && sent.text(index) == json);
        let meaning = if let Some((before, known)) = before.and_then(|before| Some((before, self.find(before, text)?)))
        {
            self.next = known + 1;
            self.names.push_str(self.names_before.get(known).unwrap_or(&""));
            let taints = before.taints.iter().filter(|(device, _)| *device == known);
            self.taints.extend(taints.map(|(_, taint)| (index, taint.clone())));
            before.devices.digests[known].meaning
        } else if let Some(sent) = sent {
            self.names.push_str(sent.name(index));
            self.taints.extend(sent.taints_of(index).map(|taint| (index, taint.clone())));
            sent.facts(index).digest
        } else {
            self.decoded += 1;
            let mut device: Device = serde_json::from_slice(json)?;
            self.names.push_str(&device.name);
            self.taints.extend(taint_times(&device).into_iter().map(|taint| (index, taint)));
            device_digest(&mut device)?
        };
        self.names.push('\n');
        self.digests.push(StoredDigests { text, meaning });
        Ok(())
    }

    /// Finds a device with this text in the slice as it was stored before, nearly always the next one.
    fn find(&self, before: &StoredSlice, text: Digest) -> Option<usize> {
        let digests = &before.devices.digests;
        let numbers = (self.next..digests.len()).chain(0..self.next.min(digests.len()));
        numbers.into_iter().find(|number| digests[*number].text == text)
    }
}

/// Decodes the whole spec of a slice from JSON.
pub(super) fn read_spec(json: &[u8], version: DraVersion) -> Result<ResourceSliceSpec, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        spec: ResourceSliceSpec,
    }
    Ok(serde_json::from_slice::<Object>(&v1_form(json, version)?)?.spec)
}

/// Converts the JSON of a slice to the form of v1.
fn v1_form(json: &[u8], version: DraVersion) -> Result<Cow<'_, [u8]>, serde_json::Error> {
    if version.has_v1_form() {
        return Ok(Cow::Borrowed(json));
    }
    let mut object: Value = serde_json::from_slice(json)?;
    to_v1("ResourceSlice", &mut object);
    serde_json::to_vec(&object).map(Cow::Owned)
}

#[cfg(test)]
mod tests;
