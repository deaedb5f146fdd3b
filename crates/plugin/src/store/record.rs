//! The state record of a prepared claim: what the store knows about the claim without the kubelet and the API server.
//!
//! The record is in the claim's directory, and writing it commits a prepare: the files that it names are written before it,
//! the CDI specs after it. A directory without a valid record is a leftover of a crash.
//!
//! Nothing is synced to disk, so after a power loss a record may be empty, truncated or stale. It has a checksum, and names
//! the boot during which it was written.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace, PodClaimName, RequestName};
use serde::{Deserialize, Serialize, Serializer};

/// The file name of the record in the claim's directory. The name of a request's directory never begins with a dot.
pub(crate) const FILE: &str = ".claim.json";
const FORMAT: u32 = 1;

/// A device, or a share of a device, that a claim uses exclusively.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceUse {
    // Shared, because every prepared claim has several copies.
    pub(crate) pool: Arc<str>,
    pub(crate) device: Arc<str>,
    /// The share, if several claims can use the device at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share_id: Option<String>,
}

/// The stored state of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Stored in full because the directory's name may be shortened; compared with it because a record may have been copied.
    pub(crate) claim: ClaimRef,
    pub(crate) pod_claim: Option<PodClaimName>,
    pub(crate) boot: Arc<str>,
    pub(crate) requests: BTreeMap<RequestName, RequestRecord>,
    /// The devices that the claim uses, without those with admin access.
    pub(crate) uses: Vec<DeviceUse>,
    /// The CDI devices with what the claim's devices add to containers: the content of the claim's spec.
    pub(crate) devices: Vec<drakkar_cdi::Device>,
}

/// The stored state of one request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RequestRecord {
    /// The devices that the driver returned, as (reference, pool, device), in the driver's order.
    pub(crate) devices: Vec<(String, String, String)>,
    /// Whether the CDI spec is withheld until the first update.
    pub(crate) gated: bool,
}

impl RequestRecord {
    /// Whether both have the same devices, in any order: a driver may list its devices in another order after a restart.
    pub(crate) fn has_devices_of(&self, other: &Self) -> bool {
        let sorted = |record: &Self| {
            let mut devices = record.devices.clone();
            devices.sort_unstable();
            devices
        };
        self.devices == other.devices || sorted(self) == sorted(other)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    format: u32,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    pod_claim: Option<&'a str>,
    boot: &'a str,
    #[serde(serialize_with = "by_name")]
    requests: &'a BTreeMap<RequestName, RequestRecord>,
    uses: &'a [DeviceUse],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    devices: &'a [drakkar_cdi::Device],
}

fn by_name<S: Serializer>(requests: &BTreeMap<RequestName, RequestRecord>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(requests.iter().map(|(name, request)| (name.as_str(), request)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    format: u32,
    namespace: String,
    name: String,
    uid: String,
    pod_claim: Option<String>,
    boot: String,
    requests: BTreeMap<String, RequestRecord>,
    uses: Vec<DeviceUse>,
    /// Missing in records of releases that knew no container edits.
    #[serde(default)]
    devices: Vec<drakkar_cdi::Device>,
}

impl Record {
    /// Encodes the record as a line of JSON and a line with its checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let written = Written {
            format: FORMAT,
            namespace: self.claim.namespace.as_str(),
            name: self.claim.name.as_str(),
            uid: self.claim.uid.as_str(),
            pod_claim: self.pod_claim.as_ref().map(PodClaimName::as_str),
            boot: &self.boot,
            requests: &self.requests,
            uses: &self.uses,
            devices: &self.devices,
        };
        let mut bytes = Vec::with_capacity(1024);
        // Writing strings, numbers and lists into memory cannot fail.
        let _ = serde_json::to_writer(&mut bytes, &written);
        let checksum = crc32fast::hash(&bytes);
        let _ = writeln!(bytes, "\n{checksum:08x}");
        bytes
    }

    /// Decodes a record. Returns `None` if it is truncated, corrupt or of an unknown format.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = bytes.strip_suffix(b"\n")?;
        let (json, checksum) = text.split_at(text.iter().rposition(|byte| *byte == b'\n')?);
        let checksum = u32::from_str_radix(std::str::from_utf8(&checksum[1..]).ok()?, 16).ok()?;
        if checksum != crc32fast::hash(json) {
            return None;
        }
        let read: Read = serde_json::from_slice(json).ok()?;
        if read.format != FORMAT {
            return None;
        }
        let mut requests = BTreeMap::new();
        for (name, request) in read.requests {
            requests.insert(RequestName::new(name).ok()?, request);
        }
        Some(Self {
            claim: ClaimRef {
                namespace: Namespace::new(read.namespace).ok()?,
                name: ClaimName::new(read.name).ok()?,
                uid: ClaimUid::new(read.uid).ok()?,
            },
            pod_claim: read.pod_claim.map(PodClaimName::new).transpose().ok()?,
            boot: read.boot.into(),
            requests,
            uses: read.uses,
            devices: read.devices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            claim: ClaimRef {
                namespace: "default".parse().unwrap(),
                name: "train".parse().unwrap(),
                uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
            },
            pod_claim: Some("gpus".parse().unwrap()),
            boot: "boot".into(),
            requests: [(
                "gpu".parse().unwrap(),
                RequestRecord { devices: vec![("gpu/large".into(), "pool".into(), "gpu-0".into())], gated: true },
            )]
            .into(),
            uses: vec![
                DeviceUse { pool: "pool".into(), device: "gpu-0".into(), share_id: None },
                DeviceUse { pool: "pool".into(), device: "nic-0".into(), share_id: Some("a1".into()) },
            ],
            devices: vec![drakkar_cdi::Device {
                name: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11_gpu-0".into(),
                container_edits: drakkar_cdi::ContainerEdits::default().device_node("/dev/null").env_var("GPU", 0),
                ..drakkar_cdi::Device::default()
            }],
        }
    }

    /// Drivers of an earlier release have written such records, and read them after a downgrade.
    #[test]
    fn a_record_without_edits_is_that_of_earlier_releases() {
        let record = Record { devices: Vec::new(), ..record() };
        let text = String::from_utf8(record.encode()).unwrap();
        assert!(!text.contains("devices\":[{"), "{text}");
        assert!(text.contains(r#""shareId":"a1"}]}"#), "{text}");
        assert_eq!(Record::decode(text.as_bytes()), Some(record));
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        assert_eq!(Record::decode(&record().encode()), Some(record()));
    }

    #[test]
    fn a_truncated_or_changed_record_is_rejected() {
        let bytes = record().encode();
        for end in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..end]), None, "cut at {end}");
        }
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert_eq!(Record::decode(&changed), None, "changed at {position}");
        }
    }
}
