//! The kubelet's cache of claims: the pods that use them, their devices, and whether they are prepared. All but the last is
//! kept in a state file, in the format of Kubernetes' kubelet: tools for nodes read it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use drakkar_kubelet_api::checkpoint::{self, ClaimState, DriverState};

use crate::kubelet::checkpoint::{CheckpointError, StateFile};
use crate::kubelet::claim::{ClaimId, Device};

/// A claim that pods of a node use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedClaim {
    /// The claim.
    pub claim: ClaimId,
    /// The UIDs of the pods that use it.
    pub pods: BTreeSet<String>,
    /// The drivers that it has devices of, and the devices that each has prepared.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// Whether this kubelet has prepared it. A restarted kubelet does not rely on its predecessor.
    pub prepared: bool,
    /// Whether it is being unprepared.
    pub unpreparing: bool,
}

/// The namespace and name of a claim.
pub(super) type Key = (String, String);

pub(super) fn key(claim: &ClaimId) -> Key {
    (claim.namespace.clone(), claim.name.clone())
}

/// All claims, with their state file.
#[derive(Debug)]
pub(super) struct Cache {
    claims: Mutex<HashMap<Key, CachedClaim>>,
    file: StateFile,
}

/// The locked claims.
pub(super) struct Locked<'a> {
    pub(super) claims: MutexGuard<'a, HashMap<Key, CachedClaim>>,
    file: &'a StateFile,
}

impl Cache {
    pub(super) fn restore(file: StateFile) -> Result<Self, CheckpointError> {
        let claims = match file.read_bytes()? {
            Some(bytes) => checkpoint::decode(&bytes).map_err(|error| file.corrupt(error.to_string()))?,
            None => Vec::new(),
        };
        let claims = claims.into_iter().map(CachedClaim::from).map(|entry| (key(&entry.claim), entry)).collect();
        Ok(Self { claims: Mutex::new(claims), file })
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { claims: self.claims.lock().unwrap_or_else(PoisonError::into_inner), file: &self.file }
    }
}

impl Locked<'_> {
    /// Writes the file.
    pub(super) fn save(&self) -> Result<(), CheckpointError> {
        let mut claims: Vec<&CachedClaim> = self.claims.values().collect();
        claims.sort_by(|a, b| a.claim.cmp(&b.claim));
        let states: Vec<ClaimState> = claims.into_iter().map(ClaimState::from).collect();
        let bytes = checkpoint::encode(&states).map_err(|error| self.file.failed("encode")(error.into()))?;
        self.file.write_bytes(&bytes)
    }
}

impl From<ClaimState> for CachedClaim {
    fn from(state: ClaimState) -> Self {
        let devices = |state: DriverState| state.devices.into_iter().map(Device::from).collect();
        Self {
            claim: ClaimId { namespace: state.namespace, name: state.claim_name, uid: state.claim_uid },
            pods: state.pod_uids,
            drivers: state.driver_state.into_iter().map(|(driver, state)| (driver, devices(state))).collect(),
            prepared: false,
            unpreparing: false,
        }
    }
}

impl From<&CachedClaim> for ClaimState {
    fn from(claim: &CachedClaim) -> Self {
        let state =
            |devices: &[Device]| DriverState { devices: devices.iter().map(checkpoint::Device::from).collect() };
        Self {
            claim_uid: claim.claim.uid.clone(),
            claim_name: claim.claim.name.clone(),
            namespace: claim.claim.namespace.clone(),
            pod_uids: claim.pods.clone(),
            driver_state: claim.drivers.iter().map(|(driver, devices)| (driver.clone(), state(devices))).collect(),
        }
    }
}
