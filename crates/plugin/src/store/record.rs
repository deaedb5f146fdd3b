//! The state record of a prepared claim: what the store must know of it when nobody is left to ask.
//!
//! It lies in the claim's directory and is the point at which a prepare is done: the files that it names were written
//! before it, the CDI specs are written after it. A directory without a whole record is one that a crash left behind.
//!
//! Nothing is synced to the disk, so after a power loss a record may be empty, cut or of an earlier time. It carries
//! its own checksum, and the boot that it was written in.

use std::collections::BTreeMap;

use drakkar_metadata::name::{ClaimName, ClaimUid, Namespace, PodClaimName, RequestName};
use serde::{Deserialize, Serialize};

/// The record's name in the claim's directory. A request's directory never begins with a dot.
pub(crate) const FILE: &str = ".claim.json";
const FORMAT: u32 = 1;

/// Which claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClaimKey {
    pub(crate) namespace: Namespace,
    pub(crate) name: ClaimName,
    pub(crate) uid: ClaimUid,
}

/// What is known of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uid: ClaimUid,
    pub(crate) pod_claim: Option<PodClaimName>,
    pub(crate) boot: String,
    pub(crate) requests: BTreeMap<RequestName, RequestRecord>,
}

/// What is known of one request of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RequestRecord {
    /// The devices that the driver returned, as (reference, pool, device), in its order.
    pub(crate) devices: Vec<(String, String, String)>,
    /// Whether the CDI spec is held back until the first update.
    pub(crate) gated: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    format: u32,
    uid: String,
    pod_claim: Option<String>,
    boot: String,
    requests: BTreeMap<String, RequestRecord>,
}

impl Record {
    /// One line of JSON, and one with its checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let wire = Wire {
            format: FORMAT,
            uid: self.uid.to_string(),
            pod_claim: self.pod_claim.as_ref().map(ToString::to_string),
            boot: self.boot.clone(),
            requests: self.requests.iter().map(|(name, request)| (name.to_string(), request.clone())).collect(),
        };
        // Strings, numbers and lists of them into memory: there is nothing that could fail.
        let mut bytes = serde_json::to_vec(&wire).unwrap_or_default();
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(format!("\n{checksum:08x}\n").as_bytes());
        bytes
    }

    /// The record, if it is whole and makes sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = bytes.strip_suffix(b"\n")?;
        let (json, checksum) = text.split_at(text.iter().rposition(|byte| *byte == b'\n')?);
        let checksum = u32::from_str_radix(std::str::from_utf8(&checksum[1..]).ok()?, 16).ok()?;
        if checksum != crc32fast::hash(json) {
            return None;
        }
        let wire: Wire = serde_json::from_slice(json).ok()?;
        if wire.format != FORMAT {
            return None;
        }
        let mut requests = BTreeMap::new();
        for (name, request) in wire.requests {
            requests.insert(RequestName::new(name).ok()?, request);
        }
        Some(Self {
            uid: ClaimUid::new(wire.uid).ok()?,
            pod_claim: wire.pod_claim.map(PodClaimName::new).transpose().ok()?,
            boot: wire.boot,
            requests,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
            pod_claim: Some("gpus".parse().unwrap()),
            boot: "boot".into(),
            requests: [(
                "gpu".parse().unwrap(),
                RequestRecord { devices: vec![("gpu/large".into(), "pool".into(), "gpu-0".into())], gated: true },
            )]
            .into(),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        assert_eq!(Record::decode(&record().encode()), Some(record()));
    }

    #[test]
    fn a_record_that_was_cut_or_changed_is_none() {
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
