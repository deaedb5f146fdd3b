//! The kubelet's checkpoint of claims, the file `dra_manager_state` in its directory: which claims it has given to which drivers,
//! for which pods.
//!
//! ```text
//! {"Data": "{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[…]}",
//!  "Checksum": CRC-32 of Data}
//! ```
//!
//! Kubernetes 1.32 to 1.37 write this. Go writes an absent list or map as `null`, which is read as empty; fields that are not
//! known here are ignored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of the file in the kubelet's directory.
pub const FILE: &str = "dra_manager_state";

const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// A claim that pods of the node use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClaimState {
    /// The UID of the claim.
    #[serde(rename = "ClaimUID")]
    pub claim_uid: String,
    /// The name of the claim.
    pub claim_name: String,
    /// The namespace of the claim.
    pub namespace: String,
    /// The UIDs of the pods that use it.
    #[serde(rename = "PodUIDs", default, serialize_with = "as_go_set", deserialize_with = "go_set")]
    pub pod_uids: BTreeSet<String>,
    /// The drivers that have devices of the claim.
    #[serde(default, deserialize_with = "or_empty")]
    pub driver_state: BTreeMap<String, DriverState>,
}

/// What the kubelet knows of a claim from one driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverState {
    /// The devices that the driver has prepared; none before its first answer.
    #[serde(default, deserialize_with = "or_empty")]
    pub devices: Vec<Device>,
}

/// A device that a driver has prepared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    /// The pool.
    pub pool_name: String,
    /// The name in the pool.
    pub device_name: String,
    /// The share, of a device that several claims use.
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    /// The requests that the device is for; empty for all.
    #[serde(default, deserialize_with = "or_empty")]
    pub request_names: Vec<String>,
    /// The CDI devices that the container runtime injects for it.
    #[serde(rename = "CDIDeviceIDs", default, deserialize_with = "or_empty")]
    pub cdi_device_ids: Vec<String>,
}

/// Why the content of a file is not a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// It is not JSON, or has another form.
    #[error("not a checkpoint of claims: {0}")]
    Json(#[from] serde_json::Error),
    /// It is torn, or was changed.
    #[error("the checksum is {written}, that of the content {actual}")]
    Checksum {
        /// The checksum in the file.
        written: u32,
        /// The checksum of the content.
        actual: u32,
    },
    /// It is of another kind, or of a version that is not known here.
    #[error("it is {kind:?} of {api_version:?}, not {KIND} of {API_VERSION}")]
    Kind {
        /// The kind in the file.
        kind: String,
        /// The version in the file.
        api_version: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "L: Deserialize<'de> + Default"))]
struct Data<L> {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", deserialize_with = "or_empty")]
    claims: L,
}

/// Decodes the content of the file.
pub fn decode(bytes: &[u8]) -> Result<Vec<ClaimState>, CheckpointError> {
    let envelope: Envelope = serde_json::from_slice(bytes)?;
    let actual = crc32fast::hash(envelope.data.as_bytes());
    if actual != envelope.checksum {
        return Err(CheckpointError::Checksum { written: envelope.checksum, actual });
    }
    let data: Data<Vec<ClaimState>> = serde_json::from_str(&envelope.data)?;
    if data.kind != KIND || data.api_version != API_VERSION {
        return Err(CheckpointError::Kind { kind: data.kind, api_version: data.api_version });
    }
    Ok(data.claims)
}

/// Encodes claims as the content of the file.
pub fn encode(claims: &[ClaimState]) -> Result<Vec<u8>, serde_json::Error> {
    let data = Data { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), claims };
    let data = serde_json::to_string(&data)?;
    let checksum = crc32fast::hash(data.as_bytes());
    serde_json::to_vec(&Envelope { data, checksum })
}

/// Go writes an empty list or map as `null`.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A set in Go is a map with empty objects as values.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Empty {}

fn as_go_set<S: Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(set.iter().map(|key| (key, Empty {})))
}

fn go_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let map = Option::<BTreeMap<String, Empty>>::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Kubernetes 1.37 writes it: absent lists are `null`, a set is a map, and a field that is not known here.
    const OF_A_KUBELET: &str = r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"u-1","ClaimName":"train","Namespace":"default","PodUIDs":{"p-1":{},"p-2":{}},"DriverState":{"gpu.example.com":{"Devices":[{"PoolName":"node-1","DeviceName":"gpu-0","ShareID":null,"RequestNames":["gpu"],"CDIDeviceIDs":null}]},"net.example.com":{"Devices":null,"skipNodeOperations":["Prepare"]}}}]}"#;

    fn file(data: &str) -> Vec<u8> {
        let checksum = crc32fast::hash(data.as_bytes());
        serde_json::to_vec(&Envelope { data: data.to_owned(), checksum }).unwrap()
    }

    #[test]
    fn the_checkpoint_of_a_kubelet_is_read() {
        let claims = decode(&file(OF_A_KUBELET)).unwrap();
        let [claim] = &claims[..] else { panic!("{claims:?}") };
        assert_eq!((&*claim.namespace, &*claim.claim_name, &*claim.claim_uid), ("default", "train", "u-1"));
        assert_eq!(claim.pod_uids.iter().collect::<Vec<_>>(), ["p-1", "p-2"]);
        let [device] = &claim.driver_state["gpu.example.com"].devices[..] else { panic!("{claim:?}") };
        assert_eq!(
            (&*device.pool_name, &*device.device_name, &*device.request_names),
            ("node-1", "gpu-0", &["gpu".to_owned()][..])
        );
        assert!(device.cdi_device_ids.is_empty() && claim.driver_state["net.example.com"].devices.is_empty());
        assert_eq!(decode(&encode(&claims).unwrap()).unwrap(), claims);
        assert!(decode(&file(&OF_A_KUBELET.replace(r#"[{"ClaimUID"#, r#"null,"_":[{"ClaimUID"#))).unwrap().is_empty());
    }

    #[test]
    fn a_torn_or_foreign_file_is_refused() {
        let whole = file(OF_A_KUBELET);
        for end in 0..whole.len() {
            assert!(decode(&whole[..end]).is_err(), "cut at {end}");
        }
        let changed = String::from_utf8(whole.clone()).unwrap().replace("gpu-0", "gpu-1");
        assert!(matches!(decode(changed.as_bytes()), Err(CheckpointError::Checksum { .. })));
        for (known, other) in [("DRACheckpoint", "Pod"), ("k8s.io/v1", "k8s.io/v9")] {
            let error = decode(&file(&OF_A_KUBELET.replace(known, other))).unwrap_err();
            assert!(matches!(error, CheckpointError::Kind { .. }), "{error}");
        }
    }
}
