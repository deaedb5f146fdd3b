//! What drivers on this framework keep on a node, for tools that look at the node: state records, and the names of files and
//! sockets. Read only; the driver alone writes.
//!
//! ```
//! use drakkar_plugin::node_files::{ClaimRecord, RECORD_FILE};
//!
//! let plugin = std::path::Path::new("/var/lib/kubelet/plugins/gpu.example.com");
//! let directory = "default_train";
//! match std::fs::read(plugin.join("dra-device-metadata").join(directory).join(RECORD_FILE)) {
//!     Ok(bytes) => match ClaimRecord::decode(&bytes, directory) {
//!         Ok(record) => println!("{} has {} requests", record.claim, record.requests.len()),
//!         Err(error) => eprintln!("{directory}: {error}"),
//!     },
//!     Err(error) => eprintln!("{error}"),
//! }
//! ```

use std::collections::BTreeMap;

use drakkar_client::ClaimRef;
use drakkar_metadata::name::{DriverName, PodClaimName, RequestName};

use crate::socket;
use crate::store::{self, Record};

/// The name of the state record in the directory of a claim.
pub const RECORD_FILE: &str = store::RECORD_FILE;

/// The state record of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRecord {
    /// The claim.
    pub claim: ClaimRef,
    /// The entry of the pod's `resourceClaims`, for a claim from a template.
    pub pod_claim: Option<PodClaimName>,
    /// The boot of the machine during which the record was written, as in `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The requests with a metadata file; none if the devices only have container edits.
    pub requests: BTreeMap<RequestName, RequestRecord>,
    /// The devices that the claim uses exclusively, without those with admin access.
    pub uses: Vec<UsedDevice>,
    /// Whether the claim has a CDI spec for the container edits of its devices.
    pub has_container_edits: bool,
}

/// A request in a state record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The devices that the driver returned for the request.
    pub devices: Vec<RequestedDevice>,
    /// Whether the CDI spec is withheld until the first update of the metadata.
    pub gated: bool,
}

/// A device of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestedDevice {
    /// The request, or `request/subrequest`.
    pub reference: String,
    /// The pool.
    pub pool: String,
    /// The name in the pool.
    pub name: String,
}

/// A device, or a share of one, that a claim uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsedDevice {
    /// The pool.
    pub pool: String,
    /// The name in the pool.
    pub name: String,
    /// The share, of a device that several claims use.
    pub share_id: Option<String>,
}

/// Why a file is not the state record of a claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is truncated, corrupt or of a format that is not known.
    #[error("truncated, corrupt or of an unknown format")]
    Unreadable,
    /// It is that of a claim whose directory has another name.
    #[error("it is the record of claim {0}, whose directory has another name")]
    OtherClaim(Box<ClaimRef>),
}

impl ClaimRecord {
    /// Decodes the record in the directory of this name.
    pub fn decode(bytes: &[u8], directory: &str) -> Result<Self, RecordError> {
        let record = Record::decode(bytes).ok_or(RecordError::Unreadable)?;
        if store::directory_name(&record.claim.namespace, &record.claim.name) != directory {
            return Err(RecordError::OtherClaim(Box::new(record.claim)));
        }
        Ok(Self::from(record))
    }
}

impl From<Record> for ClaimRecord {
    fn from(record: Record) -> Self {
        let request = |request: store::RequestRecord| RequestRecord {
            devices: request
                .devices
                .into_iter()
                .map(|(reference, pool, name)| RequestedDevice { reference, pool, name })
                .collect(),
            gated: request.gated,
        };
        let uses = record.uses.into_iter();
        Self {
            claim: record.claim,
            pod_claim: record.pod_claim,
            boot: record.boot.to_string(),
            requests: record.requests.into_iter().map(|(name, of_request)| (name, request(of_request))).collect(),
            uses: uses
                .map(|used| UsedDevice {
                    pool: used.pool.to_string(),
                    name: used.device.to_string(),
                    share_id: used.share_id,
                })
                .collect(),
            has_container_edits: !record.devices.is_empty(),
        }
    }
}

/// Whether a file with this name is being written, or is what a crash has left of a write. The next start of the driver removes
/// it, or completes the write.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && (name.ends_with(".tmp") || name == store::WRITE_AHEAD_FILE)
}

/// Whether a socket with this name in the kubelet's registry is one of the driver, by this framework or by Kubernetes' Go
/// framework. A name that is a hash of the driver can be that of any.
pub fn is_registration_socket(name: &str, driver: &DriverName) -> bool {
    socket::is_registration_socket(name, driver)
}

/// Whether a socket with this name in the driver's directory is one that the kubelet calls.
pub fn is_dra_socket(name: &str) -> bool {
    socket::is_dra_socket(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record {
            claim: ClaimRef {
                namespace: "default".parse().unwrap(),
                name: name.parse().unwrap(),
                uid: "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11".parse().unwrap(),
            },
            pod_claim: None,
            boot: "boot".into(),
            requests: [("gpu".parse().unwrap(), store::RequestRecord::default())].into(),
            uses: vec![store::DeviceUse { pool: "pool".into(), device: "gpu-0".into(), share_id: None }],
            devices: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_that_of_the_directory_it_is_in() {
        let bytes = record("train").encode();
        let read = ClaimRecord::decode(&bytes, "default_train").unwrap();
        assert_eq!(read.uses[0].name, "gpu-0");
        assert!(!read.has_container_edits && read.requests.len() == 1);
        let error = ClaimRecord::decode(&bytes, "default_other").unwrap_err().to_string();
        assert!(error.contains("the record of claim default/train"), "{error}");
        let torn = ClaimRecord::decode(&bytes[..40], "default_train");
        assert_eq!(torn, Err(RecordError::Unreadable));
    }

    #[test]
    fn names_of_temporary_files_are_those_that_the_store_writes() {
        for name in
            [store::WRITE_AHEAD_FILE, ".metadata.json.next.tmp", ".claim.json.tmp", ".gpu.example.com_x.json.tmp"]
        {
            assert!(is_temporary(name), "{name}");
        }
        for name in [RECORD_FILE, "metadata.json", "x.tmp", "gpu"] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
